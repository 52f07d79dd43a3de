"""Play a schedule against costs: when does each action start and end, if nothing is slower than declared?

Event-driven, one pass: a rank runs its row until the next action waits for a message that nobody has sent yet; the
rank that sends it wakes it. As the rows fix every order, each end is simply

    end = max(end of the action before it on this rank, arrival of the message it waits for) + cost

so the work is one visit per action, whatever the costs are.
"""

from headrace.costs import Costs
from headrace.schedule.actions import FORWARD, GIVES_INPUT_GRADIENT, RECOMPUTE
from headrace.schedule.check import check
from headrace.schedule.schedule import Schedule
from headrace.timeline import Span, Timeline


def simulate(schedule: Schedule, costs: Costs) -> Timeline:
    """The predicted timeline of one step.

    Actions of a rank run one at a time in the order of its row. A result is at the next stage `costs.transfer`
    seconds after the end of the action that made it, without occupying either rank; at once on the same rank.

    Raises:
        InvalidSchedule: the schedule deadlocks, or waits for an action that is missing.
        ValueError: `costs` is for another number of stages.
    """
    try:
        timeline = _play(schedule, costs)
    except IndexError:
        check(schedule)
        raise
    if len(timeline.spans) < schedule.actions:
        check(schedule)
    return timeline


def _play(schedule: Schedule, costs: Costs) -> Timeline:  # noqa: PLR0915 - one loop, kept whole for speed
    stages, m, rows = schedule.stages, schedule.micro_batches, schedule.rows
    cost = costs.per_stage(stages)
    hops = costs.per_hop(stages)
    hop = [0 if schedule.placement.hop_is_local(s) else seconds for s, seconds in enumerate(hops)]

    # Flat lists indexed stage · m + micro-batch, as hashing tuples would cost more than everything else here.
    # arrival: of a stage's input in the first half, of its output's gradient in the second.
    cells = stages * m
    arrival: list[float | None] = [None] * (2 * cells)
    arrival[:m] = [0] * m
    arrival[2 * cells - m :] = [0] * m
    waiter: dict[int, int] = {}
    ready_for_backward = bytearray(cells)
    forward_done = bytearray(cells)
    input_done = bytearray(cells)
    recomputed = bytearray(cells)
    for row in rows:
        for stage, kind, k in row:
            if kind == RECOMPUTE:
                recomputed[stage * m + k] = 1

    spans: list[list[Span]] = [[] for _ in rows]
    clock: list[float] = [0] * len(rows)
    ready = list(range(len(rows)))
    while ready:
        rank = ready.pop()
        now, done, row = clock[rank], spans[rank], rows[rank]
        for at in range(len(done), len(row)):
            action = row[at]
            stage, kind, k = action
            cell = stage * m + k
            start = now
            if kind == FORWARD or (kind in GIVES_INPUT_GRADIENT and ready_for_backward[cell]):
                wanted = cell if kind == FORWARD else cells + cell
                came = arrival[wanted]
                if came is None:
                    waiter[wanted] = rank
                    break
                if came > now:
                    start = came
            elif not (forward_done if kind == RECOMPUTE else input_done)[cell] or kind in GIVES_INPUT_GRADIENT:
                break  # it waits for a later action of its own row, so for ever
            now = start + cost[kind][stage]
            done.append(Span(rank, action, start, now))
            sent = -1
            if kind == FORWARD:
                forward_done[cell] = 1
                ready_for_backward[cell] = not recomputed[cell]
                if stage + 1 < stages:
                    sent = cell + m
                    arrival[sent] = now + hop[stage]
            elif kind == RECOMPUTE:
                ready_for_backward[cell] = 1
            elif kind in GIVES_INPUT_GRADIENT:
                input_done[cell] = 1
                if stage > 0:
                    sent = cells + cell - m
                    arrival[sent] = now + hop[stage - 1]
            if sent >= 0 and waiter:
                woken = waiter.pop(sent, None)
                if woken is not None:
                    ready.append(woken)
        clock[rank] = now
    return Timeline(len(rows), tuple(span for row_spans in spans for span in row_spans))
