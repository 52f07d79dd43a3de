"""Where the time of each rank went, in the words that people know from profilers.

    rank 1  ·····[ 1F0 ][ 1B0     ]···[ 1F1 ]…·······
            waiting  forward  backward  waiting   idle

It waits for a message; it is idle where it waits for nothing, as at the end, when it has nothing left to do. The parts
of a rank add up to the step.
"""

from collections.abc import Iterator, Sequence
from typing import Final, Literal, NamedTuple

from headrace.costs import Seconds
from headrace.schedule.actions import (
    BACKWARD,
    BACKWARD_INPUT,
    BACKWARD_WEIGHT,
    FORWARD,
    RECOMPUTE,
    UPDATE,
    Kind,
)
from headrace.simulate.critical_path import Place, Waits
from headrace.timeline import Timeline, Track

Part = Literal["forward", "backward", "weight", "recompute", "waiting", "idle", "optimizer"]
PARTS: Final[tuple[Part, ...]] = ("forward", "backward", "weight", "recompute", "waiting", "idle", "optimizer")

_PART_OF: Final[dict[Kind, Part]] = {
    FORWARD: "forward",
    BACKWARD: "backward",
    BACKWARD_INPUT: "backward",
    BACKWARD_WEIGHT: "weight",
    RECOMPUTE: "recompute",
    UPDATE: "optimizer",
}

Breakdown = dict[Part, Seconds]
"""Seconds of a rank by PARTS; they add up to the step."""


class _Piece(NamedTuple):
    part: Part
    seconds: Seconds


def breakdown(timeline: Timeline, waited: Waits) -> tuple[Breakdown, ...]:
    """For each rank, what it spent its time with, up to the last end of the step.

    A rank that stands idle before an action which has waited for another rank waits for a message; all other gaps are
    idle. While the two actions of an overlapped pair run, each of them counts half.

    Args:
        timeline: of a step.
        waited: its `waits`.
    """
    found = []
    for rank, (track, before) in enumerate(zip(timeline.tracks, waited, strict=True)):
        parts: Breakdown = dict.fromkeys(PARTS, 0)
        for part, seconds in _pieces(rank, track, before, timeline.makespan):
            parts[part] += seconds
        found.append(parts)
    return tuple(found)


def _pieces(rank: int, track: Track, before: Sequence[Place | None], end: Seconds) -> Iterator[_Piece]:
    free: Seconds = 0
    running: Part = "idle"
    for action, start, stop, place in zip(*track, before, strict=True):
        part = _PART_OF[action.kind]
        if start > free:
            yield _Piece("waiting" if place is not None and place.rank != rank else "idle", start - free)
        elif start < free:  # beside the one before it, which gives up half of what both share
            shared = min(free, stop) - start
            yield _Piece(running, shared / -2)
            yield _Piece(part, shared / 2)
        yield _Piece(part, max(stop - max(start, free), 0))
        free, running = max(free, stop), part
    yield _Piece("idle", end - free)
