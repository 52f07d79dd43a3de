"""The heuristic search: always complete, always within memory, never worse than the catalogue."""

import sys
from time import perf_counter

import pytest
from hypothesis import given, settings
from search_cases import instances, least_bytes, within

import headrace
from headrace import Bytes, Costs, InFlight, search, simulate
from headrace.costs import Memory
from headrace.schedule import CATALOGUE, Placement, check
from headrace.search import lower_bound
from headrace.search.budget import Budget
from headrace.search.heuristic import best_found
from headrace.search.list_scheduling import list_schedule, rules
from headrace.search.periodic import blocks, repeat
from headrace.search.play import in_order_of_time, play
from headrace.search.problem import fits, problem_of, words_of


def catalogue(placement, micro_batches):
    """The catalogue's synchronous schedules of a placement, as anybody would try them."""
    for name, generator in CATALOGUE.items():
        for options in ({}, {"stages_per_rank": placement.stages // placement.ranks}):
            try:
                schedule = generator(placement.ranks, micro_batches, **options)
            except (ValueError, TypeError):
                continue
            if schedule.placement == placement and schedule.segments == 1 and not schedule.asynchronous:
                yield name, schedule


@given(instances())
@settings(max_examples=60, deadline=None)
def test_what_is_found_is_valid_within_memory_above_the_bound_and_no_worse_than_the_catalogue(instance):
    costs, placement, m, memory = instance
    found = search(costs, placement, micro_batches=m, memory=memory, time_limit=0.03)
    check(found.schedule)
    assert found.schedule.placement == placement
    assert found.schedule.micro_batches == m
    assert within(found.schedule, costs, memory)
    assert found.value == found.makespan == simulate(found.schedule, costs).makespan
    assert lower_bound(costs, placement, micro_batches=m, memory=memory) == found.lower_bound <= found.makespan
    assert found.proven == (found.lower_bound == found.makespan)
    assert found.gap * found.makespan == pytest.approx(found.makespan - found.lower_bound)
    for name, schedule in catalogue(placement, m):
        if within(schedule, costs, memory):
            assert found.makespan <= simulate(schedule, costs).makespan, name


@given(instances(most_ranks=5, most_micro_batches=8))
@settings(max_examples=60, deadline=None)
def test_every_rule_ends_with_a_complete_schedule_however_tight_the_memory(instance):
    costs, placement, m, memory = instance
    problem = problem_of(costs, placement, m, memory)
    for rule in list(rules(problem))[::7]:
        schedule = problem.schedule(list_schedule(problem, rule))
        check(schedule)
        assert within(schedule, costs, memory), rule


@given(instances())
@settings(max_examples=40, deadline=None)
def test_words_say_what_the_simulator_says(instance):
    costs, placement, m, memory = instance
    problem = problem_of(costs, placement, m, memory)
    for _, schedule in catalogue(placement, m):
        words = words_of(schedule)
        assert all(fits(problem, word, rank) for rank, word in enumerate(words)) == within(schedule, costs, memory)
        split = problem.schedule(words)
        assert problem.seconds(play(problem, words).value("makespan")) == simulate(split, costs).makespan
        # Numbering anew and splitting the backward lose nothing.
        assert simulate(split, costs).makespan <= simulate(schedule, costs).makespan


def test_words_that_wait_for_each_other_are_refused():
    problem = problem_of(Costs(), Placement.loop(2), 1, None)
    assert play(problem, [[0, 1, 2], [3, 4, 5]]) is not None
    problem = problem_of(Costs(), Placement.v(2), 1, None)
    assert play(problem, [[9, 0, 10, 11, 1, 2], [3, 6, 7, 8, 4, 5]]) is None
    assert not fits(problem, [1, 0, 2], 0)


def test_uneven_stages_are_where_a_search_pays():
    costs = Costs([2, 4, 4, 2], [4, 5, 2, 2], [2, 2, 3, 1], transfer=1)
    found = search(costs, Placement.loop(4), micro_batches=8, memory=InFlight(4))
    best = min(
        simulate(schedule, costs).makespan
        for _, schedule in catalogue(Placement.loop(4), 8)
        if within(schedule, costs, InFlight(4))
    )
    assert found.makespan < best


def test_local_moves_better_what_rules_find():
    costs = Costs(5, 6, 4, transfer=1, memory=Memory(2, 1))
    found = search(costs, Placement.v(3), micro_batches=6, memory=Bytes(12))
    assert found.makespan == 198  # a proven optimum; zb-v takes 200
    assert "improved by" in found.how


def test_the_same_arguments_give_the_same_schedule():
    costs = Costs([3, 5, 2], [4, 4, 4], [1, 2, 3], transfer=1)
    one, two = (search(costs, Placement.loop(3), micro_batches=5, memory=InFlight(3)) for _ in range(2))
    assert one.schedule == two.schedule


def test_many_micro_batches_repeat_a_block():
    p, m = 8, 512
    costs = Costs([9, 12, 10, 8, 11, 10, 12, 9], 11, 7, transfer=1)
    found = search(costs, Placement.loop(p), micro_batches=m, memory=InFlight(9))
    check(found.schedule)
    assert max(simulate(found.schedule, costs).peak_in_flight) <= 9
    assert found.gap < 0.01
    assert found.seconds < 15


def test_a_block_can_be_repeated_any_number_of_times_and_the_surplus_dropped():
    costs = Costs([9, 12, 10, 8], [11, 9, 10, 11], 7, transfer=1)
    small = problem_of(costs, Placement.loop(4), 16, InFlight(6))
    for rule in rules(small)[:8]:
        words = list_schedule(small, rule)
        found = blocks(small, words, play(small, words))
        assert found
        for block in found:
            for m in (17, 19, 100):
                large = problem_of(costs, Placement.loop(4), m, InFlight(6))
                schedule = large.schedule(repeat(large, small, words, play(small, words), block))
                assert max(check(schedule).peak_in_flight) <= 6
            # It takes no longer than the small one, and as many periods of its block as there are more.
            start, stop, q = block
            order = in_order_of_time(small, words, play(small, words))
            period = (order[stop][0] - order[start][0]) / q
            longer = simulate(schedule, costs).makespan - simulate(small.schedule(words), costs).makespan
            assert longer <= 1.3 * (100 - 16 + q) * period


def test_a_repeated_block_is_among_what_is_tried():
    costs = Costs([9, 12, 10, 8, 11, 10, 9, 12], [11, 9, 10, 11, 12, 9, 10, 11], 7, transfer=3)
    problem = problem_of(costs, Placement.loop(4, 2), 256, InFlight(11))
    found = best_found(problem, "makespan", 0, Budget(None))
    assert any("is repeated" in candidate.how for candidate in found)


def test_the_catalogue_is_tried_even_if_there_is_no_time():
    costs, placement = Costs(5, 6, 4, transfer=1), Placement.v(4)
    found = search(costs, placement, micro_batches=16, time_limit=1e-6)
    assert found.makespan <= min(simulate(schedule, costs).makespan for _, schedule in catalogue(placement, 16))
    assert "the catalogue's" in found.how


def test_sixteen_ranks_and_sixty_four_micro_batches_take_about_a_second():
    costs = Costs([8 + s * 7 % 5 for s in range(16)], 11, 7, transfer=1)
    start = perf_counter()
    found = search(costs, Placement.loop(16), micro_batches=64, memory=InFlight(20))
    assert perf_counter() - start < 8  # a second on a quiet machine
    assert found.gap < 0.05


def test_floats_are_read_as_they_are_written():
    found = search(Costs(0.1, 0.2, 0.1), Placement.loop(2), micro_batches=3, memory=InFlight(2))
    assert found.makespan == pytest.approx(simulate(found.schedule, Costs(0.1, 0.2, 0.1)).makespan, rel=1e-12)
    assert found.lower_bound <= found.makespan
    assert search(Costs(0.1, 0.1, 0.1), Placement.loop(2), micro_batches=3).proven


def test_updates_and_shared_links_count_in_the_result():
    costs = Costs(2, 2, 2, update=5, message=3, bandwidth=1, one_at_a_time=True)
    found = search(costs, Placement.loop(3), micro_batches=4)
    assert found.makespan == simulate(found.schedule, costs).makespan
    for name, schedule in catalogue(Placement.loop(3), 4):
        assert found.makespan <= simulate(schedule, costs).makespan, name


def test_where_links_are_shared_the_simulator_decides():
    """The best by the search's own clock takes 117; a schedule of the catalogue 85."""
    costs = Costs([5, 2], [5, 4], [1, 0], message=10, bandwidth=1, one_at_a_time=True)
    found = search(costs, Placement.loop(2), micro_batches=5, time_limit=1e-6)
    assert found.makespan == simulate(found.schedule, costs).makespan <= 85


def test_the_span_leaves_out_what_a_rank_waits_before_its_first_action():
    found = search(Costs(), Placement.loop(3), micro_batches=6, objective="span")
    assert (found.value, found.makespan, found.proven) == (18, 20, True)


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"memory": 4}, TypeError, r"memory=4 has no unit: write memory=InFlight\(4\) or memory=Bytes\(80e9\)"),
        ({"memory": InFlight(1)}, ValueError, "memory=InFlight.1. is too little for rank 0.*the least limit is 2"),
        ({"memory": InFlight([2])}, ValueError, "has 1 limits, but there are 2 ranks"),
        ({"memory": InFlight(2.5)}, TypeError, "memory=InFlight=2.5 must be a whole number"),
        ({"memory": Bytes(24)}, ValueError, "memory=Bytes.24. is too little for rank 0.*the least limit is 26 bytes"),
        ({"memory": Bytes("a")}, TypeError, "memory=Bytes.'a'. must be a number of bytes"),
        ({"memory": Bytes(float("inf"))}, ValueError, "must be finite"),
        ({"micro_batches": 0}, ValueError, "micro_batches=0 must be at least 1"),
        ({"placement": Placement.two_way(2, 4)}, ValueError, "placement has several lanes"),
        ({"placement": 4}, TypeError, "placement=4 must be a headrace Placement"),
        ({"costs": 4}, TypeError, "costs=4 must be a headrace Costs"),
        ({"time_limit": 0}, ValueError, "time_limit=0 must be more than 0"),
        ({"objective": "fun"}, ValueError, "objective='fun' is unknown: choose one of makespan, span"),
        ({"costs": Costs([1, 2])}, ValueError, "forward has 2 numbers, but the schedule has 4 stages"),
        (
            {"costs": Costs(memory=Memory(1, 2)), "memory": Bytes(9)},
            ValueError,
            "for_weight of stage 0 is 2 bytes, more than its activations of 1",
        ),
    ],
)
def test_arguments_that_cannot_be_right_are_refused_by_name(arguments, error, words):
    defaults = {"costs": Costs(memory=Memory(3, 1, parameters=10)), "placement": Placement.v(2), "micro_batches": 3}
    given_arguments = {**defaults, **arguments}
    costs, placement = given_arguments.pop("costs"), given_arguments.pop("placement")
    with pytest.raises(error, match=words):
        search(costs, placement, **given_arguments)


def test_the_least_limit_of_an_error_is_enough():
    costs, placement = Costs(memory=Memory([3, 4, 5, 6], 1, parameters=10, working=[0, 2, 0, 1])), Placement.v(2)
    limits = [least_bytes(costs, placement, rank) for rank in range(2)]
    assert within(search(costs, placement, micro_batches=3, memory=Bytes(limits)).schedule, costs, Bytes(limits))
    with pytest.raises(ValueError, match="too little for rank 1"):
        search(costs, placement, micro_batches=3, memory=Bytes([limits[0], limits[1] - 1]))


def test_it_is_found_where_people_look_for_it():
    assert headrace.search is headrace.schedule.search
    with pytest.raises(AttributeError, match="no attribute 'nope'"):
        headrace.schedule.nope  # noqa: B018


def test_exact_without_or_tools_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "ortools.sat.python", None)
    with pytest.raises(ImportError, match=r"pip install headrace\[search\]"):
        search(Costs(), Placement.loop(2), micro_batches=2, exact=True)
