"""The batch as one process sees it: first stages need inputs, last ones targets, the others nothing.

In one process both ends are at hand. Between processes x and y may be given everywhere or only where they are needed.
In a two-way schedule each lane has its own ends.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from headrace.runtime.batch.fingerprint import fingerprint
from headrace.runtime.batch.microbatch import LossWeight, count_rows, split, weights
from headrace.runtime.batch.segments import cut_sequences, lengths
from headrace.runtime.stage.boundary import Parcel, Value, take_apart
from headrace.schedule.placement import Placement


@dataclass(frozen=True)
class Feed:
    """Cuts batches for the ends of the pipeline that this process holds.

    Attributes:
        placement: where the ends are.
        devices: of the ranks that this process runs.
        input_split, target_split, loss_weight, sequence_dim: see `Pipeline`.
        segments: in how many pieces the sequences of a micro-batch are cut.
    """

    placement: Placement
    devices: Mapping[int, torch.device]
    input_split: Any
    target_split: Any
    loss_weight: LossWeight
    segments: int = 1
    sequence_dim: int = 1

    @property
    def holds_first(self) -> bool:
        """Whether this process holds the first stage, in some lane."""
        return any(lane[0] in self.devices for lane in self.placement.lanes)

    @property
    def holds_last(self) -> bool:
        """Whether this process holds the last stage, in some lane."""
        return any(lane[-1] in self.devices for lane in self.placement.lanes)

    def rows(self, x: Value, y: Value, *, target: bool = True) -> dict[str, int]:
        """The rows of x and of y, as far as this process needs them.

        Raises:
            ValueError: one that is needed here is missing; and as `count_rows`.
        """
        rows = {}
        if self.holds_first:
            if x is None:
                ranks = sorted({lane[0] for lane in self.placement.lanes})
                whose = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"
                raise ValueError(f"x is missing: the process that holds the first stage ({whose}) needs the input")
            rows["x"] = count_rows("x", x, self.input_split)
        if self.holds_last and target:
            if y is None:
                raise ValueError("y is missing: the process that holds the last stage needs the target for the loss")
            rows["y"] = count_rows("y", y, self.target_split)
        same_rows(rows)
        return rows

    def inputs(self, x: Value, micro_batches: int) -> list[Parcel | None]:
        """What enters the first stage, by micro-batch; None for those that enter it elsewhere."""
        if not self.holds_first:
            return []
        rows = count_rows("x", x, self.input_split)
        batch = fingerprint(x) if self._apart else 0
        parcels: list[Parcel | None] = []
        for k, value in enumerate(self._cut("x", x, micro_batches, self.input_split)):
            device = self.devices.get(self.placement.rank(0, k))
            if device is None:
                parcels.append(None)
                continue
            tensors, skeleton = take_apart(_to(device, value), "x")
            parcels.append(Parcel(tensors, (False,) * len(tensors), skeleton, rows, batch))
        return parcels

    def batch(self, x: Value) -> int:
        """What a last rank compares its batch with that of the first by, if they are in different processes."""
        return fingerprint(x) if self.holds_last and self._apart else 0

    def targets(self, y: Value, micro_batches: int) -> tuple[list[Value], list[float]]:
        """What the loss compares with, by micro-batch, and what each weighs; 0 for those whose loss is elsewhere.

        Both are empty if no last stage is here.
        """
        if not self.holds_last:
            return [], []
        targets = self._cut("y", y, micro_batches, self.target_split)
        shares = self._weights(y, targets)
        here = [self.devices.get(self.placement.rank(self.placement.stages - 1, k)) for k in range(micro_batches)]
        return (
            [None if device is None else _to(device, t) for device, t in zip(here, targets, strict=True)],
            [0.0 if device is None else share for device, share in zip(here, shares, strict=True)],
        )

    def ends_here(self, micro_batch: int) -> bool:
        """Whether this process holds the last stage of `micro_batch`'s lane."""
        return self.placement.rank(self.placement.stages - 1, micro_batch) in self.devices

    @property
    def _apart(self) -> bool:
        """Whether some lane has its first and its last stage in different processes."""
        return any((lane[0] in self.devices) != (lane[-1] in self.devices) for lane in self.placement.lanes)

    def _cut(self, name: str, value: Value, micro_batches: int, spec: Any) -> list[Value]:
        parts = split(name, value, micro_batches // self.segments, spec)
        if self.segments == 1:
            return parts
        return [piece for part in parts for piece in cut_sequences(name, part, self.segments, self.sequence_dim)]

    def _weights(self, y: Value, targets: Sequence[Value]) -> list[float]:
        rows = count_rows("y", y, self.target_split)
        if self.segments == 1 or self.loss_weight != "rows":
            return weights(rows, targets, self.loss_weight)
        of_rows = weights(rows, targets[:: self.segments], self.loss_weight)
        shares = []
        for k, share in enumerate(of_rows):
            of_segments = lengths(targets[k * self.segments : (k + 1) * self.segments], self.sequence_dim)
            shares += [share * length / sum(of_segments) for length in of_segments]
        return shares


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
