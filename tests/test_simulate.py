"""The simulator against a clock that ticks, and against cases worked out by hand."""

import json
import time
from fractions import Fraction

import naive
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import Costs, Timeline, simulate
from headrace.schedule import Action, InvalidSchedule, build, parse
from headrace.timeline import Span


@given(naive.schedules(), st.randoms(use_true_random=False))
@settings(max_examples=300, deadline=None)
def test_any_schedule_and_costs_as_a_ticking_clock_plays_them(schedule, rng):
    f, i, w, r = ([rng.randrange(5) for _ in range(schedule.stages)] for _ in range(4))
    hop = [rng.randrange(4) for _ in range(schedule.stages - 1)]
    expected = naive.play_tick_by_tick(
        schedule, {"F": f, "I": i, "W": w, "R": r, "B": [a + b for a, b in zip(i, w, strict=True)]}, hop
    )
    timeline = simulate(schedule, Costs(f, i, w, r, hop))
    assert {span.action: (span.start, span.end) for span in timeline.spans} == expected
    assert timeline.makespan == max(end for _, end in expected.values())
    for rank, row in enumerate(schedule.rows):
        assert tuple(span.action for span in timeline.spans if span.rank == rank) == row
        assert timeline.busy[rank] == sum(expected[a][1] - expected[a][0] for a in row)


def test_uneven_stages_pace_the_whole_by_the_slowest():
    timeline = simulate(build("gpipe", ranks=3, micro_batches=4), Costs([1, 3, 1], [1, 3, 1], [1, 3, 1]))
    # In: F of stage 0. Then stage 1 works without a pause but for one F and one B of stage 2. Out: B of stage 0.
    assert timeline.makespan == 1 + 4 * 9 + (1 + 2) + 2
    assert timeline.busy == (12, 36, 12)


def test_by_hand():
    timeline = simulate(build("1f1b", ranks=2, micro_batches=2), Costs(1, 1, 1, transfer=Fraction(1, 2)))
    assert {str(s.action): (s.start, s.end) for s in timeline.spans} == {
        "0F0": (0, 1),
        "0F1": (1, 2),
        "1F0": (1.5, 2.5),
        "1B0": (2.5, 4.5),
        "0B0": (5, 7),
        "1F1": (4.5, 5.5),
        "1B1": (5.5, 7.5),
        "0B1": (8, 10),
    }
    assert timeline.bubble_fraction == Fraction(20 - 12, 20)
    assert timeline.peak_in_flight == (2, 1)


@pytest.mark.parametrize("p", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("m", [1, 2, 4, 7, 16])
def test_transfers_are_hidden_where_theory_says_so(p, m):
    f, b, c = 3, 5, Fraction(1, 4)
    costs = Costs(f, 2, 3, transfer=c)
    assert simulate(build("gpipe", ranks=p, micro_batches=m), costs).makespan == (m + p - 1) * (f + b) + 2 * (p - 1) * c
    hops = (p - 1) + (p - 1) * (m - 1) // p
    assert simulate(build("1f1b", ranks=p, micro_batches=m), costs).makespan == (m + p - 1) * (f + b) + 2 * c * hops


def test_hops_within_a_rank_are_free():
    schedule = parse("0F0,3F0,3B0,0B0\n1F0,2F0,2B0,1B0")
    assert simulate(schedule, Costs(transfer=[10, 1000, 10])).makespan == 4 + 4 * 2 + 4 * 10


def test_recompute_costs_a_forward_unless_said_otherwise():
    schedule = build("1f1b", ranks=1, micro_batches=3, recompute="always")
    assert simulate(schedule, Costs(forward=5)).makespan == 3 * (5 + 5 + 2)
    assert simulate(schedule, Costs(forward=5, recompute=0)).makespan == 3 * (5 + 2)


def test_costs_for_another_number_of_stages_are_refused():
    schedule = build("1f1b", ranks=3, micro_batches=2)
    with pytest.raises(ValueError, match="forward has 2 numbers, but the schedule has 3 stages"):
        simulate(schedule, Costs(forward=[1, 2]))
    with pytest.raises(ValueError, match="transfer has 3 numbers, but the schedule has 2 hops"):
        simulate(schedule, Costs(transfer=[1, 2, 3]))


def test_numbers_of_numpy_are_numbers():
    costs = Costs(np.float32(1.5), [np.int64(2), 1], transfer=np.float64(0.5))
    assert costs == Costs(1.5, (2.0, 1), transfer=0.5)
    assert json.dumps([costs.forward, costs.backward_input]) == "[1.5, [2.0, 1]]"
    with pytest.raises(ValueError, match="forward="):
        Costs(np.float32("nan"))


@pytest.mark.parametrize("name", ["forward", "backward_input", "backward_weight", "recompute", "transfer"])
@pytest.mark.parametrize(
    ("value", "error"),
    [
        (-1, ValueError),
        ([1, -0.5], ValueError),
        (float("nan"), ValueError),
        (float("inf"), ValueError),
        ("1", TypeError),
        ([1, None], TypeError),
    ],
)
def test_costs_that_are_no_costs(name, value, error):
    with pytest.raises(error, match=f"{name}="):
        Costs(**{name: value})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0F0,0B0\n1B0,1F0", "rank 1 waits at 1B0 for 1F0, which it runs only after 1B0"),
        ("0F0,0B0\n1F0", "1B0 .* is missing"),
        ("0B0\n1F0,1B0", "0F0 is missing"),
        ("0F0,0W0\n1F0,1B0", "0I0 is missing"),
        ("0F0,0B0,0R0", "rank 0 waits at 0B0 for 0R0, which it runs only after 0B0"),
    ],
)
def test_what_cannot_run_is_refuted_not_simulated(text, message):
    with pytest.raises(InvalidSchedule, match=message):
        simulate(parse(text), Costs())


