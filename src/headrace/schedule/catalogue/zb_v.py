"""ZB-V: zero bubble in the memory of 1F1B, with two stages a rank in a V (Qi et al., 2024).

    p = 2, m = 4 (small letters: the rank's second stage; F, I and W take one unit each)

    rank 0  F0 F1 F2 f0 i0 w0 f1 i1 w1 F3 I0 W0 f2 i2 w2 I1 W1 f3 i3 w3 I2 W2 I3 W3 ···
    rank 1  ···F0 f0 F1 f1 i0 w0 F2 I0 W0 f2 i1 w1 F3 I1 W1 f3 i2 w2 I2 i3 I3 W2 w3 W3

The first and the last stage are on the same rank, so the first backward can begin where the last forward ends, and
activations are spread evenly: 2p (stage, micro-batch) in flight on every rank, as much as p of 1F1B's stages, which are
twice as large. With costs f, i, w of one stage and m ≥ 2p−1, w ≤ f ≤ i: makespan 2m(f+i+w) + (p−1)·max(i, 2(i−w));
without a barrier at the end nothing but the ramps idles if f = i = w.
"""

from headrace.schedule.catalogue.recompute import Recompute, add_recompute
from headrace.schedule.catalogue.row_writer import RowWriter
from headrace.schedule.numbers import at_least
from headrace.schedule.placement import Placement
from headrace.schedule.schedule import Schedule


def zb_v(ranks: int, micro_batches: int, *, recompute: Recompute = "never") -> Schedule:
    """ZB-V: zero bubble in the memory of 1F1B, with two stages a rank in a V (Qi et al., 2024).

    Args:
        ranks: p, at least 1.
        micro_batches: m, at least 1. Fewer than 2p−1 run as the first of 2p−1 would.
        recompute: which stages drop which micro-batches' activations after F, as `add_recompute` reads it.

    Raises:
        TypeError, ValueError: an argument is out of its range.
    """
    at_least(1, ranks=ranks, micro_batches=micro_batches)
    p, m = ranks, max(micro_batches, 2 * ranks - 1)
    rows = []
    for r in range(p):
        row = RowWriter((r, range(micro_batches)), (2 * p - 1 - r, range(micro_batches)))
        # Warm-up: forwards until this rank's first I, which comes later the farther it is from the turn of the V.
        row.write("F0", times=2 * (p - r) - 1)
        row.write("F1 F0", times=r)
        row.write("F1 I1 W1", times=p - r)
        # Steady, at the end without new micro-batches.
        row.write("F0 I0 W0 F1 I1 W1", times=m - (2 * p - 1 - r))
        row.write("I0 W0 F1 I1 W1", times=p - 1 - r)
        # Cool-down: I first where others wait for it, then the W that were put off.
        row.write("I0 I1", times=r)
        row.write("I0 W0", times=p - r)
        row.write("W1", times=r)
        row.write("W0", times=r)
        rows.append(tuple(row.row))
    return add_recompute(Schedule("zb-v", tuple(rows), Placement.v(p), micro_batches), recompute)
