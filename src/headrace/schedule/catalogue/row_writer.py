"""Write a row as its paper writes it: "F1 I1 W1" so many times, and the micro-batches number themselves.

    row = RowWriter((0, range(4)), (3, range(4)))     rank 0 of 2 with stages 0 and 3, for 4 micro-batches
    row.write("F0", times=3)                          0F0 0F1 0F2
    row.write("F1 I1 W1")                             3F0 3I0 3W0
    row.write("F0&B1")                                (0F3;3B1)        overlapped
    row.write("F0")                                   nothing: all micro-batches have been

So a row for many micro-batches, written out for few, leaves out those that do not exist; what remains is in the same
order, hence as free of deadlocks (a W may come earlier, but never before its I).
"""

from collections import deque
from typing import cast

from headrace.schedule.actions import BACKWARD_INPUT, BACKWARD_WEIGHT, FORWARD, Action, Kind


class RowWriter:
    """One rank's row under way.

    Attributes:
        row: the actions so far.
        pairs: those forwards among them that overlap with the backward behind them.

    Args:
        chunks: for each stage that the rank runs, its number and its micro-batches in order.
    """

    def __init__(self, *chunks: tuple[int, range]) -> None:
        self.row: list[Action] = []
        self.pairs: set[Action] = set()
        self._stages = [stage for stage, _ in chunks]
        self._forwards = [iter(numbers) for _, numbers in chunks]
        self._backwards = [iter(numbers) for _, numbers in chunks]
        self._owed: deque[Action] = deque()  # the W whose I have been

    def write(self, steps: str, times: int = 1) -> None:
        """Add `steps`, `times` times over.

        Args:
            steps: kind and chunk, such as "F0 B1"; "F0&B1" is an overlapped pair. A W is that of the oldest I which
                has none yet, of its chunk, or of all if it names no chunk. What no micro-batch is left for is left out.
            times: how often; nothing happens if it is below 1.
        """
        for step in steps.split() * times:
            actions = [action for part in step.split("&") if (action := self._next(part))]
            self.row += actions
            if len(actions) == 2:
                self.pairs.add(actions[0])

    def _next(self, part: str) -> Action | None:
        kind, chunk = cast(Kind, part[0]), int(part[1:]) if part[1:] else None
        if kind == BACKWARD_WEIGHT:
            found = next((w for w in self._owed if chunk is None or w.stage == self._stages[chunk]), None)
            if found:
                self._owed.remove(found)
            return found
        if chunk is None:
            raise ValueError(f"{part!r} names no chunk: only a W may do without")
        k = next((self._forwards if kind == FORWARD else self._backwards)[chunk], None)
        if k is None:
            return None
        if kind == BACKWARD_INPUT:
            self._owed.append(Action(self._stages[chunk], BACKWARD_WEIGHT, k))
        return Action(self._stages[chunk], kind, k)
