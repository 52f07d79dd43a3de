"""What the proof says of queues and deadlocks, against schedules that are simply run over queues of every depth."""

import random
from dataclasses import replace

import naive
import pytest
from bounded_queues import DEPTHS, ends, never_blocks_a_send, waits_in_a_circle
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.schedule import CATALOGUE, InvalidSchedule, Schedule, build, check

RANDOM = st.randoms(use_true_random=False)


def shuffled(schedule: Schedule, rng: random.Random, swaps: int) -> Schedule:
    """The same units in another order, so most likely a deadlock."""
    rows = [naive.units(row, schedule.pairs) for row in schedule.rows]
    for _ in range(swaps):
        row = rng.choice(rows)
        i, j = rng.randrange(len(row)), rng.randrange(len(row))
        row[i], row[j] = row[j], row[i]
    return replace(schedule, rows=tuple(tuple(action for unit in row for action in unit) for row in rows))


def deadlocks(schedule: Schedule) -> bool:
    """The verdict of `check`; it may have other things to say of updates, but only after that."""
    try:
        check(schedule)
    except InvalidSchedule as error:
        return error.waits != ()
    return False


@given(naive.rich_schedules(), RANDOM)
@settings(max_examples=60, deadline=None)
def test_queues_of_the_proven_depth_never_block_a_send(schedule, rng):
    depth = check(schedule).queue_depth
    one_by_one = replace(schedule, pairs=frozenset())
    for _ in range(4):
        assert never_blocks_a_send(schedule, depth, rng)
        assert never_blocks_a_send(one_by_one, depth, rng)


@given(naive.rich_schedules(), RANDOM, st.integers(0, 3))
@settings(max_examples=150, deadline=None)
def test_the_verdict_and_the_graph_of_waits_agree_with_trying_it_out(schedule, rng, swaps):
    schedule = shuffled(schedule, rng, swaps)
    for depth in DEPTHS:
        assert ends(schedule, depth) != waits_in_a_circle(schedule, depth), depth
    assert deadlocks(schedule) != ends(schedule, DEPTHS[-1])


@pytest.mark.parametrize("name", CATALOGUE)
@pytest.mark.parametrize(("ranks", "micro_batches"), [(2, 5), (3, 7), (4, 3)])
def test_the_catalogue_over_queues_of_every_depth(name, ranks, micro_batches):
    schedule = naive.built(name, ranks, micro_batches)
    depth = check(schedule).queue_depth
    assert all(never_blocks_a_send(schedule, depth, random.Random(seed)) for seed in range(6))
    for every in DEPTHS:
        assert ends(schedule, every) != waits_in_a_circle(schedule, every)


@pytest.mark.parametrize("name", ["1f1b", "zb-h1", "chimera"])
def test_one_queue_less_deep_than_proven_blocks_a_send_in_some_order_of_speeds(name):
    schedule = build(name, ranks=4, micro_batches=6)
    depth = check(schedule).queue_depth
    for channel in depth:
        shallow = {**depth, channel: depth[channel] - 1}
        assert not all(never_blocks_a_send(schedule, shallow, random.Random(seed)) for seed in range(24)), channel


def test_1f1b_deadlocks_when_every_send_waits_for_its_receive():
    schedule = build("1f1b", ranks=2, micro_batches=2)
    assert not ends(schedule, 0)
    assert ends(schedule, 1)
