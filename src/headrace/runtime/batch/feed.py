"""The batch as one process sees it: the first rank needs inputs, the last one targets, the others nothing.

In one process both ends are at hand. Between processes x and y may be given everywhere or only where they are needed.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from headrace.runtime.batch.fingerprint import fingerprint
from headrace.runtime.batch.microbatch import LossWeight, count_rows, split, weights
from headrace.runtime.stage.boundary import Parcel, Value, take_apart


@dataclass(frozen=True)
class Feed:
    """Cuts batches for the ends of the pipeline that this process holds.

    Attributes:
        first: the device of the first stage; None if another process holds it.
        last: the device of the last stage; None if another process holds it.
        input_split, target_split, loss_weight: see `Pipeline`.
    """

    first: torch.device | None
    last: torch.device | None
    input_split: Any
    target_split: Any
    loss_weight: LossWeight

    def rows(self, x: Value, y: Value, *, target: bool = True) -> dict[str, int]:
        """The rows of x and of y, as far as this process needs them.

        Raises:
            ValueError: one that is needed here is missing; and as `count_rows`.
        """
        rows = {}
        if self.first is not None:
            if x is None:
                raise ValueError("x is missing: the process that holds the first stage (rank 0) needs the input")
            rows["x"] = count_rows("x", x, self.input_split)
        if self.last is not None and target:
            if y is None:
                raise ValueError("y is missing: the process that holds the last stage needs the target for the loss")
            rows["y"] = count_rows("y", y, self.target_split)
        same_rows(rows)
        return rows

    def inputs(self, x: Value, micro_batches: int) -> list[Parcel]:
        """What enters the first stage, by micro-batch; nothing if it is held elsewhere."""
        if self.first is None:
            return []
        parcels = []
        rows = count_rows("x", x, self.input_split)
        batch = fingerprint(x) if self.last is None else 0
        for value in split("x", x, micro_batches, self.input_split):
            tensors, skeleton = take_apart(_to(self.first, value), "x")
            parcels.append(Parcel(tensors, (False,) * len(tensors), skeleton, rows, batch))
        return parcels

    def batch(self, x: Value) -> int:
        """What the last rank compares its batch with that of the first by, if they are in different processes."""
        return fingerprint(x) if self.first is None and self.last is not None else 0

    def targets(self, y: Value, micro_batches: int) -> tuple[list[Value], list[float]]:
        """What the loss compares with, by micro-batch, and what each weighs; nothing if the last stage is elsewhere."""
        if self.last is None:
            return [], []
        targets = split("y", y, micro_batches, self.target_split)
        shares = weights(count_rows("y", y, self.target_split), targets, self.loss_weight)
        return [_to(self.last, target) for target in targets], shares


def same_rows(rows: dict[str, int]) -> None:
    """Refuse an input and a target of different numbers of rows.

    Raises:
        ValueError: they differ.
    """
    if len(set(rows.values())) > 1:
        raise ValueError(f"x has {rows['x']} rows, but y has {rows['y']}: they must be rows of the same batch")


def same_batch(first: int, last: int) -> None:
    """Refuse an input that differs between the first and the last rank.

    Raises:
        ValueError: the fingerprints differ.
    """
    if first != last:
        raise ValueError(
            "x differs between the first and the last rank, so y belongs to another batch: draw the same batches in "
            "every process (one seed for the sampler), or give x only to the first rank and y only to the last"
        )


def _to(device: torch.device, value: Value) -> Value:
    if device.type == "cpu":
        return value
    return pytree.tree_map(lambda leaf: leaf.to(device, non_blocking=True) if isinstance(leaf, Tensor) else leaf, value)
