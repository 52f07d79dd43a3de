"""Which backwards of a row are worth splitting: those between whose I and W something else is done.

    … 1I0 1F3 1W0 …     split: what can wait waits
    … 1I0 1W0 …         runs as 1B0, at its price; the span of W is empty

Splitting costs a little for each operation and keeps operands alive, so it is done only where somebody gains by it.
"""

from collections.abc import Sequence
from itertools import pairwise

from headrace.schedule.actions import BACKWARD_INPUT, BACKWARD_WEIGHT, Action


def split_in(row: Sequence[Action]) -> frozenset[tuple[int, int]]:
    """The (stage, micro-batch) whose backward is split, out of a rank's row."""
    halves = {(stage, k) for stage, kind, k in row if kind == BACKWARD_INPUT}
    adjacent = {
        (one.stage, one.micro_batch)
        for one, other in pairwise(row)
        if one.kind == BACKWARD_INPUT and other == one._replace(kind=BACKWARD_WEIGHT)
    }
    return frozenset(halves - adjacent)
