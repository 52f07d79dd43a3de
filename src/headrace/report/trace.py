"""A step of a run in the trace event format, for https://ui.perfetto.dev or chrome://tracing.

    rank 0 measured    compute   [0F0][0F1]        [0B0  ]
                       send           ▪╮   ▪╮      │
                       receive         │  ░░│░░░░░▶╯
    rank 0 predicted   …               │    │
    rank 1 measured    receive   ░░░░░░╰▶░░░╰▶                 an arrow from each send to its receive

One process per rank and origin, so that predicted and measured are neighbours. Slices that overlap (the two of a pair,
messages that queue for a link) get a track more, since the slices of one track may not.

Moments are whole nanoseconds, written in microseconds as the format wants: so a slice ends exactly where the next one
of its track begins.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import count
from operator import itemgetter
from typing import Any, Final, NamedTuple

from headrace.costs import Seconds
from headrace.planner.run_timelines import RunTimelines
from headrace.schedule.actions import KIND_NAMES, Kind
from headrace.timeline import Span, Timeline, Transfer
from headrace.units import seconds

Event = dict[str, Any]

_ORIGINS: Final = ("measured", "predicted")
_COLOURS: Final[dict[Kind, str]] = {
    "F": "thread_state_running",
    "B": "rail_animation",
    "I": "thread_state_runnable",
    "W": "rail_response",
    "R": "thread_state_iowait",
    "U": "grey",
}
"""Names of colours that chrome://tracing knows; Perfetto chooses its own, by the name of a slice."""


class _Slice(NamedTuple):
    name: str
    category: str
    colour: str
    start: Seconds
    end: Seconds
    about: dict[str, Any]
    arrow: tuple[str, int] | None = None  # "s" at its start or "f" at its end, and which


def as_trace(run: RunTimelines) -> dict[str, Any]:
    """The object to be written as JSON; moments in microseconds, from the first moment of either timeline."""
    timelines = (run.measured, run.predicted)
    origin = min([0.0, *(min(t.sent, t.asked) for each in timelines for t in each.transfers)])
    threads, arrows = count(1), count(1)
    named: list[Event] = []
    happened: list[tuple[int, int, Event]] = []
    for order, (which, timeline) in enumerate(zip(_ORIGINS, timelines, strict=True)):
        tracks = _tracks(timeline, arrows)
        for rank in range(timeline.ranks):
            process = 1 + len(_ORIGINS) * rank + order
            labels = _labels(timeline, rank)
            named += _names(process, f"rank {rank} {which}", process, labels)
            for track, slices in tracks[rank].items():
                for lane, of_lane in enumerate(_lanes(slices)):
                    thread = next(threads)
                    named += _names(process, track if not lane else f"{track} {lane + 1}", thread, thread=thread)
                    happened += (event for each in of_lane for event in _events(each, process, thread, origin))
    happened.sort(key=itemgetter(0, 1))
    return {
        "traceEvents": [*named, *(event for _, _, event in happened)],
        "displayTimeUnit": "ms",
        "otherData": {
            "schedule": run.schedule,
            "clocks": [
                {"rank": rank, "offset_us": 1e6 * clock.offset, "error_us": 1e6 * clock.error}
                for rank, clock in enumerate(run.measured.clocks)
            ],
        },
    }


def _tracks(timeline: Timeline, arrows: Iterator[int]) -> list[dict[str, list[_Slice]]]:
    """For each rank, what it computes, sends and receives."""
    tracks: list[dict[str, list[_Slice]]] = [{"compute": [], "send": [], "receive": []} for _ in range(timeline.ranks)]
    for span in timeline.spans:
        tracks[span.rank]["compute"].append(_computed(span))
    for transfer, arrow in zip(timeline.transfers, arrows, strict=False):
        tracks[transfer.sender]["send"].append(_sent(transfer, arrow))
        tracks[transfer.receiver]["receive"] += _received(transfer, arrow)
    return tracks


def _computed(span: Span) -> _Slice:
    stage, kind, k = span.action
    about = {"stage": stage, "kind": KIND_NAMES[kind], "micro_batch": k}
    return _Slice(str(span.action), KIND_NAMES[kind], _COLOURS[kind], span.start, span.end, about)