def test_a_timeline_is_the_same_from_spans_and_from_tracks():
    from_tracks = simulate(build("1f1b", ranks=3, micro_batches=4), Costs(1, 2, 3, transfer=1))
    from_spans = Timeline(3, from_tracks.spans)
    assert from_spans == from_tracks
    assert hash(from_spans) == hash(from_tracks)
    assert [tuple(map(tuple, track)) for track in from_spans.tracks] == [
        tuple(map(tuple, track)) for track in from_tracks.tracks
    ]
    for name in ("ranks", "makespan", "busy", "bubble_fraction", "peak_in_flight"):
        assert getattr(from_spans, name) == getattr(from_tracks, name)
    assert Timeline(3, from_tracks.spans[1:]) != from_tracks
    assert eval(repr(from_tracks)) == from_tracks


def test_metrics_make_no_spans():
    timeline = simulate(build("1f1b", ranks=3, micro_batches=4), Costs())
    assert timeline.makespan > sum(timeline.busy) / 3
    assert timeline.peak_in_flight == (3, 2, 1)
    assert timeline.seconds_by_kind()
    assert "spans" not in vars(timeline)


def test_where_spans_overlap_a_rank_is_busy_once():
    times = [(1, 5), (1, 5), (2, 3), (4, 7), (8, 9)]
    spans = [Span(0, Action(0, "F", k), start, end) for k, (start, end) in enumerate(times)]
    assert Timeline(1, spans).busy == (7,)


def test_an_empty_timeline_has_no_bubble():
    timeline = Timeline(2, ())
    assert (timeline.makespan, timeline.bubble_fraction, timeline.busy) == (0, 0, (0, 0))
    assert timeline.peak_in_flight == (0, 0)


def test_at_one_instant_things_happen_in_the_order_of_the_row():
    free = simulate(build("gpipe", ranks=2, micro_batches=3), Costs(0, 0, 0))
    assert free.peak_in_flight == (3, 3)
    touching = [
        Span(0, Action(0, kind, k), t, t + 1) for t, (kind, k) in enumerate([("F", 0), ("B", 0), ("F", 1), ("B", 1)])
    ]
    assert Timeline(1, tuple(touching)).peak_in_flight == (1,)


def test_a_backward_that_overlaps_forwards_holds_its_memory_until_it_ends():
    timeline = [("F", 0, 0, 1), ("F", 1, 1, 5), ("B", 0, 1, 9), ("F", 2, 5, 6)]
    spans = tuple(Span(0, Action(0, kind, k), start, end) for kind, k, start, end in timeline)
    assert Timeline(1, spans).peak_in_flight == (3,)


def test_six_hundred_thousand_actions_a_second():
    schedule = build("1f1b", ranks=64, micro_batches=512)
    spent = []
    for _ in range(3):
        start = time.process_time()
        simulate(schedule, Costs())
        spent.append(time.process_time() - start)
    assert schedule.actions / min(spent) > 600_000


def test_seconds_by_kind():
    timeline = simulate(build("1f1b", ranks=2, micro_batches=2), Costs([1, 2], [3, 4], 0))
    assert timeline.seconds_by_kind() == {(0, "F"): [1, 1], (0, "B"): [3, 3], (1, "F"): [2, 2], (1, "B"): [4, 4]}
