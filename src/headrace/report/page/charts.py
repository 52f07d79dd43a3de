"""Timelines, bytes and losses as the scripts of a page want them: plain data, see the first comment of each script."""

from collections.abc import Iterable, Sequence
from itertools import accumulate
from math import floor, log10
from typing import Any, Final

from headrace.costs import Bytes, Memory, Seconds
from headrace.report.breakdown import Breakdown
from headrace.schedule.schedule import Schedule
from headrace.simulate.critical_path import Place, Waits, critical_path
from headrace.simulate.memory import memory_over_time
from headrace.timeline import Timeline

_DIGITS: Final = 8  # of the makespan: finer than any screen, and half the size of a float
_MOST_POINTS: Final = 1000  # of a curve


def gantt_chart(title: str, timeline: Timeline, schedule: Schedule, waited: Waits) -> dict[str, Any]:
    """A chart for `Gantt.draw` in gantt.js.

    Args:
        title: what stands above it.
        timeline, schedule: of a step.
        waited: its `waits`.
    """
    offsets = [0, *accumulate(len(track.actions) for track in timeline.tracks)]
    critical = set(critical_path(timeline, waited))

    def number(place: Place | None) -> int:
        return -1 if place is None else offsets[place.rank] + place.at

    digits = _digits(timeline.makespan)
    return {
        "title": title,
        "end": float(timeline.makespan),
        "segments": schedule.segments,
        "tracks": [
            {
                "name": rank_name(rank),
                "actions": list(map(str, track.actions)),
                "starts": _rounded(track.starts, digits),
                "ends": _rounded(track.ends, digits),
                "waits": list(map(number, waited[rank])),
                "critical": [int(Place(rank, at) in critical) for at in range(len(track.actions))],
            }
            for rank, track in enumerate(timeline.tracks)
        ],
    }


def memory_chart(
    timeline: Timeline, schedule: Schedule, memory: Memory, limits: Sequence[Bytes] | None
) -> dict[str, Any]:
    """What `Memory.draw` in memory.js draws.

    Args:
        timeline, schedule: of a step.
        memory: what its stages hold.
        limits: bytes that each rank can hold, if that is known.
    """
    digits = _digits(timeline.makespan)
    held = memory_over_time(timeline, schedule, memory)
    return {
        "end": float(timeline.makespan),
        "ranks": [
            {
                "name": rank_name(rank),
                "points": [[round(float(moment), digits), round(now)] for moment, now in of_rank],
                "limit": None if limits is None else limits[rank],
            }
            for rank, of_rank in enumerate(held)
        ],
    }


def breakdown_group(title: str, found: Iterable[Breakdown]) -> dict[str, Any]:
    """One group for `Breakdown.draw` in breakdown.js."""
    ranks = [
        {"name": rank_name(rank), "parts": {part: float(seconds) for part, seconds in parts.items()}}
        for rank, parts in enumerate(found)
    ]
    return {"title": title, "ranks": ranks}


def curve_line(name: str, points: Sequence[tuple[float, float]]) -> dict[str, Any]:
    """One line for `Curve.draw` in curve.js; of very many points, every so many and the last."""
    every = -(-len(points) // _MOST_POINTS) or 1
    return {"name": name, "points": [list(point) for point in [*points[:-1:every], *points[-1:]]]}


def rank_name(rank: int) -> str:
    """How a page calls a rank."""
    return f"rank {rank}"


def _digits(makespan: Seconds) -> int:
    return _DIGITS - floor(log10(makespan)) if makespan > 0 else _DIGITS


def _rounded(moments: Iterable[Seconds], digits: int) -> list[float]:
    return [round(float(moment), digits) for moment in moments]