def _sent(transfer: Transfer, arrow: int) -> _Slice:
    about = {**_about(transfer), "to_rank": transfer.receiver}
    return _Slice(
        f"{_text(transfer)} to rank {transfer.receiver}", "send", "good", transfer.sent, transfer.left, about,
        ("s", arrow),
    )  # fmt: skip


def _received(transfer: Transfer, arrow: int) -> Iterator[_Slice]:
    """The wait until it was sent, where there was one, and what then was left of its way.

    Apart, since a viewer draws an arrow to where a slice begins, and takes the one that begins first for its origin.
    """
    about = {**_about(transfer), "from_rank": transfer.sender}
    comes = min(max(transfer.asked, transfer.sent), transfer.got)  # clocks of two hosts agree only so well
    if comes > transfer.asked:
        yield _Slice(f"wait for rank {transfer.sender}", "wait", "terrible", transfer.asked, comes, about)
    under_way = {"us_since_it_was_sent": 1e6 * float(transfer.got - transfer.sent)}
    yield _Slice(
        f"{_text(transfer)} from rank {transfer.sender}", "receive", "bad", comes, transfer.got, about | under_way,
        ("f", arrow),
    )  # fmt: skip


def _text(transfer: Transfer) -> str:
    what, _, k = transfer.message
    return f"{what} {k}"


def _about(transfer: Transfer) -> dict[str, Any]:
    what, stage, k = transfer.message
    return {"message": what, "for_stage": stage, "micro_batch": k}


def _lanes(slices: Iterable[_Slice]) -> list[list[_Slice]]:
    """The slices, apart from those that they overlap with; at least one lane, be it empty."""
    lanes: list[list[_Slice]] = [[]]
    for each in sorted(slices, key=lambda s: s.start):
        free = next((lane for lane in lanes if not lane or lane[-1].end <= each.start), None)
        if free is None:
            lanes.append([each])
        else:
            free.append(each)
    return lanes


def _events(slice_: _Slice, process: int, thread: int, origin: Seconds) -> Iterator[tuple[int, int, Event]]:
    """The slice, then its arrow's end, each with its moment and its turn among what happens at that moment.

    A tail comes before its head, or Perfetto drops the arrow; and between a slice and its arrow comes no other slice of
    their track, or the arrow is taken for that one's.
    """
    start, end = _nanoseconds(slice_.start - origin), _nanoseconds(slice_.end - origin)
    turn = 2 if slice_.category in ("wait", "receive") else 0
    place = {"pid": process, "tid": thread}
    yield start, turn, {
        "ph": "X", "name": slice_.name, "cat": slice_.category, "cname": slice_.colour, **place,
        "ts": start / 1e3, "dur": (end - start) / 1e3, "args": slice_.about,
    }  # fmt: skip
    if slice_.arrow is not None:
        phase, number = slice_.arrow
        arrow = {"ph": phase, "name": "message", "cat": "message", "id": number, **place}
        if phase == "s":
            yield start, turn, {**arrow, "ts": start / 1e3}
        else:
            # "bp" ties the head to the slice around it: otherwise it would be the next one
            yield end, turn if end == start else 1, {**arrow, "bp": "e", "ts": end / 1e3}


def _names(process: int, name: str, order: int, labels: str = "", thread: int | None = None) -> Iterator[Event]:
    """What the viewer calls a process, or one of its threads, and where it puts it."""
    of = "process" if thread is None else "thread"
    place = {"ph": "M", "pid": process, "tid": thread or 0}
    yield {**place, "name": f"{of}_name", "args": {"name": name}}
    yield {**place, "name": f"{of}_sort_index", "args": {"sort_index": order}}
    if labels:
        yield {**place, "name": "process_labels", "args": {"labels": labels}}


def _labels(timeline: Timeline, rank: int) -> str:
    """How well the clock of `rank` agrees with that of rank 0, where that is not the same one."""
    clocks: Sequence[Any] = timeline.clocks
    return f"clock ± {seconds(clocks[rank].error)}" if clocks and clocks[rank].error else ""


def _nanoseconds(moment: Seconds) -> int:
    return round(1e9 * float(moment))
