"""The catalogue: every schedule is proven for every size, and does what its options say."""

import itertools
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.costs import Costs
from headrace.schedule import CATALOGUE, Action, build, check
from headrace.schedule.catalogue import describe
from headrace.simulate import simulate

EVEN_ONLY = ("chimera", "dualpipe")


def words(schedule, rank):
    return " ".join(f"{kind}{k}" for _, kind, k in schedule.rows[rank])


def span(timeline):
    return max(track.ends[-1] - track.starts[0] for track in timeline.tracks)


@pytest.mark.parametrize("name", CATALOGUE)
def test_every_size_is_proven(name):
    for p, m in itertools.product(range(1, 9), range(1, 21)):
        if name in EVEN_ONLY and p % 2:
            continue
        schedule = build(name, ranks=p, micro_batches=m)
        assert schedule.name == name
        assert schedule.ranks == p
        assert schedule.micro_batches == m * schedule.segments
        check(schedule)


@given(st.data(), st.integers(1, 8), st.integers(1, 20), st.integers(1, 4))
@settings(max_examples=120, deadline=None)
def test_every_option_is_proven(data, p, m, several):
    options = {
        "gpipe": {"drain": st.sampled_from(["forward", "reverse"])},
        "interleaved": {"stages_per_rank": st.just(several)},
        "interleaved-zb": {"stages_per_rank": st.just(several)},
        "looped-bfs": {"stages_per_rank": st.just(several)},
        "v-min": {"squeeze": st.booleans()},
        "v-half": {"squeeze": st.booleans()},
        "hanayo": {"waves": st.just(several)},
        "seq1f1b": {"segments": st.just(several)},
        "pipedream-2bw": {"accumulate": st.integers(p, p + 3)},
    }
    name = data.draw(st.sampled_from(list(options)))
    chosen = {option: data.draw(values) for option, values in options[name].items()}
    check(build(name, ranks=p, micro_batches=m, recompute=data.draw(st.sampled_from(["never", "always"])), **chosen))


@given(st.sampled_from(["interleaved", "interleaved-zb"]), st.data())
@settings(max_examples=100, deadline=None)
def test_every_group_size_that_is_not_refused_is_proven(name, data):
    p, m, v = data.draw(st.integers(1, 8)), data.draw(st.integers(1, 20)), data.draw(st.integers(1, 4))
    group = data.draw(st.integers(1, 22))
    if min(p, m) <= group <= m and (m % group == 0 or m % group >= p):
        check(build(name, ranks=p, micro_batches=m, stages_per_rank=v, group=group))
    else:
        with pytest.raises(ValueError, match=f"group={group} would deadlock .* use [0-9]+"):
            build(name, ranks=p, micro_batches=m, stages_per_rank=v, group=group)


def test_families_meet_where_they_should():
    for p, m in itertools.product((1, 2, 3, 4), (1, 3, 4, 8)):
        rows = {name: build(name, ranks=p, micro_batches=m).rows for name in ("gpipe", "1f1b", "eager-1f1b", "zb-h1")}
        assert build("looped-bfs", ranks=p, micro_batches=m, stages_per_rank=1).rows == rows["gpipe"]
        assert build("interleaved", ranks=p, micro_batches=m, stages_per_rank=1, group=m).rows == rows["eager-1f1b"]
        assert build("interleaved-zb", ranks=p, micro_batches=m, stages_per_rank=1, group=m).rows == rows["zb-h1"]
        assert build("seq1f1b", ranks=p, micro_batches=m, segments=1).rows == rows["1f1b"]


def test_gpipe_drains_in_reverse_or_forward_order():
    assert words(build("gpipe", ranks=2, micro_batches=3), 1) == "F0 F1 F2 B2 B1 B0"
    assert words(build("gpipe", ranks=2, micro_batches=3, drain="forward"), 0) == "F0 F1 F2 B0 B1 B2"


def test_1f1b_row_by_row():
    schedule = build("1f1b", ranks=3, micro_batches=4)
    assert words(schedule, 0) == "F0 F1 F2 B0 F3 B1 B2 B3"
    assert words(schedule, 1) == "F0 F1 B0 F2 B1 F3 B2 B3"
    assert words(schedule, 2) == "F0 B0 F1 B1 F2 B2 F3 B3"


