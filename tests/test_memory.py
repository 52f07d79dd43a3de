"""Bytes over time: by hand, against an independent reference, and against a slow count."""

import naive
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_golden import CASES, costs_of, generated, written

from headrace import Costs, Timeline, simulate
from headrace.costs import Memory
from headrace.schedule import build, check, parse
from headrace.simulate import memory_over_time, peak_memory, peak_memory_of
from headrace.timeline import Span


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_the_reference_has_the_same_peaks(case):
    schedule = written(case) if case["schedule"] == "random" else generated(case)
    memory = Memory(activations=2, for_weight=1)
    timeline = simulate(schedule, costs_of(case["costs"]))
    assert list(peak_memory_of(schedule, memory)) == case["result"]["peak_mem_MB2_MW1"]
    assert peak_memory(timeline, schedule, memory) == peak_memory_of(schedule, memory)


def test_a_split_backward_by_hand():
    schedule = parse("0F0,0F1,0I0,0W0,0B1")
    memory = Memory(activations=10, for_weight=4, parameters=100)
    timeline = simulate(schedule, Costs(1, 2, 3))
    assert memory_over_time(timeline, schedule, memory) == (
        ((0, 100), (0, 110), (1, 120), (4, 114), (7, 110), (12, 100)),
    )
    assert peak_memory_of(schedule, memory) == (120,)


def test_a_recomputed_forward_keeps_its_input_until_it_is_recomputed():
    schedule = parse("0F0,0F1,0R0,0B0,0R1,0B1")
    memory = Memory(activations=10, stage_input=1)
    (steps,) = memory_over_time(simulate(schedule, Costs()), schedule, memory)
    assert steps == ((0, 0), (0, 1), (1, 2), (2, 11), (5, 1), (5, 10), (8, 0))


def test_what_an_action_needs_to_work_is_there_while_it_runs():
    schedule = parse("0F0,0R0,0I0,0W0,0F1,0B1")
    memory = Memory(activations=10, for_weight=4, stage_input=1, working=[2])
    (steps,) = memory_over_time(simulate(schedule, Costs(1, 2, 3)), schedule, memory)
    assert steps == (
        (0, 0), (0, 3), (1, 1), (1, 12), (2, 10), (2, 12), (4, 4), (4, 6), (7, 0), (7, 12), (8, 10), (8, 12), (13, 0),
    )  # fmt: skip
    assert peak_memory_of(schedule, memory) == (12,)
    update = parse("0F0,0B0,0U0")
    assert memory_over_time(simulate(update, Costs(update=1)), update, Memory(working=2))[0][-1] == (3, 0)


def test_between_two_stages_of_a_rank_messages_wait_and_what_both_keep_is_there_once():
    schedule = parse("0F0,0F1,1F0,1B0,1F1,1B1,0B0,0B1")
    memory = Memory(activations=10, stage_input=[0, 4], shared=[0, 3])
    (steps,) = memory_over_time(simulate(schedule, Costs()), schedule, memory)
    held = [0, 11, 22, 28, 25, 31, 28, 24, 14, 10, 0]
    assert [now for _, now in steps] == held
    assert peak_memory_of(schedule, memory) == (31,)


def test_a_pair_holds_the_memory_of_both_until_both_end():
    schedule = parse("0F0,(0F1;0B0),0B1")
    assert memory_over_time(simulate(schedule, Costs()), schedule, Memory(activations=3)) == (
        ((0, 0), (0, 3), (1, 6), (4, 3), (6, 0)),
    )


def test_each_replica_of_a_stage_has_parameters_of_its_own():
    schedule = parse("0F0,0B0,1F1,1B1\n1F0,1B0,0F1,0B1,2F0,2F1,2B0,2B1")
    assert peak_memory_of(schedule, Memory(parameters=[1, 10, 100])) == (11, 111)


def test_weights_that_are_still_to_be_read_are_put_aside_at_an_update():
    schedule = parse("0F0,0F1,0B0,0U0,0B1,0U1")
    memory = Memory(version=7, parameters=1)
    assert memory_over_time(simulate(schedule, Costs(update=1)), schedule, memory) == (((0, 1), (4, 8), (7, 1)),)


