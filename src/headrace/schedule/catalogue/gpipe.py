"""GPipe: all forwards, a flush, all backwards (Huang et al., 2019).

    p = 3, m = 4, backward in reverse order as in the paper (and twice as long as forward)

    rank 0  F0 F1 F2 F3 ··················[B3  ][B2  ][B1  ][B0  ]
    rank 1  ···F0 F1 F2 F3 ·········[B3  ][B2  ][B1  ][B0  ]······
    rank 2  ······F0 F1 F2 F3 [B3  ][B2  ][B1  ][B0  ]············

Makespan (m+p−1)(F+B), bubble (p−1)/(m+p−1), and all m micro-batches in flight at the turn.
"""

from typing import Literal, get_args

from headrace.schedule.actions import BACKWARD, FORWARD, Action, Kind
from headrace.schedule.catalogue.recompute import Recompute, add_recompute
from headrace.schedule.numbers import at_least
from headrace.schedule.placement import Placement
from headrace.schedule.schedule import Schedule

Drain = Literal["reverse", "forward"]


def gpipe(ranks: int, micro_batches: int, *, recompute: Recompute = "never", drain: Drain = "reverse") -> Schedule:
    """GPipe's schedule, one stage a rank.

    Args:
        ranks: p, at least 1.
        micro_batches: m, at least 1.
        recompute: which micro-batches drop their activations after F and recompute them before B.
        drain: the order of the backwards: "reverse", as in the paper, or "forward".

    Raises:
        TypeError, ValueError: an argument is out of its range.
    """
    at_least(1, ranks=ranks, micro_batches=micro_batches)
    if drain not in get_args(Drain):
        raise ValueError(f"drain={drain!r} is unknown: choose one of {', '.join(get_args(Drain))}")
    forwards = range(micro_batches)
    backwards = reversed(forwards) if drain == "reverse" else forwards
    order: list[tuple[Kind, int]] = [(FORWARD, k) for k in forwards]
    order += [(BACKWARD, k) for k in backwards]
    rows = tuple(
        add_recompute((Action(rank, kind, k) for kind, k in order), recompute, micro_batches) for rank in range(ranks)
    )
    return Schedule("gpipe", rows, Placement.loop(ranks), micro_batches)
