"""Costs read off a measured timeline, so that a real step can be simulated again, with or without what slowed it down.

rank 0   … [ 0F3 ]                            a rank that has waited for a message starts when that arrives: the time
rank 1        ····┊─▶[ 1F3 ] …                since its sender's end is what a message takes, waking up included
                  latency
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from statistics import median

from headrace.costs import Costs, Seconds
from headrace.schedule.actions import BACKWARD, BACKWARD_INPUT, BACKWARD_WEIGHT, Action, Kind
from headrace.schedule.dependencies import Dependencies
from headrace.schedule.schedule import Schedule
from headrace.timeline import Timeline, Track

_EMPTY = 0.1  # of the I: a W that is shorter had nothing left to do

ByKind = Mapping[tuple[int, Kind], Seconds]
"""For each (stage, kind), the seconds of one action."""


@dataclass(frozen=True)
class MeasuredCosts(Costs):
    """Costs of which the seconds of some (stage, kind) are known by themselves: here a B need not be I + W.

    Attributes:
        known: those seconds; all others follow from the costs.
    """

    known: ByKind = field(default_factory=dict)

    @classmethod
    def of(cls, costs: Costs, known: ByKind) -> "MeasuredCosts":
        """`costs`, but for what is known."""
        return cls(**{item.name: getattr(costs, item.name) for item in fields(Costs)}, known=known)

    def per_stage(self, stages: int) -> dict[Kind, list[Seconds]]:
        """See `Costs`."""
        found = {kind: list(each) for kind, each in super().per_stage(stages).items()}
        for (stage, kind), seconds in self.known.items():
            found[kind][stage] = seconds
        return found


def as_it_ran(schedule: Schedule, timeline: Timeline) -> tuple[Schedule, Timeline]:
    """The schedule and the timeline of a step with every I that did the work of the W behind it written as B.

    The runtime splits no backward between whose halves nothing else is done: `1I0 1W0` runs as `1B0`, the span of W is
    empty, and the gradient leaves at the end of the whole.

    Args:
        schedule: what the step was to do.
        timeline: of the step, with the rows of `schedule`.
    """
    rows, tracks = [], []
    for track in timeline.tracks:
        spans: list[tuple[Action, Seconds, Seconds]] = []
        for action, start, end in zip(*track, strict=True):
            whole = spans and _whole(*spans[-1], action, end - start)
            spans[-1:] = [whole] if whole else [*spans[-1:], (action, start, end)]
        columns = tuple(zip(*spans, strict=True)) or ((), (), ())
        tracks.append(Track(*columns))
        rows.append(columns[0])
    return replace(schedule, rows=tuple(rows)), Timeline.from_tracks(tracks)


def _whole(
    half: Action, start: Seconds, end: Seconds, other: Action, rest: Seconds
) -> tuple[Action, Seconds, Seconds] | None:
    """The backward that an I was, if the W behind it took next to no time."""
    adjacent = half.kind == BACKWARD_INPUT and other == half._replace(kind=BACKWARD_WEIGHT)
    return (half._replace(kind=BACKWARD), start, end) if adjacent and rest < _EMPTY * (end - start) else None


def seconds_of(timeline: Timeline) -> dict[tuple[int, Kind], Seconds]:
    """The median of each (stage, kind), which a few disturbed actions do not move."""
    found: dict[tuple[int, Kind], list[Seconds]] = {}
    for track in timeline.tracks:
        for action, start, end in zip(*track, strict=True):
            found.setdefault((action.stage, action.kind), []).append(end - start)
    return {key: median(each) for key, each in sorted(found.items())}


def latency_of(schedule: Schedule, timeline: Timeline) -> Seconds:
    """The median of what messages took for which a rank has waited; 0 if none did.

    Args:
        schedule, timeline: as the step ran.
    """
    waits = Dependencies(schedule.rows, schedule.stages, schedule.segments, schedule.pairs)
    ended: dict[Action, tuple[int, Seconds]] = {}
    for rank, track in enumerate(timeline.tracks):
        ended.update({action: (rank, end) for action, end in zip(track.actions, track.ends, strict=True)})
    found: list[Seconds] = []
    for rank, track in enumerate(timeline.tracks):
        free: Seconds = 0
        for action, start, end in zip(*track, strict=True):
            sent = [ended[other][1] for other in waits.of(action) if ended.get(other, (rank, 0))[0] != rank]
            if sent and max(sent) >= free:
                found.append(max(0.0, start - max(sent)))
            free = end
    return median(found) if found else 0.0
