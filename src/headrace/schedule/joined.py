"""Which backwards of a schedule are worth splitting: those between whose I and W something else is done.

    … 1I0 1F3 1W0 …     split: what can wait waits
    … 1I0 1W0 …         runs as 1B0, at its price; the span of W is empty

Splitting costs a little for each operation and keeps operands alive, so it is done only where somebody gains by it.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from headrace.schedule.actions import BACKWARD, BACKWARD_INPUT, BACKWARD_WEIGHT, Action
from headrace.schedule.schedule import Schedule


def split_in(row: Sequence[Action]) -> frozenset[tuple[int, int]]:
    """The (stage, micro-batch) whose backward is split, out of a rank's row."""
    halves = {(stage, k) for stage, kind, k in row if kind == BACKWARD_INPUT}
    return frozenset(halves) - _whole(row)


def joined(schedule: Schedule) -> Schedule:
    """What the runtime makes of `schedule`: its rows with B where nothing is between an I and its W."""
    rows = []
    for row in schedule.rows:
        whole = _whole(row)
        kept: list[Action] = []
        for action in row:
            if (action.stage, action.micro_batch) not in whole:
                kept.append(action)
            elif action.kind == BACKWARD_INPUT:
                kept.append(action._replace(kind=BACKWARD))
            elif action.kind != BACKWARD_WEIGHT:
                kept.append(action)
        rows.append(tuple(kept))
    return schedule if tuple(rows) == schedule.rows else replace(schedule, rows=tuple(rows))


def _whole(row: Sequence[Action]) -> frozenset[tuple[int, int]]:
    return frozenset(
        (one.stage, one.micro_batch)
        for one, other in pairwise(row)
        if one.kind == BACKWARD_INPUT and other == one._replace(kind=BACKWARD_WEIGHT)
    )
