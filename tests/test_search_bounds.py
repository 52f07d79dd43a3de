"""The lower bound and the exact search, each beside plain enumeration of every order there is."""

from importlib import import_module
from itertools import product
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from search_cases import instances, within

from headrace import Bytes, Costs, InFlight, search
from headrace.costs import Memory
from headrace.schedule import Placement, Schedule
from headrace.schedule.actions import Action
from headrace.search import lower_bound
from headrace.search.problem import problem_of


def every_order(cells):
    """All orders of F, I and W of some (stage, micro-batch) that keep each one's own three in turn."""
    if all(done == 3 for done in cells.values()):
        yield ()
    for (stage, k), done in cells.items():
        if done < 3:
            for rest in every_order({**cells, (stage, k): done + 1}):
                yield (Action(stage, "FIW"[done], k), *rest)


def play(rows, costs, placement):
    """(start, end) of each action, by going round the ranks until nothing moves; None if something never starts."""
    stages = placement.stages
    cost, hop = costs.per_stage(stages), costs.per_hop(stages)
    times, position, now = {}, [0] * len(rows), [0] * len(rows)

    def arrival(kind, stage, k, over):
        away = placement.rank_of[over] != placement.rank_of[over + 1]
        return times[stage, kind, k][1] + (hop[over] if away else 0)

    moved = True
    while moved:
        moved = False
        for rank, row in enumerate(rows):
            while position[rank] < len(row):
                stage, kind, k = row[position[rank]]
                came = 0
                try:
                    if kind == "F" and stage:
                        came = arrival("F", stage - 1, k, stage - 1)
                    if kind == "I" and stage + 1 < stages:
                        came = arrival("I", stage + 1, k, stage)
                except KeyError:
                    break
                start = max(now[rank], came)
                now[rank] = start + cost[kind][stage]
                times[stage, kind, k] = start, now[rank]
                position[rank] += 1
                moved = True
    return times if len(times) == sum(map(len, rows)) else None


def optimum(costs, placement, m, memory, objective):
    """The least that any order takes, by trying them all."""
    rows = [every_order({(s, k): 0 for s in placement.stages_of(r) for k in range(m)}) for r in range(placement.ranks)]
    fitting = [
        [row for row in of_rank if within(Schedule("one row", ((),) * rank + (row,), placement, m), costs, memory)]
        for rank, of_rank in enumerate(rows)
    ]
    values = []
    for chosen in product(*fitting):
        times = play(chosen, costs, placement)
        if times is not None:
            ends = [(times[row[0]][0], times[row[-1]][1]) for row in chosen]
            values.append(max(end - (start if objective == "span" else 0) for start, end in ends))
    return min(values)


TINY = [
    (Placement.loop(2), 2),
    (Placement.loop(3), 1),
    (Placement((0, 1, 0)), 1),
    (Placement.v(2), 1),
    (Placement.loop(1), 3),
]


@pytest.mark.parametrize("objective", ["makespan", "span"])
@pytest.mark.parametrize(("placement", "m"), TINY)
def test_the_exact_optimum_is_that_of_trying_every_order(placement, m, objective):
    random = Random(f"{placement}{objective}")
    for _ in range(3):
        stages = placement.stages
        activations = [random.randint(1, 4) for _ in range(stages)]
        costs = Costs(
            *([random.randint(0, 5) for _ in range(stages)] for _ in range(3)),
            transfer=random.randint(0, 3),
            memory=Memory(activations, [random.randint(0, a) for a in activations]),
        )
        held = [sum(activations[s] for s in placement.stages_of(r)) for r in range(placement.ranks)]
        for memory in (None, InFlight(len(placement.stages_of(0))), Bytes([h + random.randint(0, 3) for h in held])):
            best = optimum(costs, placement, m, memory, objective)
            found = search(costs, placement, micro_batches=m, memory=memory, exact=True, objective=objective)
            assert found.value == best, (costs, memory)
            assert found.proven
            assert found.lower_bound <= best
            if objective == "makespan":
                assert lower_bound(costs, placement, micro_batches=m, memory=memory) <= best


