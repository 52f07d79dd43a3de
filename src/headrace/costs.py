"""What each action costs in seconds and in bytes: measured by `profile`, or declared."""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from fractions import Fraction
from math import inf
from numbers import Real
from typing import Any

from headrace.schedule.actions import BACKWARD, BACKWARD_INPUT, BACKWARD_WEIGHT, FORWARD, RECOMPUTE, UPDATE, Kind

Seconds = float
Bytes = float
Number = float
PerStage = Number | Sequence[Number]
PerRank = Number | Sequence[Number]


@dataclass(frozen=True)
class Memory:
    """Bytes that a stage holds: one number for all stages, or a sequence with one number per stage.

                    F begins            I ends          W ends
        split       ├── activations ──────┤├─ for_weight ─┤
        whole       ├── activations ──────────────────────┤ B ends
        recomputed  ├── stage_input ──┤├── activations ───┤ …
                                 R begins
        any action  ├─ + working ─┤                          while it runs

    Attributes:
        activations: what one micro-batch keeps for its backward, from the begin of its F (or R) to the end of its
            I or B.
        for_weight: what is left of that, and gradients that wait, until the end of its W.
        stage_input: what the stage receives of one micro-batch. One that will be recomputed keeps it from the begin of
            its F to that of its R. Where it comes from a stage of the same rank, it also waits there, from the begin of
            that stage's F to that of its own, and so does its gradient on the way back.
        parameters: parameters, their gradients and optimizer state, all the time, in each replica of the stage.
        working: what any action (but U) needs besides, only while it runs: what its layers hand on to each other, and
            the activations of one that is recomputed by itself, of which `activations` has only the input.
        version: one more copy of the weights, which asynchronous schedules put aside at an update (from its begin)
            until the last action that reads it has ended.
        shared: how much of its input a stage keeps that the stage before keeps as well. It is among the activations of
            both, but there once where both are on one rank.

    Raises:
        TypeError, ValueError: a number is not one, is negative or not finite.
    """

    activations: PerStage = 0
    for_weight: PerStage = 0
    stage_input: PerStage = 0
    parameters: PerStage = 0
    version: PerStage = 0
    working: PerStage = 0
    shared: PerStage = 0

    def __post_init__(self) -> None:
        for item in fields(self):
            _keep(self, item.name, getattr(self, item.name), "bytes")

    def per_stage(self, name: str, stages: int) -> list[Bytes]:
        """The attribute `name` at each of `stages` stages.

        Raises:
            ValueError: a sequence has another length.
        """
        return spread(name, getattr(self, name), stages, "stages")


