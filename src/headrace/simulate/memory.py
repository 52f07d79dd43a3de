"""How many bytes each rank holds, from the order of its row alone or over the time of a step.

    bytes            ┌──┐                      what an action takes, it takes when it begins;
               ┌─────┘  └──┐                   what it gives back, it gives back when it ends
         ┌─────┘           └─────┐
    ─────┘ parameters            └─────
         F0    F1    B0    B1       → seconds

A row fixes the order of its own beginnings and ends, and nobody else allocates on its rank. So the peak follows from
the order, whatever the timing; the costs only say when it comes.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, chain
from operator import itemgetter

from headrace.costs import Bytes, Memory, Seconds
from headrace.schedule.actions import (
    BACKWARD,
    BACKWARD_INPUT,
    BACKWARD_WEIGHT,
    FORWARD,
    GIVES_INPUT_GRADIENT,
    RECOMPUTE,
    UPDATE,
    Action,
)
from headrace.schedule.schedule import Schedule
from headrace.schedule.versions import version_read
from headrace.timeline import Timeline, Track

Change = tuple[Bytes, Bytes]
"""What an action takes at its begin and at its end; less than 0 where it gives back."""


def peak_memory_of(schedule: Schedule, memory: Memory) -> tuple[Bytes, ...]:
    """Per rank, the most bytes that it holds at a time, whatever actions cost.

    Raises:
        ValueError: `memory` is for another number of stages.
    """
    return tuple(peaks_by_rank(schedule, memory))


def peaks_by_rank(schedule: Schedule, memory: Memory) -> Iterator[Bytes]:
    """The same, rank by rank, for those who may have seen enough after the first one."""
    for rank in range(schedule.ranks):
        changes = chain.from_iterable(_changes(schedule, rank, memory))
        yield max(accumulate(changes, initial=_always(schedule, rank, memory)))


def memory_over_time(
    timeline: Timeline, schedule: Schedule, memory: Memory
) -> tuple[tuple[tuple[Seconds, Bytes], ...], ...]:
    """Per rank, (seconds, bytes) wherever the bytes change, the first at 0; each holds until the next.

    Where several changes fall on one instant, all of them are there, in the order of the row.

    Args:
        timeline: a simulated or measured step of `schedule`.
        schedule: as it was run.
        memory: what its stages hold.

    Raises:
        ValueError: `memory` is for another number of stages, or `timeline` is not of `schedule`.
    """
    return tuple(
        _over_time(_always(schedule, rank, memory), list(_changes(schedule, rank, memory)), track.starts, track.ends)
        for rank, track in enumerate(_tracks_of(schedule, timeline))
    )


def peak_memory(timeline: Timeline, schedule: Schedule, memory: Memory) -> tuple[Bytes, ...]:
    """Per rank, the most bytes of `memory_over_time`.

    Raises:
        ValueError: as there.
    """
    return tuple(max(held for _, held in steps) for steps in memory_over_time(timeline, schedule, memory))


def _tracks_of(schedule: Schedule, timeline: Timeline) -> tuple[Track, ...]:
    """The tracks of `timeline`, if they are those of `schedule`; updates may follow at the end of the step."""
    if timeline.ranks != schedule.ranks:
        raise ValueError(f"the timeline has {timeline.ranks} ranks, but {schedule.name} has {schedule.ranks}")
    for rank, (row, track) in enumerate(zip(schedule.rows, timeline.tracks, strict=True)):
        if tuple(track.actions[: len(row)]) != tuple(row):
            raise ValueError(f"the timeline is of another schedule: rank {rank} does not run {schedule.name}'s row")
    return timeline.tracks


def _over_time(
    always: Bytes, changes: Iterable[Change], starts: Sequence[Seconds], ends: Sequence[Seconds]
) -> tuple[tuple[Seconds, Bytes], ...]:
    moments: list[tuple[Seconds, Bytes]] = [(0, always)]
    for (takes, leaves), start, end in zip(changes, starts, ends, strict=False):
        if takes:
            moments.append((start, takes))
        if leaves:
            moments.append((end, leaves))
    moments.sort(key=itemgetter(0))
    held = accumulate(change for _, change in moments)
    return tuple((moment, now) for (moment, _), now in zip(moments, held, strict=True))


def _always(schedule: Schedule, rank: int, memory: Memory) -> Bytes:
    parameters = memory.per_stage("parameters", schedule.stages)
    return sum(parameters[stage] for stage in schedule.placement.stages_of(rank))


def _changes(schedule: Schedule, rank: int, memory: Memory) -> Iterator[Change]:
    """What each action of a rank takes and leaves, see `Memory`."""
    stages = set(schedule.placement.stages_of(rank))
    changes = _of_stages(schedule, rank, memory)
    if any(stage + 1 in stages for stage in stages):
        both = zip(changes, _between_stages(schedule, rank, memory), strict=True)
        changes = ((a + c, b + d) for (a, b), (c, d) in both)
    return _at_once(schedule, rank, changes) if schedule.pairs else changes


def _at_once(schedule: Schedule, rank: int, changes: Iterator[Change]) -> Iterator[Change]:
    """The changes of a row where the first of a pair gives back only when both end."""
    owed: Bytes = 0
    for action, (takes, leaves) in zip(schedule.rows[rank], changes, strict=True):
        first = action in schedule.pairs
        yield takes, 0 if first else leaves + owed
        owed = leaves if first else 0


def _of_stages(schedule: Schedule, rank: int, memory: Memory) -> Iterator[Change]:
    """What stages keep, each by itself."""
    stages, row = schedule.stages, schedule.rows[rank]
    activations, for_weight = memory.per_stage("activations", stages), memory.per_stage("for_weight", stages)
    stage_input, version = memory.per_stage("stage_input", stages), memory.per_stage("version", stages)
    working = memory.per_stage("working", stages)
    recomputed = _recomputed(row)
    stashes, drops = _stashed_versions(schedule, rank)
    for at, (stage, kind, k) in enumerate(row):
        takes: Bytes = 0
        leaves: Bytes = 0
        meanwhile = 0 if kind == UPDATE else working[stage]
        if kind == FORWARD:
            takes = stage_input[stage] if (stage, k) in recomputed else activations[stage]
        elif kind == RECOMPUTE:
            takes = activations[stage] - stage_input[stage]
        elif kind == BACKWARD:
            leaves = -activations[stage]
        elif kind == BACKWARD_INPUT:
            leaves = for_weight[stage] - activations[stage]
        elif kind == BACKWARD_WEIGHT:
            leaves = -for_weight[stage]
        yield (
            takes + meanwhile + version[stage] * (at in stashes),
            leaves - meanwhile - version[stage] * (at in drops),
        )


def _between_stages(schedule: Schedule, rank: int, memory: Memory) -> Iterator[Change]:
    """What waits between two stages of this rank, less what both keep.

    1F begins   2F begins                2B ends     1B begins
        ├─ output ─┤                        ├─ gradient ─┤         that of 2 is nobody's until 1 takes it up
        ├─ − what 1 keeps of it ─── … ──────┤                      as 2 counts it among its activations, too
    """
    placement, row = schedule.placement, schedule.rows[rank]
    stage_input, shared = (memory.per_stage(name, schedule.stages) for name in ("stage_input", "shared"))
    recomputed = _recomputed(row)

    def here(stage: int, k: int) -> bool:
        return 0 <= stage < schedule.stages and placement.rank(stage, k) == rank

    for stage, kind, k in row:
        takes: Bytes = 0
        leaves: Bytes = 0
        if kind == FORWARD:
            takes -= stage_input[stage] if here(stage - 1, k) else 0
            if here(stage + 1, k):
                takes += stage_input[stage + 1] - (0 if (stage, k) in recomputed else shared[stage + 1])
        elif kind in GIVES_INPUT_GRADIENT:
            takes -= stage_input[stage + 1] if here(stage + 1, k) else 0
            if here(stage - 1, k):
                leaves += stage_input[stage] + (0 if (stage - 1, k) in recomputed else shared[stage])
        yield takes, leaves


def _recomputed(row: Sequence[Action]) -> set[tuple[int, int]]:
    return {(stage, k) for stage, kind, k in row if kind == RECOMPUTE}


def _stashed_versions(schedule: Schedule, rank: int) -> tuple[set[int], set[int]]:
    """Where in a rank's row an update puts a copy of the old weights aside, and where such a copy is read last."""
    row = schedule.rows[rank]
    if not any(action.kind == UPDATE for action in row):
        return set(), set()
    reads = version_read(schedule, rank)
    last = {(stage, reads[stage, k]): at for at, (stage, kind, k) in enumerate(row) if kind != UPDATE}
    stashes, drops = set(), set()
    updates: dict[int, int] = {}
    for at, (stage, kind, _) in enumerate(row):
        if kind == UPDATE:
            old = updates.get(stage, 0)
            updates[stage] = old + 1
            if last.get((stage, old), -1) > at:
                stashes.add(at)
                drops.add(last[stage, old])
    return stashes, drops