@given(naive.rich_schedules(), st.randoms(use_true_random=False))
@settings(max_examples=100, deadline=None)
def test_any_schedule_as_a_slow_count_has_it(schedule, rng):
    some = [[rng.randrange(6) for _ in range(schedule.stages)] for _ in range(6)]
    activations, for_weight, stage_input, parameters, shared, working = some
    memory = Memory(activations, for_weight, stage_input, parameters, shared=shared, working=working)
    costs = Costs(*([rng.randrange(4) for _ in range(schedule.stages)] for _ in range(4)), transfer=1)
    timeline = simulate(schedule, costs)
    over_time = memory_over_time(timeline, schedule, memory)
    every = {(s.rank, s.action): s for s in timeline.spans}
    for rank, row in enumerate(schedule.rows):
        for moment in {half / 2 for half in range(2 * timeline.makespan + 2) if half % 2}:  # between all events
            held = sum(parameters[s] for s in schedule.placement.stages_of(rank))
            for s, kind, k in row:
                span = {b: every.get((rank, (s, b, k))) for b in "FRIBW"}
                if kind in span and span[kind].start < moment < span[kind].end:
                    held += working[s]
                if kind != "F" or span["F"].start > moment:
                    continue
                first = span["R"] or span["F"]
                last = span["I"] or span["B"]
                if moment < first.start:
                    held += stage_input[s]
                elif moment < last.end:
                    held += activations[s]
                elif span["W"] and moment < span["W"].end:
                    held += for_weight[s]
                if s + 1 < schedule.stages and schedule.placement.rank(s + 1, k) == rank:
                    after = {b: every.get((rank, (s + 1, b, k))) for b in "FIB"}
                    back = after["I"] or after["B"]
                    both = shared[s + 1] if span["R"] is None else 0
                    held += moment < after["F"].start and stage_input[s + 1]
                    held -= moment < back.end and both
                    held += back.end <= moment < last.start and stage_input[s + 1]
            assert [b for at, b in over_time[rank] if at <= moment][-1] == held
    assert peak_memory(timeline, schedule, memory) == peak_memory_of(schedule, memory)


@given(naive.rich_schedules())
@settings(max_examples=100, deadline=None)
def test_as_many_versions_as_check_counts(schedule):
    aside = peak_memory_of(schedule, Memory(version=1))
    counted = check(schedule).weight_versions
    for rank, row in enumerate(schedule.rows):
        if len({a.stage for a in row}) == 1:
            assert aside[rank] == counted[rank] - 1


def test_a_measured_timeline_whose_spans_overlap_goes_by_its_times():
    schedule = parse("0F0,0B0,0F1,0B1")
    spans = zip(schedule.rows[0], [(0, 1), (1, 5), (2, 3), (5, 6)], strict=True)
    timeline = Timeline(1, [Span(0, action, *times) for action, times in spans])
    assert memory_over_time(timeline, schedule, Memory(activations=1)) == (((0, 0), (0, 1), (2, 2), (5, 1), (6, 0)),)


def test_updates_at_the_end_of_the_step_change_nothing():
    schedule = build("1f1b", ranks=2, micro_batches=3)
    memory = Memory(activations=1)
    with_updates = simulate(schedule, Costs(update=1))
    assert memory_over_time(with_updates, schedule, memory) == memory_over_time(
        simulate(schedule, Costs()), schedule, memory
    )


def test_misuse():
    schedule = build("1f1b", ranks=2, micro_batches=3)
    with pytest.raises(ValueError, match="activations has 3 numbers, but the schedule has 2 stages"):
        peak_memory_of(schedule, Memory(activations=[1, 2, 3]))
    with pytest.raises(ValueError, match="another schedule: rank 0 does not run gpipe's row"):
        memory_over_time(simulate(schedule, Costs()), build("gpipe", ranks=2, micro_batches=3), Memory())
    with pytest.raises(ValueError, match="has 2 ranks, but 1f1b has 3"):
        memory_over_time(simulate(schedule, Costs()), build("1f1b", ranks=3, micro_batches=3), Memory())
    with pytest.raises(ValueError, match="version="):
        Memory(version=-1)
