"""1F1B: as soon as a backward can run, it does, so that few activations wait (Narayanan et al., 2019 and 2021).

    p = 3, m = 4 (backward twice as long as forward)

    rank 0  F0 F1 F2 ············[B0  ]F3 [B1  ]···[B2  ]···[B3  ]
    rank 1  ···F0 F1 ······[B0  ]F2 [B1  ]F3 [B2  ]···[B3  ]······
    rank 2  ······F0 [B0  ]F1 [B1  ]F2 [B2  ]F3 [B3  ]············

A row is min(p−1−r, m) forwards to warm up, then pairs of one F and one B, then the backwards that remain.

The same makespan and bubble as GPipe, (m+p−1)(F+B) and (p−1)/(m+p−1), but only min(p−r, m) micro-batches in flight
on rank r, however large m is.
"""

from headrace.schedule.actions import BACKWARD, FORWARD, Action, Kind
from headrace.schedule.catalogue.recompute import Recompute, add_recompute
from headrace.schedule.numbers import at_least
from headrace.schedule.placement import Placement
from headrace.schedule.schedule import Schedule


def one_f_one_b(ranks: int, micro_batches: int, *, recompute: Recompute = "never") -> Schedule:
    """The 1F1B schedule, one stage a rank; m < p works.

    Args:
        ranks: p, at least 1.
        micro_batches: m, at least 1.
        recompute: which micro-batches drop their activations after F and recompute them before B.

    Raises:
        TypeError, ValueError: an argument is out of its range.
    """
    at_least(1, ranks=ranks, micro_batches=micro_batches)
    rows = []
    for rank in range(ranks):
        warm_up = min(ranks - 1 - rank, micro_batches)
        order: list[tuple[Kind, int]] = [(FORWARD, k) for k in range(warm_up)]
        for k in range(micro_batches):
            if warm_up + k < micro_batches:
                order.append((FORWARD, warm_up + k))
            order.append((BACKWARD, k))
        rows.append(add_recompute((Action(rank, kind, k) for kind, k in order), recompute, micro_batches))
    return Schedule("1f1b", tuple(rows), Placement.loop(ranks), micro_batches)
