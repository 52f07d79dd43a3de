"""PipeDream: 1F1B that never flushes, as each stage updates its weights on the way (Narayanan et al., 2019).

    p = 2, m = 4 (U, the update of the stage's weights, takes no time here; backward twice as long as forward)

    rank 0  F0 F1 ······[B0  ]F2 [B1  ]F3 [B2  ]···[B3  ]
    rank 1  ···F0 [B0  ]F1 [B1  ]F2 [B2  ]F3 [B3  ]······

After the start nothing idles until the stream of micro-batches ends, as none has to wait for an update of all stages.
But this is asynchronous: a gradient is of weights that have been updated since, so it is not the mathematics of one
device. A micro-batch's backward reads the weights that its forward read, so rank r keeps up to p−r versions of its
weights, as many as it has micro-batches in flight.

PipeDream-2BW gathers the gradients of at least p micro-batches for each update, and all stages read the weights of one
update before: W(t+1) = W(t) − η∇f(W(t−1)). Two versions are enough on every rank (Narayanan et al., 2021).
"""

from headrace.schedule.actions import BACKWARD, UPDATE, Action
from headrace.schedule.catalogue.one_f_one_b import one_stage
from headrace.schedule.catalogue.recompute import Recompute, add_recompute
from headrace.schedule.numbers import at_least
from headrace.schedule.placement import Placement
from headrace.schedule.schedule import Schedule


def pipedream(ranks: int, micro_batches: int, *, recompute: Recompute = "never") -> Schedule:
    """PipeDream: 1F1B with an update after every backward; asynchronous (Narayanan et al., 2019).

    Args:
        ranks: p, at least 1.
        micro_batches: m, at least 1: those that pass before the pipeline is drained.
        recompute: which stages drop which micro-batches' activations after F, as `add_recompute` reads it.

    Raises:
        TypeError, ValueError: an argument is out of its range.
    """
    at_least(1, ranks=ranks, micro_batches=micro_batches)
    rows = tuple(_row(rank, ranks, micro_batches, accumulate=1) for rank in range(ranks))
    return add_recompute(Schedule("pipedream", rows, Placement.loop(ranks), micro_batches), recompute)


def pipedream_2bw(
    ranks: int, micro_batches: int, *, recompute: Recompute = "never", accumulate: int | None = None
) -> Schedule:
    """PipeDream-2BW: 1F1B with rare updates, all stages one update late; asynchronous (Narayanan et al., 2021).

    Args:
        ranks: p, at least 1.
        micro_batches: m, at least 1: those that pass before the pipeline is drained.
        recompute: which stages drop which micro-batches' activations after F, as `add_recompute` reads it.
        accumulate: how many micro-batches one update uses, at least p, or None for p. The last update uses those that
            are left.

    Raises:
        TypeError, ValueError: an argument is out of its range.
    """
    at_least(1, ranks=ranks, micro_batches=micro_batches)
    each = ranks if accumulate is None else accumulate
    at_least(1, accumulate=each)
    if each < ranks:
        raise ValueError(f"accumulate={each} would need more than two versions of the weights: use {ranks} or more")
    rows = tuple(_row(rank, ranks, micro_batches, each) for rank in range(ranks))
    return add_recompute(Schedule("pipedream-2bw", rows, Placement.loop(ranks), micro_batches, delay=1), recompute)


def _row(rank: int, ranks: int, micro_batches: int, accumulate: int) -> tuple[Action, ...]:
    """1F1B with a U after the backward of every `accumulate`-th micro-batch, and of the last."""
    row = []
    for action in one_stage(rank, micro_batches, warm_up=ranks - 1 - rank):
        row.append(action)
        k = action.micro_batch
        if action.kind == BACKWARD and ((k + 1) % accumulate == 0 or k + 1 == micro_batches):
            row.append(Action(rank, UPDATE, k))
    return tuple(row)
