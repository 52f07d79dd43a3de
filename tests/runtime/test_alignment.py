"""Clocks of other processes: the estimate is never further off than it says."""

import socket
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.runtime.failure import PipelineFailure
from headrace.runtime.process import alignment
from headrace.runtime.process.alignment import Alignment, RoundTrip, nearest
from headrace.runtime.transport.distributed.alarm import Alarm
from headrace.timeline import ClockOffset

DELAYS = st.integers(0, 10**6)


@given(st.integers(-(10**9), 10**9), st.lists(st.tuples(DELAYS, DELAYS, DELAYS), min_size=1))
def test_the_offset_is_known_to_the_stated_error_whatever_the_ways_take(
    offset: int, trips: list[tuple[int, int, int]]
) -> None:
    made = [
        RoundTrip(at / 2**20, (at + there + offset) / 2**20, (at + there + back) / 2**20) for at, there, back in trips
    ]  # exact in binary
    found = nearest(made)
    assert abs(found.offset - offset / 2**20) <= found.error
    assert found.error == min(there + back for _, there, back in trips) / 2**21


class Clocks:
    """This process's clock, and one of rank 0 that is 50 s ahead and gains 80 µs per second; a trip takes 2 ms."""

    def __init__(self) -> None:
        self.now = 10.0
        self.trips = 0

    def theirs(self, moment: float) -> float:
        return moment + 50 + 8e-5 * moment

    def ask(self) -> RoundTrip:
        before = self.now
        self.now += 0.002
        self.trips += 1
        return RoundTrip(before, self.theirs(before + 0.0003), self.now)


def test_it_measures_again_when_that_is_a_while_ago(monkeypatch: pytest.MonkeyPatch) -> None:
    clocks = Clocks()
    monkeypatch.setattr(alignment, "perf_counter", lambda: clocks.now)
    found = Alignment(clocks.ask)
    at_first = clocks.trips
    for pause in (0.5, 0.2, 0.9, 3.0, 400.0):
        begin = clocks.now
        clocks.now += pause
        offset = found.since(begin)
        for moment in (begin, clocks.now):
            assert abs(moment + offset.offset - clocks.theirs(moment)) <= offset.error
        assert offset.error < 0.001 + 1e-4 * (2 + pause)
    assert clocks.trips - at_first < at_first
    asked = clocks.trips
    assert found.since(float("inf")) == found.since(clocks.now)  # nothing has happened
    assert clocks.trips == asked


@pytest.fixture
def alarm() -> Iterator[Alarm]:
    alone = Alarm(0, 1, lambda value: value)
    yield alone
    alone.close()


def test_the_switchboard_knows_what_time_it_is(alarm: Alarm) -> None:
    for _ in range(3):
        before, theirs, after = alarm.ask_the_time()
        assert before <= theirs <= after  # it is this very clock
    found = Alignment(alarm.ask_the_time).since(0.0)
    assert abs(found.offset) <= found.error
    assert isinstance(found, ClockOffset)


def test_nobody_waits_for_a_clock_that_is_gone(alarm: Alarm) -> None:
    alarm._line.socket.shutdown(socket.SHUT_RDWR)
    for _ in range(2):
        with pytest.raises(PipelineFailure, match="rank 0"):
            alarm.ask_the_time()
