"""Interleaved 1F1B: v stages a rank, in a loop, divide the bubble of 1F1B by v (Narayanan et al., 2021).

    p = 2, m = 4, two stages a rank (small letters: the second), backward twice as long as forward

    rank 0  F0 F1 f0 f1 F2 ···[b0  ]F3 [b1  ]f2 [B0  ]f3 [B1  ]···[b2  ]···[b3  ][B2  ][B3  ]
    rank 1  ···F0 F1 f0 [b0  ]f1 [b1  ]F2 [B0  ]F3 [B1  ]f2 [b2  ]f3 [b3  ][B2  ][B3  ]······

Micro-batches pass in groups of N, by default of p where p divides m: all of a group through a rank's first stage, then
its second, and so on; the backwards take the same table with the stages reversed.

    m = 4, N = 2, v = 2     forwards   F0 F1 f0 f1   F2 F3 f2 f3
                            backwards  b0 b1 B0 B1   b2 b3 B2 B3

A row is min((v−1)N + 2(p−1−r), mv) forwards to warm up, then one forward and one backward in turn. With costs f and b
of one stage, N = p and messages of c ≤ min(f, b): makespan (mv+p−1)(f+b) + (2vp−2)c, and in flight at most one more
(stage, micro-batch) than forwards to warm up.

Interleaved zero bubble splits the backwards, as ZB-H1 does: (v−1)N + p−1−r forwards to warm up, and a W after the I of
the r-th cell after it (Qi et al., 2024).
"""

from headrace.schedule.catalogue.alternation import alternate
from headrace.schedule.catalogue.recompute import Recompute, add_recompute
from headrace.schedule.numbers import at_least
from headrace.schedule.placement import Placement
from headrace.schedule.schedule import Schedule


def interleaved(
    ranks: int,
    micro_batches: int,
    *,
    recompute: Recompute = "never",
    stages_per_rank: int = 2,
    group: int | None = None,
) -> Schedule:
    """Interleaved 1F1B: v stages a rank, in a loop, divide the bubble of 1F1B by v (Narayanan et al., 2021).

    Args:
        ranks: p, at least 1.
        micro_batches: m, at least 1; m < p and m that p does not divide work.
        recompute: which stages drop which micro-batches' activations after F, as `add_recompute` reads it.
        stages_per_rank: v, at least 1; rank r holds stages r, r+p, r+2p …
        group: N, how many micro-batches pass a stage before they pass the rank's next one; None for the smallest
            that works.

    Raises:
        TypeError, ValueError: an argument is out of its range, or `group` would deadlock.
    """
    return _interleaved("interleaved", ranks, micro_batches, recompute, stages_per_rank, group)


def interleaved_zb(
    ranks: int,
    micro_batches: int,
    *,
    recompute: Recompute = "never",
    stages_per_rank: int = 2,
    group: int | None = None,
) -> Schedule:
    """Interleaved zero bubble: interleaved 1F1B whose W fill the bubble, as in ZB-H1 (Qi et al., 2024).

    Args:
        ranks: p, at least 1.
        micro_batches: m, at least 1; m < p and m that p does not divide work.
        recompute: which stages drop which micro-batches' activations after F, as `add_recompute` reads it.
        stages_per_rank: v, at least 1; rank r holds stages r, r+p, r+2p …
        group: N, how many micro-batches pass a stage before they pass the rank's next one; None for the smallest
            that works.

    Raises:
        TypeError, ValueError: an argument is out of its range, or `group` would deadlock.
    """
    return _interleaved("interleaved-zb", ranks, micro_batches, recompute, stages_per_rank, group)


def _interleaved(
    name: str, ranks: int, micro_batches: int, recompute: Recompute, stages_per_rank: int, group: int | None
) -> Schedule:
    at_least(1, ranks=ranks, micro_batches=micro_batches, stages_per_rank=stages_per_rank)
    size = _group_size(ranks, micro_batches, group)
    placement = Placement.loop(ranks, stages_per_rank)
    split = name == "interleaved-zb"
    rows = []
    for rank in range(ranks):
        stages = placement.stages_of(rank)
        rows.append(
            alternate(
                _table(stages, micro_batches, size),
                _table(stages[::-1], micro_batches, size),
                warm_up=(stages_per_rank - 1) * size + (ranks - 1 - rank) * (1 if split else 2),
                weight_lag=rank if split else None,
            )
        )
    return add_recompute(Schedule(name, tuple(rows), placement, micro_batches), recompute)


def _table(stages: tuple[int, ...], micro_batches: int, group: int) -> list[tuple[int, int]]:
    """(stage, micro-batch) group by group, and stage by stage within a group."""
    return [
        (stage, k)
        for first in range(0, micro_batches, group)
        for stage in stages
        for k in range(first, min(first + group, micro_batches))
    ]


def _group_size(ranks: int, micro_batches: int, group: int | None) -> int:
    """N. Of fewer micro-batches than ranks, none is back at a rank's next stage in time, unless there are no more."""
    works = [
        size
        for size in range(min(ranks, micro_batches), micro_batches + 1)
        if micro_batches % size == 0 or micro_batches % size >= ranks
    ]
    if group is None:
        return works[0]
    at_least(1, group=group)
    if group not in works:
        nearest = sorted(sorted(works, key=lambda size: abs(size - group))[:2])
        raise ValueError(
            f"group={group} would deadlock with ranks={ranks} and micro_batches={micro_batches}: "
            f"use {' or '.join(map(str, nearest))}"
        )
    return group
