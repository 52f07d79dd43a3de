"""Proofs and refutations: the words for people, the verdicts against schedules that are simply tried out."""

import time
from dataclasses import replace

import naive
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from headrace.costs import Costs
from headrace.schedule import CATALOGUE, Action, InvalidSchedule, Placement, Schedule, build, check
from headrace.simulate import simulate

GOOD = ("0F0,0B0", "1F0,1B0")


def grid(*rows, rank_of=None, micro_batches=1, name="mine"):
    cells = tuple(tuple(Action.parse(cell) for cell in row.split(",") if cell) for row in rows)
    return Schedule(name, cells, Placement(tuple(range(len(rows))) if rank_of is None else rank_of), micro_batches)


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        (grid("0F0,0B0", "1B0"), "1F0 is missing: rank 1 holds stage 1 and never runs it"),
        (grid(*GOOD, micro_batches=2), "0F1 is missing: rank 0 holds stage 0 and never runs it"),
        (grid("0F0,0B0", "1F0"), "1B0 (or 1I0 and 1W0) is missing: rank 1 never runs the backward"),
        (
            grid("0F0,0I0", "1F0,1B0"),
            "0W0 is missing: rank 0 runs 0I0, and a split backward needs both parts",
        ),
        (
            grid("0F0,0W0", "1F0,1B0"),
            "0I0 is missing: rank 0 runs 0W0, and a split backward needs both parts",
        ),
        (grid("0F0,0F0,0B0", "1F0,1B0"), "rank 0 runs 0F0 twice"),
        (grid("0F0,0B0", "1F0,1R0,1R0,1B0"), "rank 1 runs 1R0 twice"),
        (
            grid("0F0,0B0,0I0", "1F0,1B0"),
            "rank 0 runs both 0B0 and 0I0: B already contains I and W, so drop one",
        ),
        (
            grid("0F0,0B0", "1F0,1B0,1W0"),
            "rank 1 runs both 1B0 and 1W0: B already contains I and W, so drop one",
        ),
        (grid("0F0,0B0,1F0", "1B0"), "rank 0 runs 1F0, but rank 1 holds stage 1"),
        (grid("0F0,0B0", "1F0,1B0,2F0"), "rank 1 runs 2F0, but there are only stages 0…1 and micro-batches 0…0"),
        (grid("0F0,0B0,0F1", "1F0,1B0"), "rank 0 runs 0F1, but there are only stages 0…1 and micro-batches 0…0"),
        (grid(*GOOD, rank_of=(0, 1, 2)), "mine has 2 rows, but its placement names 3 ranks"),
    ],
)
def test_what_is_missing_or_too_much(schedule, message):
    with pytest.raises(InvalidSchedule) as caught:
        check(schedule)
    assert str(caught.value) == message
    assert caught.value.waits == ()


def test_a_cycle_of_two_ranks_in_words():
    with pytest.raises(InvalidSchedule) as caught:
        check(grid("0F0,0B0,0F1,0B1", "1F0,1F1,1B0,1B1", micro_batches=2))
    assert str(caught.value) == (
        "mine deadlocks: rank 0 waits at 0B0 for 1B0, which rank 1 runs only after 1F1; "
        "rank 1 waits at 1F1 for 0F1, which rank 0 runs only after 0B0"
    )
    assert caught.value.waits == (
        (0, Action(0, "B", 0), Action(1, "B", 0)),
        (1, Action(1, "F", 1), Action(0, "F", 1)),
    )


def test_a_cycle_within_one_rank_in_words():
    with pytest.raises(InvalidSchedule) as caught:
        check(grid("0F0,0B0", "1B0,1F0"))
    assert str(caught.value) == "mine deadlocks: rank 1 waits at 1B0 for 1F0, which it runs only after 1B0"


def test_recompute_after_its_backward_is_a_cycle():
    with pytest.raises(InvalidSchedule, match="rank 0 waits at 0B0 for 0R0, which it runs only after 0B0"):
        check(grid("0F0,0B0,0R0"))


