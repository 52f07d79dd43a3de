"""The unsplit model, trained in one thread: what every pipeline must equal bit by bit.

    for each micro-batch:
        output = the layers, one after the other      (the draws of each from a stream of its own)
        loss   = loss_fn(output, target)
    for each micro-batch, in the order of the schedule's backwards:
        loss.backward(weight of the micro-batch)

Of the package it uses only the definition of the streams of random numbers.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from headrace.runtime.stage.randomness import stream
from headrace.schedule import Schedule
from runtime.cases import Case

TRAINING = 0


@contextmanager
def one_thread() -> Iterator[None]:
    """As many intra-op threads as each rank has, so that kernels cut their work alike."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def flat_layers(model: nn.Sequential) -> list[nn.Module]:
    """The layers of a chain, plain nn.Sequentials opened."""
    found: list[nn.Module] = []
    for layer in model._modules.values():
        assert layer is not None
        found += flat_layers(layer) if type(layer) is nn.Sequential else [layer]
    return found


def cut(value: Any, micro_batches: int) -> list[Any]:
    """A batch as micro-batches, along dim 0: each its own memory, laid out as in the whole batch.

    Kernels may round differently on memory with another alignment, so the parts are not simply cloned.
    """
    leaves, structure = pytree.tree_flatten(value)
    return [
        pytree.tree_unflatten(
            [leaf.clone().tensor_split(micro_batches)[k] if isinstance(leaf, Tensor) else leaf for leaf in leaves],
            structure,
        )
        for k in range(micro_batches)
    ]


def order_of(schedule: Schedule, stage: int, kind: str) -> list[int]:
    """The micro-batches in the order in which `stage` performs the actions of one kind."""
    return [a.micro_batch for row in schedule.rows for a in row if (a.stage, a.kind) == (stage, kind)]


def backward_ends(schedule: Schedule, stage: int) -> list[list[int]]:
    """For each replica of a stage, that of lane 0 first: its micro-batches in the order in which backwards end."""
    ranks = dict.fromkeys(lane[stage] for lane in schedule.placement.lanes)
    return [[a.micro_batch for a in schedule.rows[rank] if a.stage == stage and a.kind in "BW"] for rank in ranks]


def backward_order(schedule: Schedule) -> list[int]:
    """The micro-batches in the order of the last stage's backwards, which is that of the others if `orders_agree`."""
    return order_of(schedule, schedule.stages - 1, "B")


def orders_agree(schedule: Schedule) -> bool:
    """Whether all stages do their forwards in one order of micro-batches, and their backwards too."""
    return all(
        order_of(schedule, stage, kind) == order_of(schedule, 0, kind)
        for stage in range(schedule.stages)
        for kind in "FB"
    )


def seed_cpu(seed: int) -> None:
    """What torch.manual_seed does for the CPU; for all the devices that are not there, it formats stack traces."""
    torch.default_generator.manual_seed(seed)


