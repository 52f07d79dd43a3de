"""Slow, obvious versions of what the package does cleverly, and random schedules to compare them on.

Nothing here uses the package's own description of the data flow: that is what it is there to test.
"""

import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise

from hypothesis import strategies as st

from headrace.schedule import Action, Placement, Schedule, build


def built(name: str, ranks: int, micro_batches: int) -> Schedule:
    """That schedule of the catalogue; on one rank more if it only takes an even number of them."""
    try:
        return build(name, ranks=ranks, micro_batches=micro_batches)
    except ValueError:
        return build(name, ranks=ranks + 1, micro_batches=micro_batches)


def needs(schedule: Schedule) -> dict[Action, list[Action]]:
    """For each action, those whose results it needs."""
    every = {action for row in schedule.rows for action in row}
    result = {}
    for action in every:
        s, kind, k = action
        cut = schedule.segments
        if kind == "F":
            wanted = [Action(s - 1, "F", k)] if s else []
            if k % cut:
                wanted.append(Action(s, "F", k - 1))
        elif kind == "U":
            wanted = [Action(s, "W", k) if Action(s, "W", k) in every else Action(s, "B", k)]
        elif kind == "R":
            wanted = [Action(s, "F", k)]
        elif kind == "W":
            wanted = [Action(s, "I", k)]
        else:
            wanted = [Action(s, "R", k) if Action(s, "R", k) in every else Action(s, "F", k)]
            if s + 1 < schedule.stages:
                wanted.append(Action(s + 1, "I", k) if Action(s + 1, "I", k) in every else Action(s + 1, "B", k))
            if (k + 1) % cut:
                wanted.append(Action(s, "I", k + 1) if Action(s, "I", k + 1) in every else Action(s, "B", k + 1))
        result[action] = wanted
    return result


def runs_to_its_end(schedule: Schedule) -> bool:
    """Try it: over and over, every rank runs its next action, or overlapped pair, if it can."""
    wanted, done = needs(schedule), set()
    left = [units(row, schedule.pairs) for row in schedule.rows]
    moved = True
    while moved:
        moved = False
        for row in left:
            if row and all(d in done for action in row[0] for d in wanted[action]):
                done.update(row.pop(0))
                moved = True
    return not any(left)


def units(row: Sequence[Action], pairs: Collection[Action]) -> list[tuple[Action, ...]]:
    """What a rank does one after the other: actions, and pairs."""
    rest = iter(row)
    return [(action, next(rest)) if action in pairs else (action,) for action in rest]


def deepest_queues(schedule: Schedule) -> dict[tuple[int, int], int]:
    """Visit every state that the ranks can be in together, and look at how many messages are under way in each."""
    wanted = needs(schedule)

    def holder(action: Action) -> int:
        return schedule.placement.rank(action.stage, action.micro_batch)

    flows = [  # (sender's action, taker's action): data between ranks
        (d, action) for action, ds in wanted.items() for d in ds if holder(d) != holder(action)
    ]
    rows = [units(row, schedule.pairs) for row in schedule.rows]
    place = {action: (rank, i) for rank, row in enumerate(rows) for i, unit in enumerate(row) for action in unit}
    deepest = {(holder(a), holder(b)): 0 for a, b in flows}
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
                under_way[holder(sender), holder(taker)] += 1
        deepest = {channel: max(depth, under_way[channel]) for channel, depth in deepest.items()}
        for rank, row in enumerate(rows):
            if state[rank] < len(row) and all(ran(d) for action in row[state[rank]] for d in wanted[action]):
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


Number = int | Fraction


