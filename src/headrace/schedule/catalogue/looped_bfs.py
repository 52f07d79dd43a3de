"""Looped BFS: breadth first, all micro-batches through one chunk of the model, then the next (Lamy-Poirier, 2023).

    p = 2, m = 4, two stages a rank (small letters: the second), backward twice as long as forward

    rank 0  F0 F1 F2 F3 f0 f1 f2 f3 ·········[b3  ][b2  ][b1  ][b0  ][B3  ][B2  ][B1  ][B0  ]
    rank 1  ···F0 F1 F2 F3 f0 f1 f2 f3 [b3  ][b2  ][b1  ][b0  ][B3  ][B2  ][B1  ][B0  ]······

GPipe on a ring: with one stage a rank it is GPipe. Each rank works on one stage for as long as possible, so it can
gather that stage's weights or reduce its gradients once for all micro-batches. With costs f and b of one stage and
m ≥ p: makespan (mv+p−1)(f+b) for v stages a rank, and all mv (stage, micro-batch) in flight at the turn.
"""

from headrace.schedule.catalogue.alternation import alternate
from headrace.schedule.catalogue.recompute import Recompute, add_recompute
from headrace.schedule.numbers import at_least
from headrace.schedule.placement import Placement
from headrace.schedule.schedule import Schedule


def looped_bfs(ranks: int, micro_batches: int, *, recompute: Recompute = "never", stages_per_rank: int = 2) -> Schedule:
    """Looped BFS: all micro-batches through one chunk of the model, then the next (Lamy-Poirier, 2023).

    Args:
        ranks: p, at least 1.
        micro_batches: m, at least 1; m < p works.
        recompute: which stages drop which micro-batches' activations after F, as `add_recompute` reads it.
        stages_per_rank: v, at least 1; rank r holds stages r, r+p, r+2p …

    Raises:
        TypeError, ValueError: an argument is out of its range.
    """
    at_least(1, ranks=ranks, micro_batches=micro_batches, stages_per_rank=stages_per_rank)
    placement = Placement.loop(ranks, stages_per_rank)
    rows = []
    for rank in range(ranks):
        cells = [(stage, k) for stage in placement.stages_of(rank) for k in range(micro_batches)]
        rows.append(alternate(cells, cells[::-1], warm_up=len(cells)))
    return add_recompute(Schedule("looped-bfs", tuple(rows), placement, micro_batches), recompute)
