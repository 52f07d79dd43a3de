"""Seq1F1B: 1F1B over segments of sequences, so that even few long sequences fill the pipeline (Ao et al., 2024).

    p = 2, m = 2, each sequence in S = 2 segments (number k is micro-batch k // 2, segment k % 2)

    rank 0  F0 F1 F2 ······[B1  ]F3 [B0  ]···[B3  ][B2  ]
    rank 1  ···F0 F1 [B1  ]F2 [B0  ]F3 [B3  ][B2  ]······

Only for causal models: a segment attends to the segments before it, whose keys and values stay on the rank, so
forwards go in order, and backwards go from the last segment of a micro-batch to its first.

A row is min(p−2−r+S, mS) forwards to warm up, then one forward and one backward in turn. With costs f and b of a
segment: makespan (mS+p−1)(f+b), the bubble of 1F1B with mS micro-batches, and min(p−1−r+S, mS) segments in flight.
"""

from headrace.schedule.catalogue.alternation import alternate
from headrace.schedule.catalogue.recompute import Recompute, add_recompute
from headrace.schedule.numbers import at_least
from headrace.schedule.placement import Placement
from headrace.schedule.schedule import Schedule


def seq1f1b(ranks: int, micro_batches: int, *, recompute: Recompute = "never", segments: int = 2) -> Schedule:
    """Seq1F1B: 1F1B over segments of sequences, for causal models only (Ao et al., 2024).

    Args:
        ranks: p, at least 1.
        micro_batches: m, at least 1; the schedule's own `micro_batches` counts their segments, mS.
        recompute: which stages drop which micro-batches' activations after F, as `add_recompute` reads it.
        segments: S, in how many pieces each sequence is cut, at least 1.

    Raises:
        TypeError, ValueError: an argument is out of its range.
    """
    at_least(1, ranks=ranks, micro_batches=micro_batches, segments=segments)
    first_to_last = range(segments)
    rows = []
    for rank in range(ranks):
        forwards = [(rank, k * segments + s) for k in range(micro_batches) for s in first_to_last]
        backwards = [(rank, k * segments + s) for k in range(micro_batches) for s in reversed(first_to_last)]
        rows.append(alternate(forwards, backwards, warm_up=ranks - 2 - rank + segments))
    schedule = Schedule("seq1f1b", tuple(rows), Placement.loop(ranks), micro_batches * segments, segments=segments)
    return add_recompute(schedule, recompute)