def test_the_cycle_leaves_out_who_merely_waits_for_it():
    schedule = grid("0F0,0B0", "1F0,1B0", "2F0,2B0", "3B0,3F0")
    with pytest.raises(InvalidSchedule) as caught:
        check(schedule)
    assert [rank for rank, _, _ in caught.value.waits] == [3]


def test_a_proof_in_words():
    proof = check(build("1f1b", ranks=3, micro_batches=4))
    assert str(proof) == (
        "1f1b: 24 actions on 3 ranks are complete and cannot deadlock; in flight at most 3, 2, 1; queues of 3 suffice"
    )


@given(naive.schedules(), st.randoms(use_true_random=False), st.integers(0, 3))
@settings(max_examples=300, deadline=None)
def test_the_verdict_is_that_of_trying_it_out(schedule, rng, swaps):
    rows = [list(row) for row in schedule.rows]
    for _ in range(swaps):
        row = rng.choice(rows)
        i, j = rng.randrange(len(row)), rng.randrange(len(row))
        row[i], row[j] = row[j], row[i]
    swapped = replace(schedule, rows=tuple(map(tuple, rows)))
    if naive.runs_to_its_end(swapped):
        check(swapped)
        return
    with pytest.raises(InvalidSchedule) as caught:
        check(swapped)
    # The cycle is real: each waits for a thing that is needed, and whose rank runs it only after its own next wait.
    wanted, waits = naive.needs(swapped), caught.value.waits
    assert waits
    for (rank, waiting, missing), (owner, blocker, _) in zip(waits, waits[1:] + waits[:1], strict=True):
        assert waiting in swapped.rows[rank]
        assert missing in wanted[waiting]
        row = swapped.rows[owner]
        assert row.index(blocker) < row.index(missing) or blocker == missing


@given(naive.schedules(max_micro_batches=3))
@settings(max_examples=150, deadline=None)
def test_queue_depth_is_that_of_all_states(schedule):
    if schedule.actions > 36:
        schedule = naive.random_schedule(naive.random.Random(schedule.actions), 3, 3, 2)
    assert check(schedule).queue_depth == naive.deepest_queues(schedule)


@pytest.mark.parametrize("name", CATALOGUE)
@pytest.mark.parametrize(("ranks", "micro_batches"), [(2, 5), (3, 3), (4, 2)])
def test_queue_depth_of_the_catalogue(name, ranks, micro_batches):
    schedule = naive.built(name, ranks, micro_batches)
    assert check(schedule).queue_depth == naive.deepest_queues(schedule)


@given(naive.rich_schedules())
@settings(max_examples=60, deadline=None)
def test_queue_depth_is_that_of_all_states_with_lanes_and_pairs_too(schedule):
    assume(schedule.actions <= 36)
    one_by_one = replace(schedule, pairs=frozenset())  # as pairs run if nothing overlaps them, which takes more room
    assert check(schedule).queue_depth == naive.deepest_queues(one_by_one)
    at_once = naive.deepest_queues(schedule)
    assert all(depth >= at_once[channel] for channel, depth in check(schedule).queue_depth.items())


def test_news_travels_around_a_ring():
    # Loop placement: rank 1 hears of rank 2 only by way of rank 0.
    rng = naive.random.Random(1)
    for _ in range(30):
        schedule = naive.random_schedule(rng, 4, 3, 2)
        assert check(schedule).queue_depth == naive.deepest_queues(schedule)


@given(naive.schedules(), st.randoms(use_true_random=False))
@settings(deadline=None)
def test_peak_in_flight_does_not_depend_on_timing(schedule, rng):
    def some():
        return [rng.randrange(4) for _ in range(schedule.stages)]

    costs = Costs(some(), some(), some(), recompute=some(), transfer=rng.randrange(3))
    assert simulate(schedule, costs).peak_in_flight == check(schedule).peak_in_flight


def test_a_large_schedule_is_proved_in_a_moment():
    schedule = build("1f1b", ranks=64, micro_batches=512)
    spent = []
    for _ in range(2):
        start = time.process_time()
        assert max(check(schedule).peak_in_flight) == 64
        spent.append(time.process_time() - start)
    assert min(spent) < 1