def play(
    schedule: Schedule,
    cost: Mapping[str, Sequence[Number]],
    hop: Sequence[Number],
    sending: Sequence[Number],
    *,
    one_at_a_time: bool = False,
    pair: Sequence[Number] | None = None,
) -> dict[Action, tuple[Number, Number]]:
    """(start, end) of each action: over and over, whoever can run something does, until nothing moves.

    Args:
        schedule: a valid one.
        cost: for each kind, its seconds at each stage.
        hop: the latency between each stage and the next.
        sending: how long a message occupies the link between each stage and the next.
        one_at_a_time: whether a message waits until the one sent before it has left the link.
        pair: seconds of an overlapped pair, for each stage of its forward; both costs together if None.
    """
    wanted, rank_of = needs(schedule), schedule.placement.rank
    times: dict[Action, tuple[Number, Number]] = {}
    comes: dict[Action, Number] = {}  # when what an action sends is on the rank that wants it
    link_is_free: dict[tuple[int, int], Number] = {}
    free: list[Number] = [0] * schedule.ranks
    left = [units(row, schedule.pairs) for row in schedule.rows]

    def send(action: Action, rank: int, end: Number) -> None:
        to = action.stage + (1 if action.kind == "F" else -1)
        if not 0 <= to < schedule.stages or rank_of(to, action.micro_batch) == rank:
            comes[action] = end
            return
        link, between = (rank, rank_of(to, action.micro_batch)), min(to, action.stage)
        leaves = max(end, link_is_free.get(link, 0)) if one_at_a_time else end
        link_is_free[link] = leaves + sending[between]
        comes[action] = leaves + sending[between] + hop[between]

    moved = True
    while moved:
        moved = False
        for rank, row in enumerate(left):
            if not row or not all(d in times for action in row[0] for d in wanted[action]):
                continue
            moved = True
            unit = row.pop(0)
            needed = [(d, action) for action in unit for d in wanted[action]]
            start = max([free[rank], *(comes[d] if d.stage != action.stage else times[d][1] for d, action in needed)])
            seconds = sum(cost[action.kind][action.stage] for action in unit)
            if len(unit) > 1 and pair is not None:
                seconds = pair[unit[0].stage]
            free[rank] = start + seconds
            for action in unit:
                times[action] = (start, free[rank])
                if action.kind in "FBI":
                    send(action, rank, free[rank])
    return times


EVERY_BACKWARD = ("B", "IW", "RB", "RIW")


def random_schedule(
    rng: random.Random, stages: int, ranks: int, micro_batches: int, backwards: Sequence[str] = EVERY_BACKWARD
) -> Schedule:
    """A valid schedule without rhyme or reason: any placement, any mix of kinds, any order that can run."""
    holder = [*range(ranks), *(rng.randrange(ranks) for _ in range(stages - ranks))]
    rng.shuffle(holder)
    return any_order(rng, Placement(tuple(holder)), micro_batches, 1, backwards)


def any_order(
    rng: random.Random, placement: Placement, micro_batches: int, segments: int, backwards: Sequence[str]
) -> Schedule:
    """A valid schedule for a placement, in any order that can run."""
    cells = [(s, k) for s in range(placement.stages) for k in range(micro_batches)]
    todo = [Action(s, "F", k) for s, k in cells]
    for s, k in cells:
        todo += [Action(s, kind, k) for kind in rng.choice(backwards)]
    whole = Schedule("random", (tuple(todo),), placement, micro_batches, segments=segments)
    wanted, done = needs(whole), set()
    rows: list[list[Action]] = [[] for _ in range(placement.ranks)]
    while todo:
        action = rng.choice([a for a in todo if all(d in done for d in wanted[a])])
        todo.remove(action)
        done.add(action)
        rows[placement.rank(action.stage, action.micro_batch)].append(action)
    return replace(whole, rows=tuple(map(tuple, rows)))


@st.composite
def schedules(draw: st.DrawFn, max_stages: int = 4, max_micro_batches: int = 4) -> Schedule:
    """Random valid schedules."""
    stages = draw(st.integers(1, max_stages))
    ranks = draw(st.integers(1, stages))
    micro_batches = draw(st.integers(1, max_micro_batches))
    return random_schedule(draw(st.randoms(use_true_random=False)), stages, ranks, micro_batches)


@st.composite
def rich_schedules(draw: st.DrawFn, max_segments: int = 3, updates: bool | None = None) -> Schedule:
    """Random valid schedules with lanes, segments and overlapped pairs, or with updates; or now these, now those."""
    rng = draw(st.randoms(use_true_random=False))
    stages = draw(st.integers(1, 4))
    ranks = draw(st.integers(1, stages))
    segments = draw(st.integers(1, max_segments))
    sequences = draw(st.integers(1, 3))
    holders = []
    for _ in range(1 if updates else draw(st.integers(1, 3))):
        holder = [*range(ranks), *(rng.randrange(ranks) for _ in range(stages - ranks))]
        rng.shuffle(holder)
        holders.append(tuple(holder))
    lane_of = tuple(lane for lane in (rng.randrange(len(holders)) for _ in range(sequences)) for _ in range(segments))
    placement = Placement(holders[0], tuple(holders[1:]), lane_of if len(holders) > 1 else ())
    updated = updates if updates is not None else len(holders) == 1 and draw(st.booleans())
    backwards = [b + "U" for b in EVERY_BACKWARD] if updated else EVERY_BACKWARD
    schedule = any_order(rng, placement, sequences * segments, segments, backwards)
    for row in schedule.rows:
        for a, b in pairwise(row):
            if a.kind == "F" and b.kind in "BI" and a.micro_batch != b.micro_batch:
                overlapped = replace(schedule, pairs=schedule.pairs | {a})
                if rng.random() < 0.8 and runs_to_its_end(overlapped):
                    schedule = overlapped
    return schedule
