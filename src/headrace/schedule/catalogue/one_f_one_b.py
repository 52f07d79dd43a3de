"""1F1B: as soon as a backward can run, it does, so that few activations wait (Narayanan et al., 2019 and 2021).

    p = 3, m = 4 (backward twice as long as forward)

    rank 0  F0 F1 F2 ············[B0  ]F3 [B1  ]···[B2  ]···[B3  ]
    rank 1  ···F0 F1 ······[B0  ]F2 [B1  ]F3 [B2  ]···[B3  ]······
    rank 2  ······F0 [B0  ]F1 [B1  ]F2 [B2  ]F3 [B3  ]············

A row is min(p−1−r, m) forwards to warm up, then pairs of one F and one B, then the backwards that remain.

The same makespan and bubble as GPipe, (m+p−1)(F+B) and (p−1)/(m+p−1), but only min(p−r, m) micro-batches in flight
on rank r, however large m is. With messages that take c a hop: (m+p−1)(F+B) + 2c[(p−1) + ⌊(p−1)(m−1)/p⌋].

Eager 1F1B warms up with twice as many forwards, so that a message has a whole forward and backward of time to arrive
(Zhuang et al., 2023): (m+p−1)(F+B) + 2(p−1)c as long as 2c ≤ F+B, for min(2(p−r)−1, m) micro-batches in flight.

    eager   rank 0  F0 F1 F2 F3 ·········[B0  ]···[B1  ]···[B2  ]···[B3  ]
            rank 1  ···F0 F1 F2 ···[B0  ]F3 [B1  ]···[B2  ]···[B3  ]······
            rank 2  ······F0 [B0  ]F1 [B1  ]F2 [B2  ]F3 [B3  ]············
"""

from headrace.schedule.actions import Action
from headrace.schedule.catalogue.alternation import alternate
from headrace.schedule.catalogue.recompute import Recompute, add_recompute
from headrace.schedule.numbers import at_least
from headrace.schedule.placement import Placement
from headrace.schedule.schedule import Schedule


def one_f_one_b(ranks: int, micro_batches: int, *, recompute: Recompute = "never") -> Schedule:
    """1F1B: as soon as a backward can run, it does, so that few activations wait (Narayanan et al., 2019 and 2021).

    Args:
        ranks: p, at least 1.
        micro_batches: m, at least 1; m < p works.
        recompute: which stages drop which micro-batches' activations after F, as `add_recompute` reads it.

    Raises:
        TypeError, ValueError: an argument is out of its range.
    """
    at_least(1, ranks=ranks, micro_batches=micro_batches)
    rows = tuple(one_stage(rank, micro_batches, warm_up=ranks - 1 - rank) for rank in range(ranks))
    return add_recompute(Schedule("1f1b", rows, Placement.loop(ranks), micro_batches), recompute)


def eager_1f1b(ranks: int, micro_batches: int, *, recompute: Recompute = "never") -> Schedule:
    """Eager 1F1B: twice the warm-up, so that messages travel behind other work (Zhuang et al., 2023).

    Args:
        ranks: p, at least 1.
        micro_batches: m, at least 1; m < p works.
        recompute: which stages drop which micro-batches' activations after F, as `add_recompute` reads it.

    Raises:
        TypeError, ValueError: an argument is out of its range.
    """
    at_least(1, ranks=ranks, micro_batches=micro_batches)
    rows = tuple(one_stage(rank, micro_batches, warm_up=2 * (ranks - 1 - rank)) for rank in range(ranks))
    return add_recompute(Schedule("eager-1f1b", rows, Placement.loop(ranks), micro_batches), recompute)


def one_stage(stage: int, micro_batches: int, warm_up: int, weight_lag: int | None = None) -> tuple[Action, ...]:
    """The row of a rank with one stage whose micro-batches pass in order; see `alternate`."""
    cells = [(stage, k) for k in range(micro_batches)]
    return alternate(cells, cells, warm_up, weight_lag)