@dataclass
class Unsplit:
    """A case's model, trained by a plain loop.

    Attributes:
        case: with a model of its own.
        seed: as torch.initial_seed() is for the pipeline.
        steps: how many steps were taken.
    """

    case: Case
    seed: int
    steps: int = field(default=0)

    def step(self, batch: tuple[Any, Any], order: Sequence[int]) -> Tensor:
        """One step with backwards in `order`; gradients are added to `.grad`."""
        losses, weights = self.losses(batch, len(order))
        for k in order:
            if losses[k].requires_grad:
                losses[k].backward(torch.tensor(weights[k], dtype=losses[k].dtype))
        self.steps += 1
        return sum_of(losses, weights)

    def step_by_stages(self, batch: tuple[Any, Any], schedule: Schedule, stage_of: Mapping[str, int]) -> Tensor:
        """The same where each stage has an order of its own: gradients are added up in that of their stage.

        Of a stage with replicas, each adds up those of its own micro-batches, and then the sums are added.
        """
        losses, weights = self.losses(batch, schedule.micro_batches)
        parameters = {n: p for n, p in self.case.model.named_parameters() if p.requires_grad}
        parts = [
            torch.autograd.grad(loss, list(parameters.values()), torch.tensor(w, dtype=loss.dtype), allow_unused=True)
            for loss, w in zip(losses, weights, strict=True)
        ]
        for i, (name, parameter) in enumerate(parameters.items()):
            accumulate(parameter, [part[i] for part in parts], backward_ends(schedule, stage_of[name]))
        self.steps += 1
        return sum_of(losses, weights)

    def losses(self, batch: tuple[Any, Any], micro_batches: int) -> tuple[list[Tensor], list[float]]:
        """The loss of each micro-batch, and what it weighs."""
        xs, ys = cut(batch[0], micro_batches), cut(batch[1], micro_batches)
        weights = self.weights(ys)
        losses = [self.loss(self.forward(x, k), y, w) for k, (x, y, w) in enumerate(zip(xs, ys, weights, strict=True))]
        return losses, weights

    def forward(self, x: Any, k: int) -> Any:
        """The layers in order, on micro-batch k; they may write to x."""
        value = x
        with torch.random.fork_rng(devices=[]):
            for number, layer in enumerate(flat_layers(self.case.model)):
                seed_cpu(stream(stream(self.seed, self.steps, TRAINING), number, k))
                value = layer(value)
        return value

    def loss(self, output: Any, y: Any, weight: float) -> Tensor:
        if weight == 0:  # nothing counts: 0, not the NaN of a mean over nothing
            zero: Tensor = (output * 0).sum()
            return zero
        return self.case.loss_fn(output, y)

    def weights(self, ys: Sequence[Any]) -> list[float]:
        how = self.case.options.get("loss_weight", "rows")
        if how == "sum":
            return [1.0] * len(ys)
        counts = [len(pytree.tree_leaves(y)[0]) if how == "rows" else int(how(y)) for y in ys]
        return [count / sum(counts) for count in counts]


def sum_of(losses: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    """The loss of the whole batch."""
    stacked = torch.stack([loss.detach() for loss in losses])
    return (stacked * torch.tensor(weights, dtype=stacked.dtype)).sum()


def added(parts: Sequence[Tensor | None], start: Tensor | None = None) -> Tensor | None:
    """start + part + part …, in this order and in memory of its own; None where there is nothing."""
    total = start
    for part in parts:
        if part is not None:
            total = part.clone() if total is None else total + part
    return total


def accumulate(parameter: nn.Parameter, parts: Sequence[Tensor | None], orders: Sequence[Sequence[int]]) -> None:
    """Add the gradients of micro-batches to `.grad`, in the order of their stage, or of each of its replicas."""
    if len(orders) == 1:
        parameter.grad = added([parts[k] for k in orders[0]], parameter.grad)
    else:
        total = added([added([parts[k] for k in order]) for order in orders])
        parameter.grad = added([total], parameter.grad)


def gradients(model: nn.Module) -> dict[str, Tensor | None]:
    """The gradients by parameter name."""
    return {name: None if p.grad is None else p.grad.clone() for name, p in model.named_parameters()}


def everything(model: nn.Module) -> dict[str, Tensor]:
    """Copies of parameters and buffers by name."""
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def differing(one: Mapping[str, Tensor | None], other: Mapping[str, Tensor | None]) -> list[str]:
    """The names under which two sets of tensors are not the same, bit by bit, NaN equal to NaN."""
    assert one.keys() == other.keys()
    return [name for name, tensor in one.items() if not same(tensor, other[name])]


def same(one: Tensor | None, other: Tensor | None) -> bool:
    """Whether two tensors are equal to the last bit; -0 counts as 0, and None only as None."""
    if one is None or other is None:
        return one is other
    return one.dtype == other.dtype and one.shape == other.shape and torch.equal(one.nan_to_num(), other.nan_to_num())
