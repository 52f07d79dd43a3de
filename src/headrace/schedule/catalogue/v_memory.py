"""V-Min and V-Half: a V of two stages a rank in a third or half of the memory of 1F1B (Qi et al., 2024).

    V-Half, p = 2, m = 4 (small letters: the rank's second stage; F, I and W take one unit each)

    rank 0  F0 F1 ···f0 i0 f1 w0 F2 I0 i1 W0 f2 w1 F3 I1 i2 W1 f3 i3 I2 w2 I3 w3 W2 W3
    rank 1  ···F0 f0 F1 f1 i0 I0 w0 F2 W0 f2 i1 I1 w1 F3 W1 f3 i2 I2 i3 I3 w2 W2 w3 W3

Every six ticks a micro-batch begins, and on each rank its two F, two I and two W find the same six slots as those of
the one before. How long a stage's activations live follows from where in the block its F, I and W stand, so the offsets
between ranks set the memory; W are put into the free slots in the order of their I.

    rank r starts at    F of stage r    F of 2p−1−r    I of 2p−1−r    I of r
    V-Min               r               2p−1−r         2p+g+r         4p+g−1−r       g = 2 if 3 divides p, else 0
    V-Half              2r              3p−2−r         3p+g−1+2r      6p+g−2−r       g = 3 if p is even, else 0

Repeated, the block leaves holes at both ends of the step. They are squeezed out by list scheduling: F and I in the
block's order (where it has a gap g, the next but one may go before the next), a W when neither can go, and never more
in flight than in the block: 2⌊(p+4)/3⌋ (stage, micro-batch) for V-Min, 2⌊(p+2)/2⌋ for V-Half, of stages half as large
as those of 1F1B. If F = I = W = 1 for each stage and m ≥ 2p, a rank idles for 4p−5 in V-Min (4p−7 if 3 divides p), and
for 3p−4 in V-Half (3p−7 if p is even and at least 4), whatever m is.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import replace

from headrace.schedule.actions import BACKWARD_INPUT, BACKWARD_WEIGHT, FORWARD, Action, Kind
from headrace.schedule.catalogue.list_scheduling import Stuck, list_schedule
from headrace.schedule.catalogue.recompute import Recompute, add_recompute
from headrace.schedule.numbers import at_least
from headrace.schedule.placement import Placement
from headrace.schedule.schedule import Schedule

_BLOCK = 6  # F, I and W of two stages, one tick each

Starts = tuple[int, int, int, int]  # of F of the first and of the second stage, of I of the second and of the first


def v_min(ranks: int, micro_batches: int, *, recompute: Recompute = "never", squeeze: bool = True) -> Schedule:
    """V-Min: two stages a rank in a V, in a third of the memory of 1F1B (Qi et al., 2024).

    Args:
        ranks: p, at least 1.
        micro_batches: m, at least 1.
        recompute: which stages drop which micro-batches' activations after F, as `add_recompute` reads it.
        squeeze: whether the holes at the ends of the step are squeezed out, or the repeated block is left as it is.

    Raises:
        TypeError, ValueError: an argument is out of its range.
    """
    at_least(1, ranks=ranks, micro_batches=micro_batches)
    p, gap = ranks, 2 if ranks % 3 == 0 else 0

    def starts(r: int) -> Starts:
        return r, 2 * p - 1 - r, 2 * p + gap + r, 4 * p + gap - 1 - r

    schedule = _repeated("v-min", p, micro_batches, starts)
    if squeeze:
        schedule = _squeezed(schedule, room=2 * ((p + 4) // 3), reach=2 if gap else 1)
    return add_recompute(schedule, recompute)


def v_half(ranks: int, micro_batches: int, *, recompute: Recompute = "never", squeeze: bool = True) -> Schedule:
    """V-Half: two stages a rank in a V, in half of the memory of 1F1B (Qi et al., 2024).

    Args:
        ranks: p, at least 1.
        micro_batches: m, at least 1.
        recompute: which stages drop which micro-batches' activations after F, as `add_recompute` reads it.
        squeeze: whether the holes at the ends of the step are squeezed out, or the repeated block is left as it is.

    Raises:
        TypeError, ValueError: an argument is out of its range.
    """
    at_least(1, ranks=ranks, micro_batches=micro_batches)
    p, gap = ranks, 3 if ranks % 2 == 0 else 0

    def starts(r: int) -> Starts:
        return 2 * r, 3 * p - 2 - r, 3 * p + gap - 1 + 2 * r, 6 * p + gap - 2 - r

    schedule = _repeated("v-half", p, micro_batches, starts)
    if squeeze:
        schedule = _squeezed(schedule, room=2 * ((p + 2) // 2), reach=2 if gap else 1)
    return add_recompute(schedule, recompute)


def _repeated(name: str, ranks: int, micro_batches: int, starts: Callable[[int], Starts]) -> Schedule:
    """The block of each rank, repeated every six ticks."""
    placement = Placement.v(ranks)
    rows = tuple(_row((rank, 2 * ranks - 1 - rank), micro_batches, starts(rank)) for rank in range(ranks))
    return Schedule(name, rows, placement, micro_batches)


def _row(stages: tuple[int, int], micro_batches: int, starts: Starts) -> tuple[Action, ...]:
    """The row of a rank whose micro-batch k starts F, F, I, I at `starts` + 6k, and W in the slots left free."""
    down, up = stages
    kinds: tuple[tuple[int, Kind], ...] = ((down, FORWARD), (up, FORWARD), (up, BACKWARD_INPUT), (down, BACKWARD_INPUT))
    slots = {
        start + _BLOCK * k: Action(stage, kind, k)
        for start, (stage, kind) in zip(starts, kinds, strict=True)
        for k in range(micro_batches)
    }
    row: list[Action] = []
    owed: deque[Action] = deque()
    tick = 0
    while slots or owed:
        action = slots.pop(tick, None)
        if action is not None:
            row.append(action)
            if action.kind == BACKWARD_INPUT:
                owed.append(Action(action.stage, BACKWARD_WEIGHT, action.micro_batch))
        elif owed:
            row.append(owed.popleft())
        tick += 1
    return tuple(row)


def _squeezed(schedule: Schedule, room: int, reach: int) -> Schedule:
    """`schedule` as list scheduling plays it in unit time."""
    queues = [[[action for action in row if action.kind != BACKWARD_WEIGHT]] for row in schedule.rows]
    ticks: dict[Kind, int] = {FORWARD: 1, BACKWARD_INPUT: 1, BACKWARD_WEIGHT: 1}
    try:
        rows = list_schedule(queues, schedule.stages, ticks=ticks, reach=reach, room=room)
    except Stuck:  # looking one action ahead may take the room of another; going strictly in order cannot
        rows = list_schedule(queues, schedule.stages, ticks=ticks, reach=1, room=room)
    return replace(schedule, rows=rows)