@given(instances(most_ranks=3, most_micro_batches=4), st.sampled_from(["makespan", "span"]))
@settings(max_examples=15, deadline=None)
def test_the_bound_is_never_above_the_optimum(instance, objective):
    """With the bound that needs no search left out, CP-SAT comes to an optimum that is no lower."""
    costs, placement, m, memory = instance
    module = import_module("headrace.search.search")
    bound = module.bound(problem_of(costs, placement, m, memory), objective)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "bound", lambda *_: 0)
        found = search(costs, placement, micro_batches=m, memory=memory, objective=objective, time_limit=4, exact=True)
    assert within(found.schedule, costs, memory)
    assert found.lower_bound <= found.value
    assert problem_of(costs, placement, m, memory).seconds(bound) <= found.value


@pytest.mark.parametrize(("p", "m", "k"), [(4, 8, 4), (4, 8, 2), (3, 5, 1), (5, 9, 3), (2, 2, 2), (6, 12, 11)])
def test_the_bound_has_the_published_form_as_a_floor(p, m, k):
    f, i, w, c = 7, 9, 4, 2
    published = m * (f + i + w) + max((p - 1) * (f + c), (p - 1) * (i + 2 * c) + (p - k) * f)
    found = lower_bound(Costs(f, i, w, transfer=c), Placement.loop(p), micro_batches=m, memory=InFlight(k))
    assert found >= published
    free = lower_bound(Costs(f, i, w, transfer=c), Placement.loop(p), micro_batches=20 * m)
    assert free == 20 * m * (f + i + w) + (p - 1) * (f + c)  # room in plenty: nothing else is in the way


def test_one_micro_batch_at_a_time_is_bound_exactly():
    costs = Costs([1, 2, 3], [2, 2, 1], [1, 1, 2], transfer=1)
    bound = lower_bound(costs, Placement.loop(3), micro_batches=5, memory=InFlight(1))
    found = search(costs, Placement.loop(3), micro_batches=5, memory=InFlight(1))
    assert bound == found.makespan == 5 * (6 + 5 + 4 + 1)


def test_a_rank_in_the_middle_and_a_long_way_down_count():
    # The slow last stage: its head, its work, then the way down and the W of stage 0.
    costs = Costs([1, 1, 9], [2, 3, 9], [4, 0, 0], transfer=[5, 6])
    found = lower_bound(costs, Placement.loop(3), micro_batches=4)
    assert found == (1 + 5 + 1 + 6) + 4 * 18 + (6 + 3 + 5 + 2 + 4)
    assert search(costs, Placement.loop(3), micro_batches=4).makespan == found


def test_room_and_time_bind_where_several_stages_share_a_rank():
    # Four chunks of room, each held for most of a round trip of 8 F and I of 8 stages: 16 of them at a time at most.
    loose = lower_bound(Costs(), Placement.v(4), micro_batches=16)
    tight = lower_bound(Costs(), Placement.v(4), micro_batches=16, memory=InFlight(2))
    assert loose == 16 * 6 + 3
    assert tight > 1.5 * loose


def test_a_weight_left_half_way_down_counts():
    costs = Costs([1, 1, 9], [1, 1, 9], [0, 9, 0])
    assert lower_bound(costs, Placement.loop(3), micro_batches=2) == (1 + 1) + 2 * 18 + (1 + 9)


def test_turns_last_to_the_end_of_w():
    # Two at a time, three in all: the second turn begins when the first is over, W included.
    bound = lower_bound(Costs(1, 1, 2), Placement.loop(6), micro_batches=3, memory=InFlight(2))
    assert bound == 2 * (6 + 6 + 2)
    assert search(Costs(1, 1, 2), Placement.loop(6), micro_batches=3, memory=InFlight(2)).makespan >= bound


def test_the_last_forward_still_has_its_way_to_go():
    costs = Costs([9, 3, 3], [1, 3, 3], 1)
    found = search(costs, Placement.loop(3), micro_batches=3)
    assert found.lower_bound == found.makespan == 3 * 9 + (3 + 3) + (3 + 3 + 1) + 1
