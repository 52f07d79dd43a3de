"""The end of a synchronous step: each stage's gradients are reduced over its replicas, and its weights updated.

    rank 0  … 0B3 ][ 0U3 ]····[ 1U3 ]     two-way: both ranks hold both stages; each reduction begins on all its ranks
    rank 1  …   1B3 ][···0U3 ][ 1U3 ]     at once, when the last of them is free; stages in their order, as in any
                                          collective, so that no two ranks wait for each other

Written as one U a stage, with the last micro-batch's number. Asynchronous schedules have their U in their rows.
"""

from collections.abc import Sequence

from headrace.costs import Costs, Seconds, spread
from headrace.schedule.actions import UPDATE, Action
from headrace.schedule.schedule import Schedule
from headrace.timeline import Track


def updates_at_the_end(schedule: Schedule, costs: Costs, tracks: Sequence[Track]) -> list[Track]:
    """`tracks`, each with the updates of its stages behind it; unchanged where they take no time.

    A stage's update begins when all the ranks that hold the stage have run their rows and the updates of the stages
    before it, and lasts `reduce` + `update`.
    """
    reduce = spread("reduce", costs.reduce, schedule.stages, "stages")
    update = spread("update", costs.update, schedule.stages, "stages")
    seconds = [r + u for r, u in zip(reduce, update, strict=True)]
    if not any(seconds) or schedule.asynchronous:
        return list(tracks)
    free: list[Seconds] = [track.ends[-1] if track.ends else 0 for track in tracks]
    added: list[list[tuple[Action, Seconds, Seconds]]] = [[] for _ in tracks]
    for stage in range(schedule.stages):
        if not seconds[stage]:
            continue
        holders = schedule.placement.replicas_of(stage)
        start = max(free[rank] for rank in holders)
        for rank in holders:
            free[rank] = start + seconds[stage]
            added[rank].append((Action(stage, UPDATE, schedule.micro_batches - 1), start, free[rank]))
    return [
        Track(*((*column, *more) for column, more in zip(track, zip(*spans, strict=True), strict=True)))
        if spans
        else track
        for track, spans in zip(tracks, added, strict=True)
    ]