def test_1f1b_with_fewer_micro_batches_than_ranks():
    schedule = build("1f1b", ranks=4, micro_batches=2)
    assert [words(schedule, r) for r in range(4)] == ["F0 F1 B0 B1"] * 3 + ["F0 B0 F1 B1"]


def test_zb_h1_puts_each_w_behind_the_i_of_a_later_micro_batch():
    schedule = build("zb-h1", ranks=3, micro_batches=4)
    assert words(schedule, 0) == "F0 F1 F2 I0 W0 F3 I1 W1 I2 W2 I3 W3"
    assert words(schedule, 2) == "F0 I0 F1 I1 F2 I2 W0 F3 I3 W1 W2 W3"


def test_fewer_micro_batches_than_a_v_or_dualpipe_wants_run_as_the_first_of_enough_would():
    for name, enough in (("zb-v", 7), ("dualpipe-v", 8)):
        full, few = (build(name, ranks=4, micro_batches=m) for m in (enough, 3))
        assert few.rows == tuple(tuple(a for a in row if a.micro_batch < 3) for row in full.rows)
    full, few = (build("dualpipe", ranks=4, micro_batches=m) for m in (8, 5))
    new = {0: 0, 1: 1, 2: 2, 4: 3, 5: 4}  # three go down and two up
    assert few.pairs < full.pairs | {a._replace(micro_batch=new.get(a.micro_batch, 0)) for a in full.pairs}
    # A pair that lost its partner is a plain forward, and a W goes first that would have waited behind a dropped one.
    assert [sorted(row) for row in few.rows] == [
        sorted(a._replace(micro_batch=new[a.micro_batch]) for a in row if a.micro_batch in new) for row in full.rows
    ]


@pytest.mark.parametrize("name", ["v-min", "v-half"])
def test_squeezing_never_takes_longer_nor_more_memory(name):
    for p, m in itertools.product(range(1, 10), (1, 2, 3, 8, 20)):
        squeezed, block = (build(name, ranks=p, micro_batches=m, squeeze=squeeze) for squeeze in (True, False))
        assert simulate(squeezed, Costs()).makespan <= simulate(block, Costs()).makespan
        assert max(check(squeezed).peak_in_flight) <= max(check(block).peak_in_flight)


@pytest.mark.parametrize("p", [2, 4, 6, 8])
def test_an_overlapped_pair_that_costs_less_makes_dualpipe_faster(p):
    schedule = build("dualpipe", ranks=p, micro_batches=2 * p)
    assert len(schedule.pairs) >= p
    assert simulate(schedule, Costs(pair=2)).makespan < simulate(schedule, Costs()).makespan


