"""Whether a row has things in an order that the clock does not see for itself: a wrong one must not be simulated.

The clock stops where the result of an earlier stage or of an F, B or I is missing. But whether a backward must wait
for an R, or an update for a W, depends on what else the row has; both are rare, so they are looked at apart.
"""

from collections.abc import Sequence
from operator import itemgetter

from headrace.schedule.actions import BACKWARD_WEIGHT, GIVES_INPUT_GRADIENT, RECOMPUTE, UPDATE, Action


def in_order(row: Sequence[Action]) -> bool:
    """Whether every R comes before the backward of its micro-batch, and every U after the W of its."""
    kinds = set(map(itemgetter(1), row))
    if not (RECOMPUTE in kinds or UPDATE in kinds):
        return True
    place = {action: at for at, action in enumerate(row)}
    for at, (stage, kind, k) in enumerate(row):
        if kind == RECOMPUTE and any(place.get(Action(stage, b, k), at) < at for b in GIVES_INPUT_GRADIENT):
            return False
        if kind == UPDATE and place.get(Action(stage, BACKWARD_WEIGHT, k), at) > at:
            return False
    return True
