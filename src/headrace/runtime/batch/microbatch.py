"""Cut a mini-batch into micro-batches, and say what each of them weighs in the loss.

    7 rows in 4 micro-batches:   2 2 2 1        (as torch.tensor_split cuts)

A mean over the whole batch is Σ wₖ · (mean over micro-batch k) with wₖ = rows of k ÷ all rows; where a loss counts
tokens, wₖ = tokens of k ÷ all tokens. The weights are known before the first backward, so each backward starts from
wₖ and nothing is rescaled afterwards.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from headrace.runtime.stage.boundary import Value, flatten
from headrace.schedule.schedule import Schedule
from headrace.schedule.versions import groups

Split = int | Literal["replicate"]
"""The dim along which a tensor is split, or "replicate" for one that every micro-batch gets whole."""

LossWeight = Literal["rows", "sum"] | Callable[[Value], Any]
"""What a micro-batch counts for; see `weights`."""


def count_rows(name: str, value: Value, spec: Any = 0) -> int:
    """How many rows a batch has: the size that the tensors that are cut agree on.

    Args:
        name: what the user calls it, for errors.
        value: any nest with tensors.
        spec: a dim or "replicate" for all tensors, or a nest of these that is a beginning of `value`.

    Raises:
        ValueError: tensors disagree, or one has no such dim, or requires grad.
        TypeError: there is no tensor to cut, or `spec` does not fit the batch.
    """
    sizes: dict[str, int] = {}
    for path, leaf, how in _leaves(name, value, spec):
        if not isinstance(leaf, Tensor) or how == "replicate":
            continue
        if leaf.requires_grad:
            raise ValueError(f"{path} requires grad, but gradients end at the first stage: pass {path}.detach()")
        if not -leaf.dim() <= how < leaf.dim():
            raise ValueError(f"{path} has shape {tuple(leaf.shape)} and no dim {how} to cut along")
        sizes[path] = leaf.shape[how]
    if not sizes:
        raise TypeError(f"{name} is a {type(value).__name__} without a tensor to cut into micro-batches")
    first = next(iter(sizes))
    for path, size in sizes.items():
        if size != sizes[first]:
            raise ValueError(
                f"{path} has {size} rows, but {first} has {sizes[first]}: a micro-batch takes the same rows of both. "
                'Mark a tensor that is not cut into rows as "replicate" in the split spec'
            )
    return sizes[first]


def split(name: str, value: Value, micro_batches: int, spec: Any = 0) -> list[Value]:
    """Cut a batch into micro-batches; what is not a tensor goes to every one. Arguments are those of `count_rows`.

    Raises:
        ValueError: there are fewer rows than micro-batches; and as `count_rows`.
        TypeError: as `count_rows`.
    """
    rows = count_rows(name, value, spec)
    if rows < micro_batches:
        raise ValueError(
            f"{name} has {rows} rows, too few for micro_batches={micro_batches}: give it at least one row per "
            "micro-batch (drop_last=True in a DataLoader leaves a short last batch out)"
        )
    parts: list[Sequence[Any]] = []
    for _, leaf, how in _leaves(name, value, spec):
        if isinstance(leaf, Tensor) and how != "replicate":
            parts.append(torch.tensor_split(leaf, micro_batches, dim=how))
        else:
            parts.append([leaf] * micro_batches)
    structure = flatten(value)[1]
    return [pytree.tree_unflatten([part[k] for part in parts], structure) for k in range(micro_batches)]


def _leaves(name: str, value: Value, spec: Any) -> Iterator[tuple[str, Any, Any]]:
    """Each leaf with its path and its part of the split spec."""
    leaves, structure = flatten(value)
    specs = _specs(name, spec, structure)
    paths = [name + pytree.keystr(path) for path, _ in pytree.tree_flatten_with_path(value)[0]]
    yield from zip(paths, leaves, specs, strict=True)


def _specs(name: str, spec: Any, structure: pytree.TreeSpec) -> list[Split]:
    try:
        specs = pytree._broadcast_to_and_flatten(spec, structure)
    except ValueError:
        specs = None
    if specs is None:
        raise TypeError(f"the split spec {spec!r} is no prefix of {name}, which is a {structure}")
    for how in specs:
        if how != "replicate" and (not isinstance(how, int) or isinstance(how, bool)):
            raise TypeError(f'the split spec of {name} contains {how!r}: use a dim, such as 0, or "replicate"')
    return specs


def rows_per_micro_batch(rows: int, micro_batches: int) -> list[int]:
    """The sizes that tensor_split gives: the first (rows mod m) micro-batches have one row more."""
    few, more = divmod(rows, micro_batches)
    return [few + (k < more) for k in range(micro_batches)]


def weights(rows: int, targets: Sequence[Value], loss_weight: LossWeight) -> list[float]:
    """What each micro-batch's loss is multiplied with, so that their sum is the loss of the whole batch.

    Args:
        rows: of the whole batch.
        targets: one per micro-batch.
        loss_weight: "rows" if the loss is a mean over rows; "sum" if it is a sum; or a function that tells of a
            target how much it counts, such as how many tokens are not padding, if the loss is a mean over those.

    Raises:
        TypeError: the function returned no number.
        ValueError: it returned a negative one, or all are zero.
    """
    m = len(targets)
    if loss_weight == "sum":
        return [1.0] * m
    if loss_weight == "rows":
        return [count / rows for count in rows_per_micro_batch(rows, m)]
    counts = [_count(loss_weight(target)) for target in targets]
    total = sum(counts)
    if total == 0:
        raise ValueError("loss_weight is 0 for every micro-batch: nothing in this batch counts, so skip it")
    return [count / total for count in counts]


def per_update(shares: Sequence[float], schedule: Schedule) -> list[float]:
    """The weights for an asynchronous schedule: each update takes the mean over the micro-batches of its group.

    Raises:
        ValueError: stages update after different micro-batches, so that there is no such mean for all of them.
    """
    of_stage: dict[int, dict[int, int]] = {}
    for row in schedule.rows:
        for (stage, k), number in groups(row).items():
            of_stage.setdefault(stage, {})[k] = number
    of_last = of_stage[schedule.stages - 1]
    for stage, own in of_stage.items():
        other = next((k for k in own if own[k] != of_last.get(k)), None)
        if other is not None:
            raise ValueError(
                f"schedule {schedule.name!r} uses the gradient of micro-batch {other} in update {own[other]} of stage "
                f"{stage}, but in update {of_last.get(other)} of the last stage: update all stages after the same "
                'micro-batches, or take a loss that is a sum, with loss_weight="sum"'
            )
    totals: dict[int, float] = {}
    for k, share in enumerate(shares):
        totals[of_last[k]] = totals.get(of_last[k], 0.0) + share
    return [share / totals[of_last[k]] if share else 0.0 for k, share in enumerate(shares)]


def _count(counted: Any) -> float:
    count = counted.item() if isinstance(counted, Tensor) and counted.numel() == 1 else counted
    if not isinstance(count, (int, float)):
        raise TypeError(f"loss_weight returned {counted!r}: it must return how much a target counts, as one number")
    if not 0 <= count < float("inf"):
        raise ValueError(f"loss_weight returned {count!r}: how much a target counts is a finite number of 0 or more")
    return count


def join(outputs: Sequence[Value], spec: Any = 0) -> Value:
    """Put the outputs of micro-batches together again; of what is no tensor, the first one's.

    Args:
        outputs: one per micro-batch.
        spec: along which dim, as for `split`; "replicate" for tensors of which the first one's is taken.

    Raises:
        ValueError: a tensor has no such dim, or the outputs have different structures.
        TypeError: `spec` does not fit the output.
    """
    leaves, structure = flatten(outputs[0])
    columns = [leaves]
    for output in outputs[1:]:
        other, other_structure = flatten(output)
        if other_structure != structure:
            raise ValueError(
                f"the model's output changes its structure between micro-batches: {structure}, {other_structure}"
            )
        columns.append(other)
    joined = []
    for how, *of_leaf in zip(_specs("the output", spec, structure), *columns, strict=True):
        if isinstance(of_leaf[0], Tensor) and how != "replicate":
            if not all(-t.dim() <= how < t.dim() for t in of_leaf):
                raise ValueError(
                    f"the model's output has a tensor of shape {tuple(of_leaf[0].shape)} and no dim {how} to join "
                    'micro-batches along: say with output_split along which, or "replicate" to take the first'
                )
            joined.append(torch.cat(of_leaf, dim=how))
        else:
            joined.append(of_leaf[0])
    return pytree.tree_unflatten(joined, structure)
