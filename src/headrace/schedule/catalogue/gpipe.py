"""GPipe: all forwards, a flush, all backwards (Huang et al., 2019).

    p = 3, m = 4, backward in reverse order as in the paper (and twice as long as forward)

    rank 0  F0 F1 F2 F3 ··················[B3  ][B2  ][B1  ][B0  ]
    rank 1  ···F0 F1 F2 F3 ·········[B3  ][B2  ][B1  ][B0  ]······
    rank 2  ······F0 F1 F2 F3 [B3  ][B2  ][B1  ][B0  ]············

Makespan (m+p−1)(F+B), bubble (p−1)/(m+p−1), and all m micro-batches in flight at the turn.
"""

from typing import Literal, get_args

from headrace.schedule.catalogue.alternation import alternate
from headrace.schedule.catalogue.recompute import Recompute, add_recompute
from headrace.schedule.numbers import at_least
from headrace.schedule.placement import Placement
from headrace.schedule.schedule import Schedule

Drain = Literal["reverse", "forward"]


def gpipe(ranks: int, micro_batches: int, *, recompute: Recompute = "never", drain: Drain = "reverse") -> Schedule:
    """GPipe: all forwards, a flush, all backwards (Huang et al., 2019).

    Args:
        ranks: p, at least 1.
        micro_batches: m, at least 1.
        recompute: which stages drop which micro-batches' activations after F, as `add_recompute` reads it.
        drain: the order of the backwards: "reverse", as in the paper, or "forward".

    Raises:
        TypeError, ValueError: an argument is out of its range.
    """
    at_least(1, ranks=ranks, micro_batches=micro_batches)
    if drain not in get_args(Drain):
        raise ValueError(f"drain={drain!r} is unknown: choose one of {', '.join(get_args(Drain))}")
    rows = []
    for rank in range(ranks):
        cells = [(rank, k) for k in range(micro_batches)]
        rows.append(alternate(cells, cells[::-1] if drain == "reverse" else cells, warm_up=micro_batches))
    return add_recompute(Schedule("gpipe", tuple(rows), Placement.loop(ranks), micro_batches), recompute)
