"""What each action waited for last, and the chain of such waits that makes a step as long as it is.

    rank 0  [ 0F0 ][ 0F1 ]··········[ 0B0   ]──[ 0B1   ]      1F0 waited for a message from 0F0,
                ╲                  ╱                          1B0 for the rank itself, which ran 1F0,
    rank 1  ·····[ 1F0 ]──[ 1B0   ]…                          0B0 for a message from 1B0, 0B1 for the rank

An action begins when the action before it on its rank has ended and the messages that it needs are there. Whichever
came last is what it waited for: had that been earlier, so would it have been. Following this from the last end of the
step leads back to its begin, along its critical path. Both need nothing but a timeline, simulated or measured.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from headrace.costs import Seconds
from headrace.schedule.actions import UPDATE, Action
from headrace.schedule.dependencies import Dependencies
from headrace.schedule.schedule import Schedule
from headrace.timeline import Timeline


class Place(NamedTuple):
    """Which span of a timeline: number `at` of the track of `rank`."""

    rank: int
    at: int


Waits = tuple[tuple[Place | None, ...], ...]
"""For each track, what each of its spans waited for last; None for what waited for nothing."""


def waits(timeline: Timeline, schedule: Schedule, slack: Seconds = 0) -> Waits:
    """What each span of a step of `schedule` waited for last: the span before it on its rank, or one that sent to it.

    A rank that stood idle before an action has waited for a message, if the action needs one. The two actions of an
    overlapped pair begin at once and have waited for the same: of two messages, for the one that was sent last.

    Args:
        timeline: of a step, simulated or measured.
        schedule: of it.
        slack: how long a rank may stand idle between two actions without having waited: nothing in a simulation, in a
            measured step about the latency of a message. What ended while the rank stood idle it has waited for anyway.
    """
    return _Finder(timeline, schedule, slack).all()


def critical_path(timeline: Timeline, found: Waits) -> tuple[Place, ...]:
    """The chain of spans, each of which waited for the one before it, that leads to the last end of the step.

    Args:
        timeline: of a step.
        found: its `waits`.
    """
    ends = ((track.ends[-1], rank) for rank, track in enumerate(timeline.tracks) if track.ends)
    _, rank = max(ends, default=(0, -1))
    if rank < 0:
        return ()
    place: Place | None = Place(rank, len(timeline.tracks[rank].ends) - 1)
    chain: list[Place] = []
    while place is not None:
        chain.append(place)
        place = found[place.rank][place.at]
    return tuple(reversed(chain))


class _Finder:
    def __init__(self, timeline: Timeline, schedule: Schedule, slack: Seconds) -> None:
        self._tracks = timeline.tracks
        self._schedule = schedule
        self._slack = slack
        self._dependencies = Dependencies(schedule.rows, schedule.stages, schedule.segments, schedule.pairs)
        self._places = [
            {action: Place(rank, index) for index, action in enumerate(track.actions)}
            for rank, track in enumerate(timeline.tracks)
        ]
        self._anywhere: Mapping[Action, Place] = {a: place for places in self._places for a, place in places.items()}

    def all(self) -> Waits:
        return tuple(tuple(self._of_track(rank)) for rank in range(len(self._tracks)))

    def _of_track(self, rank: int) -> Iterator[Place | None]:
        track = self._tracks[rank]
        last: Place | None = None
        for index, (start, action) in enumerate(zip(track.starts, track.actions, strict=True)):
            if not index or start >= track.ends[index - 1]:  # otherwise it runs beside the one before it
                last = self._of(rank, index, start, action)
            yield last

    def _of(self, rank: int, index: int, start: Seconds, action: Action) -> Place | None:
        before = Place(rank, index - 1) if index else None
        free = self._end(before) if before is not None else 0
        senders = [place for place in self._needs(rank, action) if place.rank != rank]
        if not senders:
            return before
        in_time = [place for place in senders if self._end(place) <= start]  # clocks of ranks may differ a little
        last = max(in_time or senders, key=self._end)
        return last if before is None or self._end(last) > free or start - free > self._slack else before

    def _needs(self, rank: int, action: Action) -> Iterator[Place]:
        if action.kind == UPDATE and not self._schedule.asynchronous:
            yield from self._held_up_by(rank, action)
            return
        for other in self._dependencies.of(action):
            if other in self._anywhere:
                yield self._anywhere[other]

    def _held_up_by(self, rank: int, action: Action) -> Iterator[Place]:
        """At the end of a synchronous step replicas reduce together, so each waits until the others have come to it."""
        for other in self._schedule.placement.replicas_of(action.stage):
            place = self._places[other].get(action)
            if other != rank and place is not None and place.at:
                yield Place(other, place.at - 1)

    def _end(self, place: Place) -> Seconds:
        return self._tracks[place.rank].ends[place.at]
