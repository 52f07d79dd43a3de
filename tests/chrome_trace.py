"""A strict reader of the trace event format, as far as Headrace writes it: what a viewer could stumble over fails."""

import json
from dataclasses import dataclass
from typing import Any

_PLACE = {"ph", "name", "pid", "tid"}
_KEYS = {
    "M": _PLACE | {"args"},
    "X": _PLACE | {"cat", "cname", "ts", "dur", "args"},
    "s": _PLACE | {"cat", "ts", "id"},
    "f": _PLACE | {"cat", "ts", "id", "bp"},
}


@dataclass(frozen=True)
class Slice:
    """Moments in nanoseconds."""

    process: str
    track: str
    name: str
    start: int
    end: int
    args: dict[str, Any]


@dataclass(frozen=True)
class Arrow:
    tail: Slice
    head: Slice


@dataclass(frozen=True)
class Trace:
    slices: list[Slice]
    arrows: list[Arrow]
    labels: dict[str, str]
    """By process."""


def read(text: str, slack: float = 0.0) -> Trace:
    """The trace in a file.

    Args:
        text: of the file.
        slack: seconds by which an arrow may point backwards, where clocks agree no better.
    """
    data = json.loads(text, parse_constant=_refuse_constant)
    assert set(data) == {"traceEvents", "displayTimeUnit", "otherData"}
    assert data["displayTimeUnit"] == "ms"
    events = data["traceEvents"]
    for event in events:
        assert set(event) == _KEYS[event["ph"]], event
        assert isinstance(event["name"], str)
        assert event["name"]
        assert all(type(event[key]) is int and event[key] >= 0 for key in ("pid", "tid"))
        assert event["pid"] > 0
    names = [event for event in events if event["ph"] == "M"]
    happened = [event for event in events if event["ph"] != "M"]
    assert events == [*names, *happened], "names come first"
    assert [event["ts"] for event in happened] == sorted(event["ts"] for event in happened)
    processes = _named("process", names, {event["pid"] for event in events})
    threads = _named("thread", names, {(event["pid"], event["tid"]) for event in happened})
    assert len({thread for _, thread in threads}) == len(threads), "threads of one number in several processes"
    ends: dict[int, int] = {}
    last: dict[int, Slice] = {}
    slices: list[Slice] = []
    tails: dict[int, Slice] = {}
    heads: dict[int, Slice] = {}
    for event in happened:
        place, moment = (event["pid"], event["tid"]), _nanoseconds(event["ts"])
        assert moment >= 0
        if event["ph"] == "X":
            assert event["dur"] >= 0
            assert moment >= ends.get(event["tid"], 0), f"{event} begins before the slice before it ends"
            end = moment + _nanoseconds(event["dur"])
            found = Slice(processes[event["pid"]], threads[place], event["name"], moment, end, event["args"])
            ends[event["tid"]], last[event["tid"]] = end, found
            slices.append(found)
        else:
            assert (event["name"], event["cat"]) == ("message", "message")
            found = last[event["tid"]]
            ends_of = tails if event["ph"] == "s" else heads
            assert event["id"] not in ends_of, "two arrows of one number"
            assert event["ph"] == "s" or event["id"] in tails, "a head before its tail, which Perfetto drops"
            ends_of[event["id"]] = found
            if event["ph"] == "f":
                assert event["bp"] == "e"
            assert moment == (found.start if event["ph"] == "s" else found.end), "an arrow beside its slice"
    assert tails.keys() == heads.keys(), "an arrow without its other end"
    arrows = [Arrow(tails[number], heads[number]) for number in tails]
    for arrow in arrows:
        _check(arrow, slack)
    assert {id(slice_) for slice_ in slices if not slice_.track.startswith("compute") and not waits(slice_)} == {
        id(slice_) for arrow in arrows for slice_ in (arrow.tail, arrow.head)
    }, "a message without an arrow"
    labels = {processes[e["pid"]]: e["args"]["labels"] for e in names if e["name"] == "process_labels"}
    return Trace(slices, arrows, labels)


def waits(slice_: Slice) -> bool:
    """Whether it is the wait before a message is on its way, not the message."""
    return slice_.name.startswith("wait for rank ")


def _check(arrow: Arrow, slack: float) -> None:
    """It goes from a send to the receive of the same message, and not back in time."""
    tail, head = arrow.tail, arrow.head
    (_, sender, origin), (_, receiver, same_origin) = tail.process.split(), head.process.split()
    assert origin == same_origin
    assert sender != receiver
    assert (tail.track.split()[0], head.track.split()[0]) == ("send", "receive")
    assert (tail.args["to_rank"], head.args["from_rank"]) == (int(receiver), int(sender))
    for key in ("message", "for_stage", "micro_batch"):
        assert tail.args[key] == head.args[key]
    assert head.end >= tail.start - 1e9 * slack
    assert head.start >= tail.start - 1e9 * slack, "Perfetto takes what begins first for the tail"


def _named(what: str, names: list[dict[str, Any]], used: set[Any]) -> dict[Any, str]:
    """Each has one name and one place in the order."""
    found: dict[str, dict[Any, Any]] = {"name": {}, "sort_index": {}}
    for event in names:
        about = event["name"].removeprefix(f"{what}_")
        if event["name"].startswith(what) and about in found:
            key = event["pid"] if what == "process" else (event["pid"], event["tid"])
            assert list(event["args"]) == [about]
            assert key not in found[about]
            found[about][key] = event["args"][about]
    assert found["name"].keys() == found["sort_index"].keys() >= used
    assert len(set(found["sort_index"].values())) == len(found["sort_index"])
    if what == "process":
        assert len(set(found["name"].values())) == len(found["name"])
    return found["name"]


def _nanoseconds(microseconds: float) -> int:
    nanoseconds = round(1e3 * microseconds)
    assert abs(1e3 * microseconds - nanoseconds) < 1e-2, f"{microseconds} is no whole number of nanoseconds"
    return nanoseconds


def _refuse_constant(name: str) -> None:
    raise AssertionError(f"{name} is no JSON")
