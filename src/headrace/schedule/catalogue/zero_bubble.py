"""Zero bubble: split backwards, whose W fill the bubble of 1F1B, as nobody waits for a W (Qi et al., 2024).

    ZB-H1, p = 3, m = 4 (F, I and W take one unit each)

    rank 0  F0 F1 F2 ······I0 W0 F3 I1 W1 I2 W2 I3 W3
    rank 1  ···F0 F1 ···I0 F2 I1 W0 F3 I2 W1 I3 W2 W3
    rank 2  ······F0 I0 F1 I1 F2 I2 W0 F3 I3 W1 W2 W3

ZB-H1 is 1F1B on each rank, with the W of a micro-batch right after the I of the r-th micro-batch after it (r is the
rank). For m ≥ p, W ≤ min(F, I) and messages that take no time: makespan m(F+I+W) + (p−1)(F+I−W), with p micro-batches
in flight on every rank. No schedule with this memory is faster if F = I = W.

    ZB-H2, p = 3, m = 5

    rank 0  F0 F1 F2 F3 F4 I0 W0 I1 W1 I2 W2 I3 W3 I4 W4 ······
    rank 1  ···F0 F1 F2 I0 F3 I1 F4 I2 W0 I3 W1 I4 W2 W3 W4 ···
    rank 2  ······F0 I0 F1 I1 F2 I2 F3 I3 F4 I4 W0 W1 W2 W3 W4

ZB-H2 warms up twice as long and lets W lag twice as far: 2p−1 micro-batches in flight, and the rows become a
parallelogram. From a rank's first start to its last end it takes m(F+I+W) + max(0, (p−1)(F+I−2W)) for m ≥ 2p−1 and
F ≥ min(I, W): no bubble at all if nothing but the next step waits at the end. Where a barrier ends the step, as for the
norm of all gradients, and F = I = W, it gains nothing over ZB-H1.
"""

from headrace.schedule.catalogue.one_f_one_b import one_stage
from headrace.schedule.catalogue.recompute import Recompute, add_recompute
from headrace.schedule.numbers import at_least
from headrace.schedule.placement import Placement
from headrace.schedule.schedule import Schedule


def zb_h1(ranks: int, micro_batches: int, *, recompute: Recompute = "never") -> Schedule:
    """ZB-H1: a third of the bubble of 1F1B where F = I = W, in the memory of its rank 0 (Qi et al., 2024).

    Args:
        ranks: p, at least 1.
        micro_batches: m, at least 1; m < p works.
        recompute: which stages drop which micro-batches' activations after F, as `add_recompute` reads it.

    Raises:
        TypeError, ValueError: an argument is out of its range.
    """
    at_least(1, ranks=ranks, micro_batches=micro_batches)
    rows = tuple(one_stage(rank, micro_batches, ranks - 1 - rank, weight_lag=rank) for rank in range(ranks))
    return add_recompute(Schedule("zb-h1", rows, Placement.loop(ranks), micro_batches), recompute)


def zb_h2(ranks: int, micro_batches: int, *, recompute: Recompute = "never") -> Schedule:
    """ZB-H2: no bubble unless a barrier ends the step, for twice the memory of ZB-H1 (Qi et al., 2024).

    Args:
        ranks: p, at least 1.
        micro_batches: m, at least 1; from 2p−1 on nothing idles but at the ends.
        recompute: which stages drop which micro-batches' activations after F, as `add_recompute` reads it.

    Raises:
        TypeError, ValueError: an argument is out of its range.
    """
    at_least(1, ranks=ranks, micro_batches=micro_batches)
    rows = tuple(one_stage(rank, micro_batches, 2 * (ranks - 1 - rank), weight_lag=2 * rank) for rank in range(ranks))
    return add_recompute(Schedule("zb-h2", rows, Placement.loop(ranks), micro_batches), recompute)
