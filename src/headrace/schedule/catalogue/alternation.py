"""One forward, one backward in turn: the rule that most schedules share.

    warm-up      in turn                cool-down
    F F F        F B  F B  F B          B B B           weight_lag=None
    F F F        F I  F I W  F I W      I W I W I W W   weight_lag=1: the first W comes after one more I

The families differ in no more than this: in which order forwards and backwards come, how many forwards warm a rank up,
and by how many I the W of a split backward lags behind its own I.
"""

from collections.abc import Sequence

from headrace.schedule.actions import BACKWARD, BACKWARD_INPUT, BACKWARD_WEIGHT, FORWARD, Action

Cells = Sequence[tuple[int, int]]  # (stage, micro-batch)


def alternate(forwards: Cells, backwards: Cells, warm_up: int, weight_lag: int | None = None) -> tuple[Action, ...]:
    """One rank's row: `warm_up` forwards, then forwards and backwards in turn, then the backwards that remain.

    Args:
        forwards: (stage, micro-batch) in the order in which the rank runs their forwards.
        backwards: the same cells in the order of the backwards.
        warm_up: how many forwards come before the first pair; more than there are means all.
        weight_lag: split backwards, the W of each following the I of the `weight_lag`-th cell after it, and those
            that remain at the end; None for whole backwards.
    """
    split = weight_lag is not None
    lag = weight_lag or 0
    row = [Action(stage, FORWARD, k) for stage, k in forwards[:warm_up]]
    for at, (stage, k) in enumerate(backwards):
        row += [Action(s, FORWARD, j) for s, j in forwards[warm_up + at : warm_up + at + 1]]
        row.append(Action(stage, BACKWARD_INPUT if split else BACKWARD, k))
        if split and at >= lag:
            s, j = backwards[at - lag]
            row.append(Action(s, BACKWARD_WEIGHT, j))
    if split:
        row += [Action(s, BACKWARD_WEIGHT, j) for s, j in backwards[max(len(backwards) - lag, 0) :]]
    return tuple(row)
