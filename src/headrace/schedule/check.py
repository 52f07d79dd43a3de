"""Proof before running: a schedule is complete and cannot deadlock, or here is exactly why not.

With receives in the order of sends and sends that never block, a schedule is free of deadlock exactly when data-flow
edges (see `dependencies`) and the order inside each row together have no cycle, whatever the timing. So it is enough
to play it once:

    every rank runs its next action as soon as what it waits for has run
    ├─ all rows end      → there is a valid order, hence no cycle, hence no deadlock at any speed
    └─ nothing can move  → following "waits for" from a stuck rank must come back: that cycle is the refutation
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from headrace.schedule.actions import (
    BACKWARD,
    BACKWARD_INPUT,
    BACKWARD_WEIGHT,
    ENDS_BACKWARD,
    FORWARD,
    GIVES_INPUT_GRADIENT,
    Action,
)
from headrace.schedule.dependencies import Dependencies
from headrace.schedule.messages import Channel, channels
from headrace.schedule.queues import queue_depth
from headrace.schedule.schedule import Schedule
from headrace.schedule.versions import check_updates, peak_versions


class InvalidSchedule(ValueError):
    """A schedule that must not run; the message says why in words.

    Attributes:
        waits: the cycle of waits, as (rank, action that waits, action waited for); empty for other faults.
    """

    def __init__(self, message: str, waits: tuple[tuple[int, Action, Action], ...] = ()) -> None:
        super().__init__(message)
        self.waits = waits


@dataclass(frozen=True)
class Proof:
    """What has been proved of a schedule.

    Attributes:
        schedule: the schedule that this is about.
        peak_in_flight: per rank, the most (stage, micro-batch) pairs whose F has begun and whose last backward
            part has not ended. It follows from the order alone, whatever the timing.
        queue_depth: per channel, how many messages can be under way at most, whatever the timing: with queues
            of this depth no send ever waits.
        weight_versions: per rank, the most versions of one stage's weights that are needed at a time; more than 1
            only in asynchronous schedules.
    """

    schedule: Schedule
    peak_in_flight: tuple[int, ...]
    queue_depth: Mapping[Channel, int]
    weight_versions: tuple[int, ...]

    def __str__(self) -> str:
        s = self.schedule
        depth = max(self.queue_depth.values(), default=0)
        return (
            f"{s.name}: {s.actions} actions on {s.ranks} ranks are complete and cannot deadlock; "
            f"in flight at most {', '.join(map(str, self.peak_in_flight))}; queues of {depth} suffice"
        )


def check(schedule: Schedule) -> Proof:
    """Prove that `schedule` may run.

    Every (stage, micro-batch) must have one F, then at most one R, then one B or one I and one W, each on the rank
    that holds the stage for it; pairs must be a forward and a backward that can overlap; updates, if there are any,
    must use each gradient once and find the weights that a forward is to read; and no order of events may deadlock.

    Raises:
        TypeError: it is none.
        InvalidSchedule: it may not; the message names the action, or the cycle of waits.
    """
    if not isinstance(schedule, Schedule):
        raise TypeError(f"schedule={schedule!r} must be a headrace Schedule: parse() reads one in grid notation")
    _check_parts(schedule)
    _check_pairs(schedule)
    dependencies = Dependencies(schedule.rows, schedule.stages, schedule.segments, schedule.pairs)
    order = _play(schedule, dependencies)
    fault = check_updates(schedule)
    if fault:
        raise InvalidSchedule(fault)
    return Proof(
        schedule,
        _peak_in_flight(schedule),
        queue_depth(schedule, order, channels(schedule)),
        peak_versions(schedule),
    )


def _check_parts(schedule: Schedule) -> None:
    placement, m = schedule.placement, schedule.micro_batches
    if schedule.ranks != placement.ranks:
        raise InvalidSchedule(
            f"{schedule.name} has {schedule.ranks} rows, but its placement names {placement.ranks} ranks"
        )
    lanes = placement.lane_of
    if len(placement.lanes) > 1 and len(lanes) != m:
        raise InvalidSchedule(f"{schedule.name} has {m} micro-batches, but its placement has lanes for {len(lanes)}")
    if m % schedule.segments:
        raise InvalidSchedule(f"{schedule.name} has {m} segments, which is no multiple of segments={schedule.segments}")
    split = next((k for k in range(m) if placement.lane(k) != placement.lane(k - k % schedule.segments)), None)
    if split is not None:
        raise InvalidSchedule(f"the segments of micro-batch {split // schedule.segments} travel in different lanes")
    kinds: dict[tuple[int, int], str] = {}  # of each (stage, micro-batch)
    for rank, row in enumerate(schedule.rows):
        for action in row:
            stage, kind, k = action
            if not (0 <= stage < placement.stages and 0 <= k < m):
                raise InvalidSchedule(
                    f"rank {rank} runs {action}, but there are only stages 0…{placement.stages - 1} "
                    f"and micro-batches 0…{m - 1}"
                )
            if placement.rank(stage, k) != rank:
                raise InvalidSchedule(
                    f"rank {rank} runs {action}, but rank {placement.rank(stage, k)} holds stage {stage}"
                    + (f" for micro-batch {k}" if placement.lane_of else "")
                )
            has = kinds.get((stage, k), "")
            if kind in has:
                raise InvalidSchedule(f"rank {rank} runs {action} twice")
            kinds[stage, k] = has + kind
    for stage in range(placement.stages):
        for k in range(m):
            _check_one(kinds.get((stage, k), ""), placement.rank(stage, k), stage, k)


def _check_pairs(schedule: Schedule) -> None:
    left = set(schedule.pairs)
    for rank, row in enumerate(schedule.rows):
        for at, action in enumerate(row):
            if action not in left:
                continue
            left.remove(action)
            other = row[at + 1] if at + 1 < len(row) else None
            if (
                action.kind != FORWARD
                or other is None
                or other.kind not in GIVES_INPUT_GRADIENT
                or other.micro_batch == action.micro_batch
            ):
                raise InvalidSchedule(
                    f"rank {rank} overlaps {action} with {other or 'nothing'}: a pair is a forward, then a backward "
                    "(B or I) of another micro-batch"
                )
    if left:
        raise InvalidSchedule(f"a pair begins with {min(left)}, which no rank runs")


def _check_one(has: str, rank: int, stage: int, k: int) -> None:
    if FORWARD not in has:
        raise InvalidSchedule(f"{stage}F{k} is missing: rank {rank} holds stage {stage} and never runs it")
    if BACKWARD in has:
        extra = next((kind for kind in (BACKWARD_INPUT, BACKWARD_WEIGHT) if kind in has), None)
        if extra:
            raise InvalidSchedule(
                f"rank {rank} runs both {stage}B{k} and {stage}{extra}{k}: B already contains I and W, so drop one"
            )
    elif (BACKWARD_INPUT in has) != (BACKWARD_WEIGHT in has):
        there, absent = ("I", "W") if BACKWARD_INPUT in has else ("W", "I")
        raise InvalidSchedule(
            f"{stage}{absent}{k} is missing: rank {rank} runs {stage}{there}{k}, and a split backward needs both parts"
        )
    elif BACKWARD_INPUT not in has:
        raise InvalidSchedule(
            f"{stage}B{k} (or {stage}I{k} and {stage}W{k}) is missing: rank {rank} never runs the backward"
        )


def _play(schedule: Schedule, dependencies: Dependencies) -> list[tuple[int, Action]]:
    """Run everything in some valid order and return it as (rank, action), or raise with the cycle."""
    rows = schedule.rows
    position = [0] * len(rows)
    done: set[Action] = set()
    waiting: dict[Action, int] = {}
    order: list[tuple[int, Action]] = []
    ready = deque(range(len(rows)))
    while ready:
        rank = ready.popleft()
        row = rows[rank]
        while position[rank] < len(row):
            action = row[position[rank]]
            for needed in dependencies.of(action):
                if needed not in done:
                    break
            else:
                done.add(action)
                order.append((rank, action))
                position[rank] += 1
                woken = waiting.pop(action, None)
                if woken is not None and woken != rank:
                    ready.append(woken)
                continue
            waiting[needed] = rank
            break
    stuck = [rank for rank, row in enumerate(rows) if position[rank] < len(row)]
    if stuck:
        raise _refutation(schedule, dependencies, position, done, stuck[0])
    return order


def _refutation(
    schedule: Schedule, dependencies: Dependencies, position: list[int], done: set[Action], rank: int
) -> InvalidSchedule:
    """Follow the waits from a stuck rank until one rank comes up again: what lies between is the cycle."""
    rank_of = schedule.placement.rank
    path: list[tuple[int, Action, Action]] = []
    while rank not in (earlier for earlier, _, _ in path):
        waits = schedule.rows[rank][position[rank]]
        wanted = next(d for d in dependencies.of(waits) if d not in done)
        path.append((rank, waits, wanted))
        rank = rank_of(wanted.stage, wanted.micro_batch)
    start = next(i for i, (earlier, _, _) in enumerate(path) if earlier == rank)
    cycle = tuple(path[start:])
    sentences = []
    for i, (at, waits, wanted) in enumerate(cycle):
        owner, blocker, _ = cycle[(i + 1) % len(cycle)]
        who = "it" if owner == at else f"rank {owner}"
        sentences.append(f"rank {at} waits at {waits} for {wanted}, which {who} runs only after {blocker}")
    return InvalidSchedule(f"{schedule.name} deadlocks: " + "; ".join(sentences), cycle)


def _peak_in_flight(schedule: Schedule) -> tuple[int, ...]:
    peaks = []
    for row in schedule.rows:
        now = peak = 0
        for action in row:
            if action.kind == FORWARD:
                now += 1
                peak = max(peak, now)
            elif action.kind in ENDS_BACKWARD:
                now -= 1
        peaks.append(peak)
    return tuple(peaks)
