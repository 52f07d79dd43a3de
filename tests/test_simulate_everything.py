"""The simulator with all that schedules and costs can have, against a slow one, and by hand."""

from dataclasses import replace
from fractions import Fraction

import naive
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import Costs, simulate
from headrace.schedule import InvalidSchedule, build, check, parse


def times(schedule, costs):
    return {str(s.action): (s.start, s.end) for s in simulate(schedule, costs).spans}


@given(naive.rich_schedules(), st.randoms(use_true_random=False))
@settings(max_examples=150, deadline=None)
def test_any_schedule_and_costs_as_a_slow_simulator_plays_them(schedule, rng):
    def some(count):
        return [rng.choice([0, 1, 2, 3, Fraction(1, 3), Fraction(5, 2)]) for _ in range(count)]

    s, hops = schedule.stages, schedule.stages - 1
    f, i, w, r, u, pair, size = some(s), some(s), some(s), some(s), some(s), rng.choice([None, some(s)]), some(hops)
    hop, bandwidth, one_at_a_time = some(hops), rng.choice([None, 1, Fraction(2, 3)]), rng.random() < 0.5
    check(schedule)
    timeline = simulate(
        schedule,
        Costs(
            f,
            i,
            w,
            recompute=r,
            transfer=hop,
            pair=pair,
            update=u if schedule.asynchronous else 0,
            message=size,
            bandwidth=bandwidth,
            one_at_a_time=one_at_a_time,
        ),
    )
    expected = naive.play(
        schedule,
        {"F": f, "I": i, "W": w, "R": r, "U": u, "B": [a + b for a, b in zip(i, w, strict=True)]},
        hop,
        [0 if bandwidth is None else Fraction(x) / bandwidth for x in size],
        one_at_a_time=one_at_a_time,
        pair=pair,
    )
    assert {span.action: (span.start, span.end) for span in timeline.spans} == expected
    assert tuple(track.actions for track in timeline.tracks) == schedule.rows
    assert timeline.peak_in_flight == check(schedule).peak_in_flight
    assert timeline.makespan == max(end for _, end in expected.values())
    for rank, row in enumerate(schedule.rows):
        assert timeline.busy[rank] == sum(
            expected[unit[0]][1] - expected[unit[0]][0] for unit in naive.units(row, schedule.pairs)
        )


@given(naive.rich_schedules(), st.randoms(use_true_random=False))
@settings(max_examples=150, deadline=None)
def test_whatever_waits_for_ever_is_refused_and_nothing_else(schedule, rng):
    rows = [list(row) for row in schedule.rows]
    for _ in range(rng.randrange(1, 4)):
        row = rng.choice(rows)
        a, b = rng.randrange(len(row)), rng.randrange(len(row))
        row[a], row[b] = row[b], row[a]
    swapped = replace(schedule, rows=tuple(map(tuple, rows)), pairs=frozenset())
    if naive.runs_to_its_end(swapped):
        assert len(simulate(swapped, Costs()).spans) == schedule.actions
    else:
        with pytest.raises(InvalidSchedule):
            simulate(swapped, Costs())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0F0,0F1,0I0,0U0,0W0,0B1,0U1", "rank 0 waits at 0U0 for 0W0, which it runs only after 0U0"),
        ("# segments=2\n0F0,0F1,0B0,0B1", "rank 0 waits at 0B0 for 0B1"),
        ("# segments=2\n0F1,0F0,0B1,0B0", "rank 0 waits at 0F1 for 0F0"),
        ("0F0,(0F1;0F2),0B0,0B1,0B2", "overlaps 0F1 with 0F2"),
        ("0F0,(0B0;0F1),0B1", "overlaps 0B0 with 0F1"),
        ("0F0,0F1,(0F2;0W0),0I0,0B1,0B2", "overlaps 0F2 with 0W0"),
        ("0F0,(0F1;0B0),0B1\n1F0,1F1,1B0,1B1", "rank 0 waits at 0F1 for 1B0, which rank 1 runs only after 1F1"),
    ],
)
def test_what_cannot_run_is_refuted(text, message):
    with pytest.raises(InvalidSchedule, match=message):
        simulate(parse(text), Costs())


def test_a_hop_is_free_where_the_lane_of_the_micro_batch_stays_on_a_rank():
    schedule = parse("0F0,0B0\n1F0,1B0,0F1,1F1,1B1,0B1")
    assert times(schedule, Costs(transfer=10)) == {
        "0F0": (0, 1),
        "1F0": (11, 12),
        "1B0": (12, 14),
        "0B0": (24, 26),
        "0F1": (14, 15),
        "1F1": (15, 16),
        "1B1": (16, 18),
        "0B1": (18, 20),
    }


def test_the_two_of_a_pair_start_when_both_may_and_end_together():
    schedule = parse("0F0,0F1,(0F2;0B0),0B1,0B2\n1F0,1B0,1F1,1B1,1F2,1B2")
    found = times(schedule, Costs(1, 1, 2, transfer=1))
    assert found["1B0"] == (3, 6)
    assert found["0F2"] == found["0B0"] == (7, 7 + 1 + 3)
    assert found["1F2"][0] == 12
    assert simulate(schedule, Costs(1, 1, 2, transfer=1)).busy == (2 + 4 + 6, 12)
    assert times(schedule, Costs(1, 1, 2, transfer=1, pair=[3, 100]))["0F2"] == (7, 10)