@dataclass(frozen=True)
class Costs:
    """Seconds per action: one number for all stages, or a sequence with one number per stage.

    Attributes:
        forward: F.
        backward_input: I, the input-gradient part of the backward.
        backward_weight: W, the weight-gradient part.
        recompute: R; the same as `forward` if None.
        transfer: seconds for one hop between ranks, while both compute; a sequence has one number for each of
            the S − 1 hops between neighbouring stages. Hops within a rank are free.
        pair: an overlapped forward and backward, by the forward's stage; the sum of both if None.
        update: the optimizer's update of a stage: a U, or at the end of a synchronous step.
        reduce: the reduction of a stage's gradients over its replicas, before it is updated at the end of a step.
        message: bytes that cross a boundary between neighbouring stages, per micro-batch and direction.
        bandwidth: bytes per second of a link between two ranks; None if only `transfer` counts.
        one_at_a_time: whether a link carries one message at a time, so that the next one waits; otherwise messages
            overlap freely.
        memory: what stages hold.
        backward: B, the whole backward; I + W if None. (Splitting costs a little, so a whole one may be shorter.)

    Numbers are used as they are: ints and Fractions stay exact through a simulation.

    Raises:
        TypeError, ValueError: a cost is not a number, is negative or not finite.
    """

    forward: PerStage = 1
    backward_input: PerStage = 1
    backward_weight: PerStage = 1
    recompute: PerStage | None = None
    transfer: PerStage = 0
    pair: PerStage | None = None
    update: PerStage = 0
    reduce: PerStage = 0
    message: PerStage = 0
    bandwidth: Number | None = None
    one_at_a_time: bool = False
    memory: Memory = field(default_factory=Memory)
    backward: PerStage | None = None

    def __post_init__(self) -> None:
        for name in ("forward", "backward_input", "backward_weight", "transfer", "update", "reduce"):
            _keep(self, name, getattr(self, name), "seconds")
        for name in ("backward", "recompute", "pair"):
            if getattr(self, name) is not None:
                _keep(self, name, getattr(self, name), "seconds")
        _keep(self, "message", self.message, "bytes")
        if self.bandwidth is not None:
            if not isinstance(self.bandwidth, (int, float, Fraction)):
                raise TypeError(f"bandwidth={self.bandwidth!r} must be a number of bytes per second")
            if not 0 < self.bandwidth < inf:
                raise ValueError(f"bandwidth={self.bandwidth!r} must be finite and more than 0")
        if not isinstance(self.memory, Memory):
            raise TypeError(f"memory={self.memory!r} must be a headrace Memory")

    def per_stage(self, stages: int) -> dict[Kind, list[Seconds]]:
        """For each kind of action, the seconds at each of `stages` stages.

        Raises:
            ValueError: a sequence has another length.
        """
        forward = spread("forward", self.forward, stages, "stages")
        inputs = spread("backward_input", self.backward_input, stages, "stages")
        weights = spread("backward_weight", self.backward_weight, stages, "stages")
        whole = [i + w for i, w in zip(inputs, weights, strict=True)]
        if self.backward is not None:
            whole = spread("backward", self.backward, stages, "stages")
        again = forward if self.recompute is None else spread("recompute", self.recompute, stages, "stages")
        return {
            FORWARD: forward,
            BACKWARD: whole,
            BACKWARD_INPUT: inputs,
            BACKWARD_WEIGHT: weights,
            RECOMPUTE: again,
            UPDATE: spread("update", self.update, stages, "stages"),
        }

    def slowed(self, by: Sequence[Number]) -> "Costs":
        """The same actions on other devices: the seconds of stage s times number s of `by`; links stay as they are.

        Raises:
            ValueError: a cost is a sequence of another length.
        """
        seconds = self.per_stage(len(by))
        slow = {kind: [each * times for each, times in zip(seconds[kind], by, strict=True)] for kind in seconds}
        paired = None if self.pair is None else spread("pair", self.pair, len(by), "stages")
        return replace(
            self,
            forward=slow[FORWARD],
            backward=slow[BACKWARD],
            backward_input=slow[BACKWARD_INPUT],
            backward_weight=slow[BACKWARD_WEIGHT],
            recompute=None if self.recompute is None else slow[RECOMPUTE],
            update=slow[UPDATE],
            pair=None if paired is None else [each * times for each, times in zip(paired, by, strict=True)],
        )

    def per_hop(self, stages: int) -> list[Seconds]:
        """The latency of each of the `stages` − 1 hops, if its ends are on different ranks."""
        return spread("transfer", self.transfer, stages - 1, "hops")

    def sending(self, stages: int) -> list[Seconds]:
        """For each of the `stages` − 1 hops, the seconds that a message occupies the link: bytes ÷ bandwidth."""
        sizes = spread("message", self.message, stages - 1, "hops")
        return [0 if self.bandwidth is None or not size else _ratio(size, self.bandwidth) for size in sizes]


def spread(name: str, value: PerStage, count: int, of: str) -> list[Number]:
    """One number for each of `count` things, which an error calls `of`.

    Raises:
        ValueError: `value` is a sequence of another length.
    """
    if not isinstance(value, Sequence):
        return [value] * count
    if len(value) != count:
        raise ValueError(f"{name} has {len(value)} numbers, but the schedule has {count} {of}")
    return list(value)


def _ratio(a: Any, b: Any) -> Any:
    """a ÷ b; exact, where both are."""
    exact = isinstance(a, (int, Fraction)) and isinstance(b, (int, Fraction))
    return Fraction(a, b) if exact else a / b


def _keep(owner: Any, name: str, value: Any, unit: str) -> None:
    """Check a field of a frozen dataclass; sequences become tuples."""
    several = isinstance(value, Sequence) and not isinstance(value, str)
    numbers = tuple(map(_plain, value if several else (value,)))
    for number in numbers:
        if not isinstance(number, (int, float, Fraction)):
            raise TypeError(f"{name}={value!r} must be a number of {unit}, or one number per stage")
        if not 0 <= number < inf:
            raise ValueError(f"{name}={value!r} has a cost that is not finite and 0 or more: {number!r}")
    object.__setattr__(owner, name, numbers if several else numbers[0])


def _plain(value: Any) -> Any:
    """A number of another library, NumPy's say, as a float."""
    return float(value) if isinstance(value, Real) and not isinstance(value, (int, float, Fraction)) else value
