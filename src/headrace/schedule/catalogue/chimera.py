"""Chimera: two 1F1B pipelines in opposite directions, merged without conflict (Li and Hoefler, 2021).

    p = 4, m = 4 (0 and 1 go down, small letters 2 and 3 go up; backward as long as forward)

    rank 0  F0 F1 ···f2 b2 f3 b3 B0 ···B1
    rank 1  ···F0 f2 F1 f3 b2 B0 b3 B1 ···
    rank 2  ···f2 F0 f3 F1 B0 b2 B1 b3 ···
    rank 3  f2 f3 ···F0 B0 F1 B1 b2 ···b3

Rank r holds stage r for the micro-batches that go down and stage p−1−r for those that go up: twice the parameters, and
the gradients of both copies are summed. Each way starts a micro-batch every two ticks, and as p is even, one way's work
falls on the even ticks of a rank where the other's falls on the odd ones. More than p micro-batches run as blocks of p,
one every 2p ticks, so that the first forwards of a block fill the ticks that the one before leaves free: the same idle
ticks for any number of full blocks if F = B.

At m = p the bubble is (p−2)/(2m+p−2) if F = B and (p−2)/(1.5m+p−2) if B = 2F, with p/2+1 to p micro-batches in flight.
"""

from headrace.schedule.actions import BACKWARD, FORWARD, Action
from headrace.schedule.catalogue.recompute import Recompute, add_recompute
from headrace.schedule.numbers import at_least
from headrace.schedule.placement import Placement
from headrace.schedule.schedule import Schedule


def chimera(ranks: int, micro_batches: int, *, recompute: Recompute = "never") -> Schedule:
    """Chimera: two 1F1B pipelines in opposite directions, parameters twice (Li and Hoefler, 2021).

    Args:
        ranks: p, even.
        micro_batches: m, at least 1. The first ⌈m/2⌉ go down, the others up.
        recompute: which stages drop which micro-batches' activations after F, as `add_recompute` reads it.

    Raises:
        TypeError, ValueError: an argument is out of its range.
    """
    at_least(1, ranks=ranks, micro_batches=micro_batches)
    p, half = ranks, ranks // 2
    if p % 2:
        raise ValueError(f"ranks={p} is odd, but chimera's two pipelines only fit an even number: use {p + 1}")
    placement = Placement.two_way(p, micro_batches)
    seen = [0, 0]
    starts: list[list[tuple[int, Action]]] = [[] for _ in range(p)]  # per rank (tick, action)
    for k in range(micro_batches):
        lane = placement.lane(k)
        block, place = divmod(seen[lane], half)
        seen[lane] += 1
        for stage in range(p):
            of_rank = starts[placement.rank(stage, k)]
            into = 2 * p * block + 2 * place + stage
            back = 2 * p * block + 2 * place + 2 * p - 1 - stage
            of_rank += [(into, Action(stage, FORWARD, k)), (back, Action(stage, BACKWARD, k))]
    rows = tuple(tuple(action for _, action in sorted(of_rank)) for of_rank in starts)
    return add_recompute(Schedule("chimera", rows, placement, micro_batches), recompute)
