"""Rows by list scheduling: at every tick of a clock, each idle rank starts the first thing that it can.

Used where a good order is easier to describe by a rule of preference than by a formula. It is deterministic, so the
same numbers give the same schedule everywhere.
"""

from collections import deque
from collections.abc import Mapping, Sequence

from headrace.schedule.actions import BACKWARD_INPUT, BACKWARD_WEIGHT, ENDS_BACKWARD, FORWARD, Action, Kind
from headrace.schedule.dependencies import Dependencies


class Stuck(Exception):
    """The rule of preference ran into a deadlock for want of room."""


def list_schedule(
    queues: Sequence[Sequence[Sequence[Action]]],
    stages: int,
    *,
    ticks: Mapping[Kind, int],
    reach: int = 1,
    room: int | None = None,
) -> tuple[tuple[Action, ...], ...]:
    """What each rank runs if it prefers earlier queues, and earlier actions of a queue.

    A W is in no queue: a rank that can start nothing else runs the oldest W that it owes for an I.

    Args:
        queues: per rank, its queues of actions.
        stages: how many stages there are.
        ticks: how long each kind of action takes.
        reach: how many actions from the front of each queue a rank looks at.
        room: how many (stage, micro-batch) may be in flight on a rank; None for any number.

    Raises:
        Stuck: the rule ran into a deadlock, which only a `room` can bring about.
    """
    needs = Dependencies([[action for queue in of_rank for action in queue] for of_rank in queues], stages)
    left = [[deque(queue) for queue in of_rank] for of_rank in queues]
    owed: list[deque[Action]] = [deque() for _ in queues]
    rows: list[list[Action]] = [[] for _ in queues]
    in_flight = [0 for _ in queues]
    free_at = [0 for _ in queues]
    ended: dict[Action, int] = {}
    now = 0

    def can_start(rank: int, action: Action) -> bool:
        if action.kind == FORWARD and room is not None and in_flight[rank] >= room:
            return False
        return all(needed in ended and ended[needed] <= now for needed in needs.of(action))

    def take(rank: int) -> Action | None:
        for queue in left[rank]:
            for at in range(min(reach, len(queue))):
                action = queue[at]
                if can_start(rank, action):
                    del queue[at]
                    return action
        return owed[rank].popleft() if owed[rank] else None

    while any(owed) or any(queue for of_rank in left for queue in of_rank):
        for rank, row in enumerate(rows):
            action = take(rank) if free_at[rank] <= now else None
            if action is None:
                continue
            row.append(action)
            ended[action] = free_at[rank] = now + ticks[action.kind]
            if action.kind == BACKWARD_INPUT:
                owed[rank].append(Action(action.stage, BACKWARD_WEIGHT, action.micro_batch))
            in_flight[rank] += (action.kind == FORWARD) - (action.kind in ENDS_BACKWARD)
        if max(free_at) <= now:
            raise Stuck
        now += 1
    return tuple(map(tuple, rows))
