"""What each action costs: measured by `profile`, or declared."""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import inf

from headrace.schedule.actions import BACKWARD, BACKWARD_INPUT, BACKWARD_WEIGHT, FORWARD, RECOMPUTE, Kind

Seconds = float
PerStage = Seconds | Sequence[Seconds]


@dataclass(frozen=True)
class Costs:
    """Seconds per action: one number for all stages, or a sequence with one number per stage.

    Attributes:
        forward: F.
        backward_input: I, the input-gradient part of the backward.
        backward_weight: W, the weight-gradient part. A whole backward B costs I + W.
        recompute: R; the same as `forward` if None.
        transfer: seconds for one hop between ranks, while both compute; a sequence has one number for each of
            the S − 1 hops between neighbouring stages. Hops within a rank are free.

    Numbers are used as they are: ints and Fractions stay exact through a simulation.

    Raises:
        TypeError, ValueError: a cost is not a number, is negative or not finite.
    """

    forward: PerStage = 1
    backward_input: PerStage = 1
    backward_weight: PerStage = 1
    recompute: PerStage | None = None
    transfer: PerStage = 0

    def __post_init__(self) -> None:
        for name in ("forward", "backward_input", "backward_weight", "recompute", "transfer"):
            value = getattr(self, name)
            if value is None and name == "recompute":
                continue
            several = isinstance(value, Sequence) and not isinstance(value, str)
            for number in value if several else (value,):
                if not isinstance(number, (int, float, Fraction)):
                    raise TypeError(f"{name}={value!r} must be a number of seconds, or one number per stage")
                if not 0 <= number < inf:
                    raise ValueError(f"{name}={value!r} has a cost that is not finite and 0 or more: {number!r}")
            if several:
                object.__setattr__(self, name, tuple(value))

    def per_stage(self, stages: int) -> dict[Kind, list[Seconds]]:
        """For each kind of action, the seconds at each of `stages` stages.

        Raises:
            ValueError: a sequence has another length.
        """
        forward = _spread("forward", self.forward, stages, "stages")
        inputs = _spread("backward_input", self.backward_input, stages, "stages")
        weights = _spread("backward_weight", self.backward_weight, stages, "stages")
        again = forward if self.recompute is None else _spread("recompute", self.recompute, stages, "stages")
        return {
            FORWARD: forward,
            BACKWARD: [i + w for i, w in zip(inputs, weights, strict=True)],
            BACKWARD_INPUT: inputs,
            BACKWARD_WEIGHT: weights,
            RECOMPUTE: again,
        }

    def per_hop(self, stages: int) -> list[Seconds]:
        """The seconds of each of the `stages` − 1 hops, if its ends are on different ranks."""
        return _spread("transfer", self.transfer, stages - 1, "hops")


def _spread(name: str, value: PerStage, count: int, of: str) -> list[Seconds]:
    if not isinstance(value, Sequence):
        return [value] * count
    if len(value) != count:
        raise ValueError(f"{name} has {len(value)} numbers, but the schedule has {count} {of}")
    return list(value)
