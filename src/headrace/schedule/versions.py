"""Which weights an asynchronous schedule reads: how its updates (U) cut the stream of micro-batches into groups.

    pipedream, stage 0 of 3       F0 F1 F2 B0 U0 F3 B1 U1 F4 B2 U2 …     (Narayanan et al., 2019)
      weights that F reads         0  0  0        1        2

    delay=1, groups of 3          F0 F1 F2 F3 B0 F4 B1 F5 B2 U2 F6 …     (pipedream-2bw: Narayanan et al., 2021)
      weights that F reads         0  0  0  0     0     0        0       one update behind its group, on every stage

The backward of a micro-batch reads what its forward read, so a stage keeps each version until nobody needs it.
"""

from collections.abc import Sequence

from headrace.schedule.actions import ENDS_BACKWARD, FORWARD, UPDATE, Action
from headrace.schedule.schedule import Schedule


def version_read(schedule: Schedule, rank: int) -> dict[tuple[int, int], int]:
    """For each (stage, micro-batch) of a rank, the number of updates that the weights have had which it reads."""
    row = schedule.rows[rank]
    done: dict[int, int] = {}
    newest: dict[tuple[int, int], int] = {}
    for stage, kind, k in row:
        if kind == UPDATE:
            done[stage] = done.get(stage, 0) + 1
        elif kind == FORWARD:
            newest[stage, k] = done.get(stage, 0)
    if schedule.delay is None:
        return newest
    group = groups(row)
    return {(stage, k): max(group.get((stage, k), 0) - schedule.delay, 0) for stage, k in newest}


def check_updates(schedule: Schedule) -> str | None:
    """What is wrong with the updates of `schedule`, in words; None if nothing is."""
    if not schedule.asynchronous:
        return None if schedule.delay is None else f"delay={schedule.delay}, but {schedule.name} has no U"
    if len(schedule.placement.lanes) > 1:
        return "stages with replicas in several lanes cannot be updated within a step: the replicas would differ"
    for rank, row in enumerate(schedule.rows):
        fault = _check_row(schedule, rank, row)
        if fault:
            return fault
    return None


def _check_row(schedule: Schedule, rank: int, row: tuple[Action, ...]) -> str | None:
    used = groups(row)
    reads = version_read(schedule, rank)
    updates: dict[int, int] = {}
    for action in row:
        stage, kind, k = action
        if kind == UPDATE:
            updates[stage] = updates.get(stage, 0) + 1
        elif kind == FORWARD and reads[stage, k] > updates.get(stage, 0):
            return (
                f"rank {rank} runs {action} after {updates.get(stage, 0)} updates of stage {stage}, "
                f"but with delay={schedule.delay} it reads the weights after {reads[stage, k]}"
            )
        elif kind in ENDS_BACKWARD and (stage, k) not in used:
            return f"rank {rank} runs {action}, but no later U of stage {stage} uses its gradient"
    return None


def groups(row: Sequence[Action]) -> dict[tuple[int, int], int]:
    """For each (stage, micro-batch) whose gradient an update uses, which update of that stage."""
    group: dict[tuple[int, int], int] = {}
    waiting: dict[int, list[int]] = {}
    updates: dict[int, int] = {}
    for stage, kind, k in row:
        if kind in ENDS_BACKWARD:
            waiting.setdefault(stage, []).append(k)
        elif kind == UPDATE:
            number = updates.get(stage, 0)
            updates[stage] = number + 1
            group.update(((stage, done), number) for done in waiting.pop(stage, ()))
    return group


def peak_versions(schedule: Schedule) -> tuple[int, ...]:
    """Per rank, the most versions of one stage's weights that it keeps at a time."""
    return tuple(_peak(schedule, rank, row) for rank, row in enumerate(schedule.rows))


def _peak(schedule: Schedule, rank: int, row: tuple[Action, ...]) -> int:
    if not any(action.kind == UPDATE for action in row):
        return 1
    reads = version_read(schedule, rank)
    last = {}  # where each version of each stage is read for the last time
    for at, (stage, kind, k) in enumerate(row):
        if kind != UPDATE:
            last[stage, reads[stage, k]] = at
    updates: dict[int, int] = dict.fromkeys((action.stage for action in row), 0)
    peak = 1
    for at, (stage, kind, _) in enumerate(row):
        if kind == UPDATE:
            updates[stage] += 1
        newest = updates[stage]
        older = sum(last.get((stage, version), -1) > at for version in range(newest))
        peak = max(peak, older + 1)
    return peak
