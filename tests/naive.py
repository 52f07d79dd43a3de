"""Slow, obvious versions of what the package does cleverly, and random schedules to compare them on.

Nothing here uses the package's own description of the data flow: that is what it is there to test.
"""

import random
from collections.abc import Sequence

from hypothesis import strategies as st

from headrace.schedule import Action, Placement, Schedule


def needs(schedule: Schedule) -> dict[Action, list[Action]]:
    """For each action, those whose results it needs."""
    every = {action for row in schedule.rows for action in row}
    result = {}
    for action in every:
        s, kind, k = action
        if kind == "F":
            wanted = [Action(s - 1, "F", k)] if s else []
        elif kind == "R":
            wanted = [Action(s, "F", k)]
        elif kind == "W":
            wanted = [Action(s, "I", k)]
        else:
            wanted = [Action(s, "R", k) if Action(s, "R", k) in every else Action(s, "F", k)]
            if s + 1 < schedule.stages:
                wanted.append(Action(s + 1, "I", k) if Action(s + 1, "I", k) in every else Action(s + 1, "B", k))
        result[action] = wanted
    return result


def runs_to_its_end(schedule: Schedule) -> bool:
    """Try it: over and over, every rank runs its next action if it can."""
    wanted, done = needs(schedule), set()
    left = [list(row) for row in schedule.rows]
    moved = True
    while moved:
        moved = False
        for row in left:
            if row and all(d in done for d in wanted[row[0]]):
                done.add(row.pop(0))
                moved = True
    return not any(left)


def deepest_queues(schedule: Schedule) -> dict[tuple[int, int], int]:
    """Visit every state that the ranks can be in together, and look at how many messages are under way in each."""
    wanted, holder = needs(schedule), schedule.placement.rank_of
    flows = [  # (sender's action, taker's action): data between ranks
        (d, action)
        for action, ds in wanted.items()
        for d in ds
        if d.stage != action.stage and holder[d.stage] != holder[action.stage]
    ]
    place = {action: (rank, i) for rank, row in enumerate(schedule.rows) for i, action in enumerate(row)}
    deepest = {(holder[a.stage], holder[b.stage]): 0 for a, b in flows}
    start = (0,) * schedule.ranks
    seen, todo = {start}, [start]
    while todo:
        state = todo.pop()

        def ran(action: Action, state: tuple[int, ...] = state) -> bool:
            rank, index = place[action]
            return index < state[rank]

        under_way = dict.fromkeys(deepest, 0)
        for sender, taker in flows:
            if ran(sender) and not ran(taker):
                under_way[holder[sender.stage], holder[taker.stage]] += 1
        deepest = {channel: max(depth, under_way[channel]) for channel, depth in deepest.items()}
        for rank, row in enumerate(schedule.rows):
            if state[rank] < len(row) and all(ran(d) for d in wanted[row[state[rank]]]):
                following = (*state[:rank], state[rank] + 1, *state[rank + 1 :])
                if following not in seen:
                    seen.add(following)
                    todo.append(following)
    return deepest


def play_tick_by_tick(schedule: Schedule, cost: dict[str, list[int]], hop: list[int]) -> dict[Action, tuple[int, int]]:
    """(start, end) of each action for whole-numbered costs: at each tick of a clock, who can start does."""
    wanted, holder = needs(schedule), schedule.placement.rank_of
    times: dict[Action, tuple[int, int]] = {}
    left = [list(row) for row in schedule.rows]
    free_at = [0] * schedule.ranks
    now = 0

    def there(d: Action, action: Action) -> bool:
        if d not in times:
            return False
        apart = holder[d.stage] != holder[action.stage]
        return now >= times[d][1] + (hop[min(d.stage, action.stage)] if apart else 0)

    while any(left):
        moved = True
        while moved:
            moved = False
            for rank, row in enumerate(left):
                if row and free_at[rank] <= now and all(there(d, row[0]) for d in wanted[row[0]]):
                    action = row.pop(0)
                    free_at[rank] = now + cost[action.kind][action.stage]
                    times[action] = (now, free_at[rank])
                    moved = True
        now += 1
    return times


EVERY_BACKWARD = ("B", "IW", "RB", "RIW")


def random_schedule(
    rng: random.Random, stages: int, ranks: int, micro_batches: int, backwards: Sequence[str] = EVERY_BACKWARD
) -> Schedule:
    """A valid schedule without rhyme or reason: any placement, any mix of kinds, any order that can run."""
    holder = [*range(ranks), *(rng.randrange(ranks) for _ in range(stages - ranks))]
    rng.shuffle(holder)
    cells = [(s, k) for s in range(stages) for k in range(micro_batches)]
    todo = [Action(s, "F", k) for s, k in cells]
    for s, k in cells:
        todo += [Action(s, kind, k) for kind in rng.choice(backwards)]
    whole = Schedule("random", (tuple(todo),), Placement(tuple([0] * stages)), micro_batches)
    wanted, done = needs(whole), set()
    rows: list[list[Action]] = [[] for _ in range(ranks)]
    while todo:
        action = rng.choice([a for a in todo if all(d in done for d in wanted[a])])
        todo.remove(action)
        done.add(action)
        rows[holder[action.stage]].append(action)
    return Schedule("random", tuple(map(tuple, rows)), Placement(tuple(holder)), micro_batches)


@st.composite
def schedules(draw: st.DrawFn, max_stages: int = 4, max_micro_batches: int = 4) -> Schedule:
    """Random valid schedules."""
    stages = draw(st.integers(1, max_stages))
    ranks = draw(st.integers(1, stages))
    micro_batches = draw(st.integers(1, max_micro_batches))
    return random_schedule(draw(st.randoms(use_true_random=False)), stages, ranks, micro_batches)
