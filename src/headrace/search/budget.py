"""How long a search may go on: for so many seconds, or, so that results repeat, for so much work."""

from collections.abc import Callable
from math import inf
from time import perf_counter

# Actions played: about a second on one core.
_WORK = 1_200_000
# Before an exact search, which makes up for it.
_LITTLE_WORK = 200_000


class Budget:
    """Started when it is made.

    Args:
        seconds: the limit; None for none but the amount of work.
        exact: whether an exact search is to follow, for which time must be left.
    """

    def __init__(self, seconds: float | None, exact: bool = False) -> None:
        self.limit = seconds
        self._start = perf_counter()
        self._work: float = inf if seconds is not None and not exact else _LITTLE_WORK if exact else _WORK
        self._seconds = inf if seconds is None else seconds / 4 if exact else seconds

    @property
    def seconds(self) -> float:
        """How long it has been going on."""
        return perf_counter() - self._start

    @property
    def left(self) -> float | None:
        """Seconds until the limit, 0 if it is past; None if there is none."""
        return None if self.limit is None else max(0.0, self.limit - self.seconds)

    def share(self, part: float) -> Callable[[int], bool]:
        """Asked with an amount of work, whether it may still be done, if `part` of the budget is used from now on."""
        until = min(self._seconds, self.seconds + part * self._seconds)
        left = part * self._work

        def spend(work: int) -> bool:
            nonlocal left
            left -= work
            return left >= 0 and self.seconds < until

        return spend
