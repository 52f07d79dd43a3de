"""What happened when: the one type that simulated and measured runs both end in.

Charts, metrics and comparisons read only this, so "predicted against measured" is a subtraction.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import cached_property
from operator import itemgetter
from typing import Any, NamedTuple

from headrace.schedule.actions import ENDS_BACKWARD, FORWARD, Action
from headrace.schedule.messages import Message


class Span(NamedTuple):
    """One action of one rank from `start` to `end`, in seconds since the step began."""

    rank: int
    action: Action
    start: float
    end: float


class Transfer(NamedTuple):
    """One message from a rank to another, in seconds since the step began.

        sender     [ 0F3 ]├─ sent … left ─┤            what the sender spends on it, or the link, where it is predicted
                              ╲
        receiver        ├─ asked ……… got ─┤[ 1F3 ]     no time at all if it was there before it was asked for

    `sent` is when it was handed to the transport, which queues what the link cannot take yet.
    """

    sender: int
    receiver: int
    message: Message
    sent: float
    left: float
    asked: float
    got: float


class ClockOffset(NamedTuple):
    """How the clock of a rank was read as that of rank 0, in seconds: `offset` was added to it.

    The moments of two ranks compare no better than to the sum of their errors.
    """

    offset: float
    error: float


class Track(NamedTuple):
    """What one rank did, as columns: a span is the same place in all three."""

    actions: Sequence[Action]
    starts: Sequence[float]
    ends: Sequence[float]


class Timeline:
    """The spans of one step, and the messages between its ranks where they are known.

    It can be read as spans or as one track per rank; whichever was not given is made when it is first read, as a
    million spans cost more than all that is computed from them.

    Args:
        ranks: how many ranks there are, those without a span included.
        spans: each rank's in the order in which it ran them.
        transfers: the messages between ranks, in the order in which they were sent.
        clocks: of a measured step, one per rank.

    Attributes:
        ranks, transfers, clocks: as given.
        spans: as given; of a timeline made from tracks, rank by rank.
        tracks: one per rank.
    """

    def __init__(
        self,
        ranks: int,
        spans: Iterable[Span] = (),
        transfers: Iterable[Transfer] = (),
        clocks: Iterable[ClockOffset] = (),
    ) -> None:
        self.ranks = ranks
        self.transfers = tuple(transfers)
        self.clocks = tuple(clocks)
        self.__dict__["spans"] = tuple(spans)

    @classmethod
    def from_tracks(cls, tracks: Iterable[Track], transfers: Iterable[Transfer] = ()) -> "Timeline":
        """The timeline of ranks that did `tracks`."""
        timeline = cls.__new__(cls)
        timeline.__dict__["tracks"] = tuple(tracks)
        timeline.ranks = len(timeline.tracks)
        timeline.transfers = tuple(transfers)
        timeline.clocks = ()
        return timeline

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Timeline) and self._all == other._all

    def __hash__(self) -> int:
        return hash(self._all)

    def __repr__(self) -> str:
        known = {"transfers": self.transfers, "clocks": self.clocks}
        more = "".join(f", {name}={value!r}" for name, value in known.items() if value)
        return f"Timeline(ranks={self.ranks}, spans={self.spans!r}{more})"

    @property
    def _all(self) -> tuple[Any, ...]:
        return self.ranks, self.spans, self.transfers, self.clocks

    @cached_property
    def spans(self) -> tuple[Span, ...]:
        return tuple(Span(rank, *span) for rank, track in enumerate(self.tracks) for span in zip(*track, strict=True))

    @cached_property
    def tracks(self) -> tuple[Track, ...]:
        columns: list[tuple[list[Action], list[float], list[float]]] = [([], [], []) for _ in range(self.ranks)]
        for rank, action, start, end in self.spans:
            actions, starts, ends = columns[rank]
            actions.append(action)
            starts.append(start)
            ends.append(end)
        return tuple(Track(*of_rank) for of_rank in columns)

    @cached_property
    def makespan(self) -> float:
        """Seconds from 0 to the last end on any rank."""
        return max((max(track.ends) for track in self.tracks if track.ends), default=0)

    @cached_property
    def busy(self) -> tuple[float, ...]:
        """Per rank, the seconds in which it runs an action; where two overlap they count once."""
        return tuple(map(_busy, self.tracks))

    @property
    def bubble_fraction(self) -> float:
        """Idle time of all ranks ÷ (ranks × makespan); 0 for an empty timeline."""
        whole = self.ranks * self.makespan
        return (whole - sum(self.busy)) / whole if whole else 0

    @cached_property
    def peak_in_flight(self) -> tuple[int, ...]:
        """Per rank, the most (stage, micro-batch) pairs in flight: F begun, last backward part not ended."""
        return tuple(map(_peak_in_flight, self.tracks))

    def as_data(self) -> list[dict[str, Any]]:
        """The spans as plain data, for JSON: rank, action (such as "2F0"), start and end in seconds."""
        return [
            {"rank": rank, "action": str(action), "start": start, "end": end} for rank, action, start, end in self.spans
        ]

    def seconds_by_kind(self) -> dict[tuple[int, str], list[float]]:
        """For each (stage, kind), the durations of its actions, in seconds."""
        durations: dict[tuple[int, str], list[float]] = defaultdict(list)
        for track in self.tracks:
            for action, start, end in zip(*track, strict=True):
                durations[action.stage, action.kind].append(end - start)
        return dict(durations)


def _busy(track: Track) -> float:
    """The length of the union of its spans."""
    busy: float = 0
    until: float = 0
    for start, end in zip(track.starts, track.ends, strict=True):
        if start >= until:
            busy += end - start
            until = end
        elif end > until:
            busy += end - until
            until = end
    return busy


def _peak_in_flight(track: Track) -> int:
    """The largest running sum; what happens at one instant happens in the order of the rank's row."""
    changes: list[tuple[float, int]] = []
    for (_, kind, _), start, end in zip(*track, strict=True):
        if kind == FORWARD:
            changes.append((start, 1))
        elif kind in ENDS_BACKWARD:
            changes.append((end, -1))
    changes.sort(key=itemgetter(0))
    now = peak = 0
    for _, change in changes:
        now += change
        peak = max(peak, now)
    return peak