@pytest.mark.parametrize("name", EVEN_ONLY)
@pytest.mark.parametrize(("p", "m"), [(2, 1), (4, 7), (6, 12)])
def test_two_ways_share_the_micro_batches(name, p, m):
    schedule = build(name, ranks=p, micro_batches=m)
    assert schedule.placement.lane_of == (0,) * ((m + 1) // 2) + (1,) * (m // 2)
    assert schedule.placement.lanes == (tuple(range(p)), tuple(reversed(range(p))))


@pytest.mark.parametrize(("p", "m"), [(1, 3), (2, 5), (4, 9), (8, 3)])
def test_pipedream_updates_after_every_backward(p, m):
    schedule = build("pipedream", ranks=p, micro_batches=m)
    for row in schedule.rows:
        assert [row[at + 1] for at, a in enumerate(row) if a.kind == "B"] == [a for a in row if a.kind == "U"]
    # p − r versions on rank r in the steady state; a short stream of micro-batches ends before it needs them all.
    versions = tuple(min(p - r, m, max(m - p + r, 0) + 2) for r in range(p))
    assert check(schedule).weight_versions == versions
    assert check(schedule).peak_in_flight == check(build("1f1b", ranks=p, micro_batches=m)).peak_in_flight


def test_pipedream_has_no_bubble_between_start_and_end():
    timeline = simulate(build("pipedream", ranks=4, micro_batches=40), Costs())
    for track in timeline.tracks:
        steady = list(zip(track.starts, track.ends, strict=True))[10:-30]
        assert all(end == start for (_, end), (start, _) in itertools.pairwise(steady))


@given(st.integers(1, 8), st.integers(1, 24), st.integers(0, 4))
@settings(max_examples=60, deadline=None)
def test_pipedream_2bw_needs_two_versions(p, m, more):
    schedule = build("pipedream-2bw", ranks=p, micro_batches=m, accumulate=p + more)
    assert schedule.delay == 1
    assert max(check(schedule).weight_versions) <= 2
    updates = {k for k in range(m) if (k + 1) % (p + more) == 0} | {m - 1}
    for rank, row in enumerate(schedule.rows):
        assert {a for a in row if a.kind == "U"} == {Action(rank, "U", k) for k in updates}


@pytest.mark.parametrize("recompute", ["never", "always", "except_last", {0}, [], {0: "except_last", 1: "always"}])
@pytest.mark.parametrize("name", CATALOGUE)
def test_recompute_is_for_the_cells_asked_for(name, recompute):
    for p, m in itertools.product((2, 4), (1, 2, 5)):
        plain = build(name, ranks=p, micro_batches=m)
        schedule = build(name, ranks=p, micro_batches=m, recompute=recompute)
        check(schedule)
        if isinstance(recompute, str):
            modes = dict.fromkeys(range(plain.stages), recompute)
        else:
            modes = recompute if isinstance(recompute, dict) else dict.fromkeys(recompute, "always")
        last = (m - 1) * schedule.segments
        wanted = {
            Action(stage, "R", k)
            for stage, mode in modes.items()
            for k in range(schedule.micro_batches)
            if mode == "always" or (mode == "except_last" and k < last)
        }
        assert {a for row in schedule.rows for a in row if a.kind == "R"} == wanted
        for row in schedule.rows:
            for at, a in enumerate(row):
                if a.kind == "R":  # right before its backward, or before the pair that the backward is in
                    backward = row[at + 2] if row[at + 1] in schedule.pairs else row[at + 1]
                    assert (backward.stage, backward.micro_batch) == (a.stage, a.micro_batch)
                    assert backward.kind in "BI"
        assert tuple(tuple(a for a in row if a.kind != "R") for row in schedule.rows) == plain.rows


@pytest.mark.parametrize(("ranks", "micro_batches"), [(p, m) for p in (2, 3, 4, 8) for m in (p, 2 * p)])
@pytest.mark.parametrize("name", ["gpipe", "1f1b"])
def test_recompute_runs_in_the_bubble_before_the_gradient_arrives(name, ranks, micro_batches):
    schedule = build(name, ranks=ranks, micro_batches=micro_batches, recompute="always")
    timeline = simulate(schedule, Costs(forward=1, backward_input=1, backward_weight=1, recompute=1))
    times = {span.action: span for span in timeline.spans}
    for rank in range(ranks - 1):
        first = next(a for a in schedule.rows[rank] if a.kind == "R")
        gradient = times[Action(rank + 1, "B", first.micro_batch)].end
        assert times[first].end <= gradient
        assert times[Action(rank, "B", first.micro_batch)].start == gradient
    # Only the m recomputes of the last rank cost time; were each run after its gradient, all m + p − 1 would.
    assert timeline.makespan == micro_batches * (1 + 1 + 2) + (ranks - 1) * (1 + 2)


@pytest.mark.parametrize("name", CATALOGUE)
def test_recompute_starts_before_the_wait_for_the_gradient(name):
    """Wherever a backward waits, its R has run by then: no rank idles with an R still to run for what it waits for."""
    schedule = build(name, ranks=4, micro_batches=8, recompute="always")
    costs = Costs(forward=2, backward_input=2, backward_weight=1, recompute=1, transfer=Fraction(1, 2))
    for track in simulate(schedule, costs).tracks:
        ended = {a: end for a, _, end in zip(*track, strict=True)}
        free = 0
        for a, start, end in zip(*track, strict=True):
            if a.kind in "BI" and start > free:
                assert ended[Action(a.stage, "R", a.micro_batch)] <= free
            free = max(free, end)


def test_stages_that_do_not_recompute_pay_nothing():
    costs = Costs(recompute=5)
    never, first, always = (
        simulate(build("1f1b", ranks=3, micro_batches=6, recompute=r), costs) for r in ("never", {0}, "always")
    )
    assert [b - a for a, b in zip(never.busy, first.busy, strict=True)] == [30, 0, 0]
    assert [b - a for a, b in zip(never.busy, always.busy, strict=True)] == [30, 30, 30]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"name": "2f2b"}, ValueError, "schedule='2f2b' is unknown: choose one of gpipe, 1f1b, eager-1f1b, "),
        ({"drain": "reverse"}, ValueError, "schedule '1f1b' has no option 'drain': it takes recompute"),
        ({"name": "gpipe", "drain": "up"}, ValueError, "drain='up' is unknown: choose one of reverse, forward"),
        ({"recompute": "yes"}, ValueError, "recompute='yes' is unknown: choose one of never, always, except_last"),
        ({"recompute": True}, TypeError, "recompute=True must be one of never, always, except_last, or say which "),
        ({"recompute": {2}}, ValueError, "recompute={2} names stage 2, but there are only stages 0…1"),
        ({"recompute": ["0"]}, TypeError, "recompute=['0'] names the stage '0': stages are whole numbers"),
        ({"recompute": {0: "yes"}}, ValueError, "recompute={0: 'yes'} has an unknown 'yes': choose one of never, "),
        ({"ranks": 0}, ValueError, "ranks=0 must be at least 1"),
        ({"micro_batches": -3}, ValueError, "micro_batches=-3 must be at least 1"),
        ({"ranks": 2.0}, TypeError, "ranks=2.0 must be a whole number, not float"),
        ({"micro_batches": True}, TypeError, "micro_batches=True must be a whole number, not bool"),
        ({"name": "dualpipe", "ranks": 3}, ValueError, "ranks=3 is odd, but dualpipe pairs ranks: use 4, or "),
        ({"name": "chimera", "ranks": 5}, ValueError, "ranks=5 is odd, but chimera's two pipelines only fit an even"),
        ({"name": "hanayo", "waves": 0}, ValueError, "waves=0 must be at least 1"),
        ({"name": "seq1f1b", "segments": 0}, ValueError, "segments=0 must be at least 1"),
        ({"name": "looped-bfs", "stages_per_rank": 0}, ValueError, "stages_per_rank=0 must be at least 1"),
        ({"name": "pipedream-2bw", "accumulate": 1}, ValueError, "accumulate=1 would need more than two versions"),
        (
            {"name": "interleaved", "ranks": 4, "micro_batches": 10, "group": 4},
            ValueError,
            "group=4 would deadlock with ranks=4 and micro_batches=10: use 5 or 6",
        ),
    ],
)
def test_options_that_are_refused(arguments, error, message):
    with pytest.raises(error) as caught:
        build(**{"name": "1f1b", "ranks": 2, "micro_batches": 2} | arguments)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("name", CATALOGUE)
