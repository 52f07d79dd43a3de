"""The catalogue: orders, closed forms, recompute in the bubble, and options that are refused."""

from fractions import Fraction

import pytest

from headrace.costs import Costs
from headrace.schedule import CATALOGUE, Action, build, check
from headrace.schedule.catalogue import describe
from headrace.simulate import closed_form, simulate

SIZES = [(p, m) for p in (1, 2, 3, 4, 5, 8) for m in (1, 2, 3, 4, 5, 7, 8, 16)]


def row(schedule, rank):
    return " ".join(f"{kind}{k}" for _, kind, k in schedule.rows[rank])


@pytest.mark.parametrize(("ranks", "micro_batches"), SIZES)
@pytest.mark.parametrize("name", CATALOGUE)
def test_closed_forms_hold_exactly(name, ranks, micro_batches):
    p, m = ranks, micro_batches
    schedule = build(name, ranks=p, micro_batches=m)
    peaks = {"gpipe": (m,) * p, "1f1b": tuple(min(m, p - r) for r in range(p))}[name]
    assert check(schedule).peak_in_flight == peaks
    for f, i, w in ((1, 1, 1), (3, 4, 2), (Fraction(1, 3), Fraction(2, 7), Fraction(5, 11))):
        timeline = simulate(schedule, Costs(f, i, w))
        assert timeline.makespan == (m + p - 1) * (f + i + w)
        assert timeline.busy == (m * (f + i + w),) * p
        assert timeline.bubble_fraction == (
            Fraction(p - 1, m + p - 1) if isinstance(f, Fraction) else (p - 1) / (m + p - 1)
        )
        assert timeline.peak_in_flight == peaks
        theory = closed_form(name, p, m, f, i + w)
        assert theory.makespan == timeline.makespan
        assert theory.bubble_fraction == pytest.approx(float(timeline.bubble_fraction), rel=1e-15)
        assert theory.peak_in_flight == peaks


def test_closed_form_of_an_unknown_schedule_is_none():
    assert closed_form("custom", 2, 2, 1, 2) is None


def test_gpipe_drains_in_reverse_or_forward_order():
    assert row(build("gpipe", ranks=2, micro_batches=3), 1) == "F0 F1 F2 B2 B1 B0"
    assert row(build("gpipe", ranks=2, micro_batches=3, drain="forward"), 0) == "F0 F1 F2 B0 B1 B2"


def test_1f1b_row_by_row():
    schedule = build("1f1b", ranks=3, micro_batches=4)
    assert row(schedule, 0) == "F0 F1 F2 B0 F3 B1 B2 B3"
    assert row(schedule, 1) == "F0 F1 B0 F2 B1 F3 B2 B3"
    assert row(schedule, 2) == "F0 B0 F1 B1 F2 B2 F3 B3"


def test_1f1b_with_fewer_micro_batches_than_ranks():
    schedule = build("1f1b", ranks=4, micro_batches=2)
    assert [row(schedule, r) for r in range(4)] == ["F0 F1 B0 B1"] * 3 + ["F0 B0 F1 B1"]


@pytest.mark.parametrize(("ranks", "micro_batches"), SIZES)
@pytest.mark.parametrize("name", CATALOGUE)
@pytest.mark.parametrize("recompute", ["never", "always", "except_last"])
def test_recompute_is_for_the_micro_batches_asked_for(name, ranks, micro_batches, recompute):
    schedule = build(name, ranks=ranks, micro_batches=micro_batches, recompute=recompute)
    check(schedule)
    wanted = {"never": 0, "always": micro_batches, "except_last": micro_batches - 1}[recompute]
    for rank, actions in enumerate(schedule.rows):
        again = [a for a in actions if a.kind == "R"]
        assert sorted(again) == [Action(rank, "R", k) for k in range(wanted)]
        for a in again:
            assert actions[actions.index(a) + 1] == Action(rank, "B", a.micro_batch)


@pytest.mark.parametrize(("ranks", "micro_batches"), [(p, m) for p in (2, 3, 4, 8) for m in (p, 2 * p)])
@pytest.mark.parametrize("name", CATALOGUE)
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


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"name": "2f2b"}, ValueError, "schedule='2f2b' is unknown: choose one of gpipe, 1f1b"),
        ({"drain": "reverse"}, ValueError, "schedule '1f1b' has no option 'drain': it takes recompute"),
        ({"name": "gpipe", "drain": "up"}, ValueError, "drain='up' is unknown: choose one of reverse, forward"),
        ({"recompute": "yes"}, ValueError, "recompute='yes' is unknown: choose one of never, always, except_last"),
        ({"ranks": 0}, ValueError, "ranks=0 must be at least 1"),
        ({"micro_batches": -3}, ValueError, "micro_batches=-3 must be at least 1"),
        ({"ranks": 2.0}, TypeError, "ranks=2.0 must be a whole number, not float"),
        ({"micro_batches": True}, TypeError, "micro_batches=True must be a whole number, not bool"),
    ],
)
def test_options_that_are_refused(arguments, error, message):
    with pytest.raises(error) as caught:
        build(**{"name": "1f1b", "ranks": 2, "micro_batches": 2} | arguments)
    assert str(caught.value) == message


@pytest.mark.parametrize("name", CATALOGUE)
def test_each_schedule_says_what_it_is(name):
    assert 20 < len(describe(name)) < 120


def test_forward_only_keeps_the_forwards_of_the_first_micro_batches():
    schedule = build("1f1b", ranks=2, micro_batches=4, recompute="always").forward_only(2)
    assert [row(schedule, r) for r in range(2)] == ["F0 F1"] * 2
    assert schedule.micro_batches == 2
    assert simulate(schedule, Costs()).makespan == 3