def test_pairs_of_a_row_may_be_any_number_of_micro_batches_apart():
    schedule = parse("0F0,0F1,(0F2;0B1),(0F3;0B0),0B2,0B3\n1F0,1F1,1B1,1B0,1F2,1B2,1F3,1B3")
    found = times(schedule, Costs())
    assert found["1B0"] == (5, 7)
    assert found["0F2"] == found["0B1"] == (5, 8)
    assert found["0F3"] == found["0B0"] == (8, 11)


def test_a_split_backward_in_a_pair_costs_only_its_part():
    schedule = parse("0F0,(0F1;0I0),0W0,0B1")
    assert times(schedule, Costs(1, 10, 100))["0I0"] == (1, 12)


def test_a_segment_waits_for_its_neighbour_on_the_stage():
    schedule = parse("# segments=2\n0F0,0F1,0B1,0B0\n1F0,1F1,1B1,1B0")
    assert times(schedule, Costs(1, 1, 0)) == {
        "0F0": (0, 1),
        "0F1": (1, 2),
        "1F0": (1, 2),
        "1F1": (2, 3),
        "1B1": (3, 4),
        "1B0": (4, 5),
        "0B1": (4, 5),
        "0B0": (5, 6),
    }


def test_messages_that_share_a_link_wait_for_each_other_if_it_carries_one_at_a_time():
    schedule = build("gpipe", ranks=2, micro_batches=3)
    costs = {"forward": [1, 0], "transfer": Fraction(1, 2), "message": 6, "bandwidth": 2}
    together, in_turn = times(schedule, Costs(**costs)), times(schedule, Costs(**costs, one_at_a_time=True))
    assert [together[f"1F{k}"][0] for k in range(3)] == [1 + 3.5, 2 + 3.5, 3 + 3.5]
    assert [in_turn[f"1F{k}"][0] for k in range(3)] == [1 + 3.5, 1 + 3 + 3.5, 1 + 3 + 3 + 3.5]
    assert not any(isinstance(moment, float) for span in in_turn.values() for moment in span)


def test_the_two_directions_between_two_ranks_are_two_links():
    schedule = build("1f1b", ranks=2, micro_batches=2)
    costs = Costs(1, 0, 1, message=2, bandwidth=1, one_at_a_time=True)
    found = times(schedule, costs)
    assert (found["1F0"][0], found["1B0"][1], found["0B0"][0]) == (3, 5, 7)  # 0F1 travels from 3 to 5


def test_a_synchronous_step_ends_with_reductions_and_updates():
    schedule = build("1f1b", ranks=2, micro_batches=2)
    plain = simulate(schedule, Costs())
    timeline = simulate(schedule, Costs(update=[5, 0], reduce=[Fraction(1, 2), 0]))
    assert timeline.spans[: len(schedule.rows[0])] == plain.spans[: len(schedule.rows[0])]
    assert [str(a) for a in timeline.tracks[0].actions[4:]] == ["0U1"]
    assert timeline.tracks[0].ends[-1] == plain.makespan + Fraction(11, 2)
    assert timeline.tracks[1] == plain.tracks[1]
    assert timeline.peak_in_flight == plain.peak_in_flight
    assert timeline.makespan == plain.makespan + Fraction(11, 2)


def test_replicas_reduce_together_in_the_order_of_the_stages():
    schedule = parse("0F0,0B0,1F1,1B1\n1F0,1B0,0F1,0B1")
    timeline = simulate(schedule, Costs([1, 3], 1, 0, update=1, reduce=[2, 4]))
    ready = [track.ends[3] for track in timeline.tracks]
    assert ready[0] != ready[1]
    first = max(ready)
    for track in timeline.tracks:
        assert [str(a) for a in track.actions[4:]] == ["0U1", "1U1"]
        assert list(track.starts[4:]) == [first, first + 3]
        assert list(track.ends[4:]) == [first + 3, first + 3 + 5]


def test_an_asynchronous_schedule_updates_where_its_row_says():
    schedule = parse("0F0,0B0,0U0,0F1,0B1,0U1")
    assert times(schedule, Costs(update=4, reduce=100)) == {
        "0F0": (0, 1),
        "0B0": (1, 3),
        "0U0": (3, 7),
        "0F1": (7, 8),
        "0B1": (8, 10),
        "0U1": (10, 14),
    }


def test_uneven_sizes_are_named():
    schedule = build("1f1b", ranks=3, micro_batches=2)
    for name in ("pair", "update", "reduce"):
        with pytest.raises(ValueError, match=f"{name} has 2 numbers, but the schedule has 3 stages"):
            simulate(schedule, Costs(**{name: [1, 2]}))
    with pytest.raises(ValueError, match="message has 3 numbers, but the schedule has 2 hops"):
        simulate(schedule, Costs(message=[1, 2, 3], bandwidth=1))
