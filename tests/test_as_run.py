"""A step as the runtime performs it: halves of a backward that stand side by side run as a whole one."""

import pytest

from headrace.costs import Costs
from headrace.schedule import build, parse
from headrace.schedule.actions import Action
from headrace.schedule.joined import joined, split_in
from headrace.simulate import simulate, simulate_as_run

HALVES = Costs(1, 2, 2, backward=3)  # a whole backward is shorter than its halves


def test_only_halves_side_by_side_are_joined() -> None:
    schedule = parse("0F0,0F1,0I0,0W0,0I1,0R0,0W1\n")
    assert [str(action) for action in joined(schedule).rows[0]] == ["0F0", "0F1", "0B0", "0I1", "0R0", "0W1"]
    assert split_in(schedule.rows[0]) == {(0, 1)}


@pytest.mark.parametrize("name", ["1f1b", "gpipe"])
def test_what_has_no_halves_stays_as_it_is(name: str) -> None:
    schedule = build(name, ranks=2, micro_batches=3)
    assert joined(schedule) is schedule
    assert simulate_as_run(schedule, HALVES) == simulate(schedule, HALVES)


def test_a_whole_backward_takes_its_own_time_and_hands_on_its_gradient_at_its_end() -> None:
    schedule = parse("0F0,,,0I0,0W0\n,1F0,1I0,1W0,\n")
    spans = {str(span.action): (span.start, span.end) for span in simulate_as_run(schedule, HALVES).spans}
    assert spans == {"0F0": (0, 1), "1F0": (1, 2), "1I0": (2, 5), "1W0": (5, 5), "0I0": (5, 8), "0W0": (8, 8)}


@pytest.mark.parametrize("name", ["zb-h1", "zb-v", "zb-h2"])
def test_spans_are_of_the_schedules_own_actions_in_its_order(name: str) -> None:
    schedule = build(name, ranks=3, micro_batches=5)
    timeline = simulate_as_run(schedule, HALVES)
    assert tuple(tuple(map(Action._make, track.actions)) for track in timeline.tracks) == schedule.rows
    assert timeline.makespan == simulate(joined(schedule), HALVES).makespan
