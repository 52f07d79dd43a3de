"""Clocks of processes that share none: how far this one is from that of rank 0, as NTP finds out.

    rank 0     ─────────── theirs ───────────▶      somewhere between `before` and `after`: in the middle,
                         ╱        ╲                  give or take half of the round trip
    this rank  ── before           after ────▶

The fastest of several round trips tells most. Clocks also drift: what was measured a while ago is worth less.
"""

from collections.abc import Callable
from time import perf_counter
from typing import Final, NamedTuple

from headrace.timeline import ClockOffset

_TRIPS_AT_FIRST: Final = 32
_TRIPS_LATER: Final = 8
_FRESH: Final = 1.0
_DRIFT: Final = 1e-4
"""Seconds per second that two clocks drift apart at most; quartz clocks are good to half of it, each."""


class RoundTrip(NamedTuple):
    """A question to rank 0 what time it is: its clock, and ours before and after."""

    before: float
    theirs: float
    after: float


def nearest(trips: list[RoundTrip]) -> ClockOffset:
    """What the fastest of `trips` says."""
    before, theirs, after = min(trips, key=lambda trip: trip.after - trip.before)
    return ClockOffset(theirs - (before + after) / 2, (after - before) / 2)


class Alignment:
    """What turns the clock of this process into that of rank 0; measured now, and again when that is a while ago.

    Args:
        ask: makes a round trip.
    """

    def __init__(self, ask: Callable[[], RoundTrip]) -> None:
        self._ask = ask
        self._measure(_TRIPS_AT_FIRST)

    def since(self, begin: float) -> ClockOffset:
        """For moments from `begin` until now; raises what `ask` raises."""
        if perf_counter() - self._at > _FRESH:
            self._measure(_TRIPS_LATER)
        away = max(perf_counter() - self._at, self._at - begin)
        return self._offset._replace(error=self._offset.error + _DRIFT * away)

    def _measure(self, trips: int) -> None:
        self._offset = nearest([self._ask() for _ in range(trips)])
        self._at = perf_counter()
