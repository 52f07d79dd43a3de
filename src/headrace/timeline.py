"""What happened when: the one type that simulated and measured runs both end in.

Charts, metrics and comparisons read only this, so "predicted against measured" is a subtraction.
"""

from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from operator import itemgetter
from typing import Any, NamedTuple

from headrace.schedule.actions import ENDS_BACKWARD, FORWARD, Action


class Span(NamedTuple):
    """One action of one rank from `start` to `end`, in seconds since the step began."""

    rank: int
    action: Action
    start: float
    end: float


@dataclass(frozen=True)
class Timeline:
    """The spans of one step.

    Attributes:
        ranks: how many ranks there are, those without a span included.
        spans: rank by rank, each rank's in the order in which it ran them.
    """

    ranks: int
    spans: tuple[Span, ...]

    @cached_property
    def makespan(self) -> float:
        """Seconds from 0 to the last end on any rank."""
        return max((span.end for span in self.spans), default=0)

    @cached_property
    def busy(self) -> tuple[float, ...]:
        """Per rank, the seconds in which it runs an action."""
        busy: list[float] = [0] * self.ranks
        for rank, _, start, end in self.spans:
            busy[rank] += end - start
        return tuple(busy)

    @property
    def bubble_fraction(self) -> float:
        """Idle time of all ranks ÷ (ranks × makespan); 0 for an empty timeline."""
        whole = self.ranks * self.makespan
        return (whole - sum(self.busy)) / whole if whole else 0

    @cached_property
    def peak_in_flight(self) -> tuple[int, ...]:
        """Per rank, the most (stage, micro-batch) pairs in flight: F begun, last backward part not ended."""
        changes: list[list[tuple[float, int]]] = [[] for _ in range(self.ranks)]
        for rank, action, start, end in self.spans:
            if action.kind == FORWARD:
                changes[rank].append((start, 1))
            elif action.kind in ENDS_BACKWARD:
                changes[rank].append((end, -1))
        return tuple(_peak(of_rank) for of_rank in changes)

    def as_data(self) -> list[dict[str, Any]]:
        """The spans as plain data, for JSON: rank, action (such as "2F0"), start and end in seconds."""
        return [
            {"rank": rank, "action": str(action), "start": start, "end": end} for rank, action, start, end in self.spans
        ]

    def seconds_by_kind(self) -> dict[tuple[int, str], list[float]]:
        """For each (stage, kind), the durations of its actions, in seconds."""
        durations: dict[tuple[int, str], list[float]] = defaultdict(list)
        for _, action, start, end in self.spans:
            durations[action.stage, action.kind].append(end - start)
        return dict(durations)


def _peak(changes: list[tuple[float, int]]) -> int:
    """The largest running sum; what happens at one instant happens in the order of the rank's row."""
    now = peak = 0
    for _, change in sorted(changes, key=itemgetter(0)):
        now += change
        peak = max(peak, now)
    return peak