@pytest.mark.parametrize("sizes", [(0, 4), (4, 0)])
def test_every_schedule_refuses_impossible_sizes(name, sizes):
    with pytest.raises(ValueError, match="=0 must be at least 1"):
        build(name, ranks=sizes[0], micro_batches=sizes[1])


@pytest.mark.parametrize("name", CATALOGUE)
def test_each_schedule_says_in_one_line_what_it_is_and_whose(name):
    assert 20 < len(describe(name)) < 120
    assert describe(name).endswith(").")
    assert len({describe(other) for other in CATALOGUE}) == len(CATALOGUE)


def test_forward_only_keeps_the_forwards_of_the_first_micro_batches():
    schedule = build("1f1b", ranks=2, micro_batches=4, recompute="always").forward_only(2)
    assert [words(schedule, r) for r in range(2)] == ["F0 F1"] * 2
    assert schedule.micro_batches == 2
    assert simulate(schedule, Costs()).makespan == 3


@pytest.mark.parametrize("name", CATALOGUE)
def test_forward_only_works_for_all(name):
    for m in (1, 2, 3):
        left = build(name, ranks=4, micro_batches=8).forward_only(m)
        assert simulate(left, Costs()).makespan >= m


def test_the_second_zero_bubble_schedule_is_a_parallelogram():
    timeline = simulate(build("zb-h2", ranks=4, micro_batches=8), Costs())
    assert span(timeline) == max(timeline.busy)
    assert [track.starts[0] for track in timeline.tracks] == [0, 1, 2, 3]
