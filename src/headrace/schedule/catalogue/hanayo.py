"""Hanayo: waves of micro-batches down and up the ranks, with the parameters only once (Liu et al., 2023).

    p = 2, m = 2, one wave (small letters: the rank's second stage; backward twice as long as forward)

    rank 0  F0 F1 ···f0 [b0  ]f1 [b1  ]···[B0  ]······[B1  ]
    rank 1  ···F0 f0 F1 f1 ···[b0  ][B0  ][b1  ][B1  ]······

Stages zigzag over the ranks, so at every turn of a wave the next stage is on the same rank and nothing travels. The
order is that of list scheduling in unit time: backwards first, those of early stages before late ones, then forwards,
those of late stages before early ones. At most p micro-batches are under way at a time, 2p·waves (stage, micro-batch)
in flight. At m = p and B = 2F the bubble is at most the published (2p−2)/(3p·waves+p−1), and where the optimum is known
it is that: 0.25 (p = 2), 0.333 (p = 4), 0.368 (p = 8) with one wave, 0.20 (p = 4) with two. More micro-batches add no
idle time if B = F; they add some if B = 2F, as the order is that of unit time, for the sake of memory.
"""

from headrace.schedule.actions import BACKWARD, FORWARD, Action, Kind
from headrace.schedule.catalogue.list_scheduling import list_schedule
from headrace.schedule.catalogue.recompute import Recompute, add_recompute
from headrace.schedule.numbers import at_least
from headrace.schedule.placement import Placement
from headrace.schedule.schedule import Schedule


def hanayo(ranks: int, micro_batches: int, *, recompute: Recompute = "never", waves: int = 1) -> Schedule:
    """Hanayo: waves of micro-batches down and up the ranks, with the parameters only once (Liu et al., 2023).

    Args:
        ranks: p, at least 1.
        micro_batches: m, at least 1.
        recompute: which stages drop which micro-batches' activations after F, as `add_recompute` reads it.
        waves: how often a micro-batch goes down and up the ranks, at least 1; a rank holds 2 · waves stages.

    Raises:
        TypeError, ValueError: an argument is out of its range.
    """
    at_least(1, ranks=ranks, micro_batches=micro_batches, waves=waves)
    placement = Placement.zigzag(ranks, 2 * waves)

    def queue(stage: int, kind: Kind) -> list[Action]:
        return [Action(stage, kind, k) for k in range(micro_batches)]

    preferences = []
    for rank in range(ranks):
        early_to_late = placement.stages_of(rank)
        backwards = [queue(stage, BACKWARD) for stage in early_to_late]
        forwards = [queue(stage, FORWARD) for stage in reversed(early_to_late)]
        preferences.append(backwards + forwards)
    rows = list_schedule(preferences, placement.stages, ticks={FORWARD: 1, BACKWARD: 1})
    return add_recompute(Schedule("hanayo", rows, placement, micro_batches), recompute)
