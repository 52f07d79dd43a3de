"""Why a step differs from its prediction: the parts add up, and nobody is blamed for what costs nothing."""

import json
from dataclasses import replace
from io import StringIO
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from headrace.costs import Costs
from headrace.report.explain import differences_table, explain, in_a_sentence
from headrace.schedule import build, parse
from headrace.simulate import simulate, simulate_as_run
from headrace.simulate.measured import MeasuredCosts, as_it_ran, latency_of, seconds_of
from headrace.timeline import Timeline

ONE_F_ONE_B = build("1f1b", ranks=2, micro_batches=4)
EVEN = Costs(forward=2, backward_input=2, backward_weight=2)


def test_a_slow_stage_is_blamed_for_all_it_costs() -> None:
    measured = simulate(ONE_F_ONE_B, replace(EVEN, backward_input=[2, 5]))
    found = explain(ONE_F_ONE_B, EVEN, measured)
    first, *others = found.differences
    assert (first.stage, first.kind, first.predicted, first.measured, first.ratio) == (1, "B", 4, 7, 7 / 4)
    assert first.makespan == found.compute == measured.makespan - simulate(ONE_F_ONE_B, EVEN).makespan > 0
    assert first.bubble == pytest.approx(found.measured_bubble - found.predicted_bubble)
    assert all(other.makespan == other.bubble == 0 for other in others)
    assert (found.messages, found.waiting, found.latency) == (0, 0, 0)


def test_what_is_slower_where_others_wait_anyway_costs_nothing() -> None:
    schedule = parse("0F0,0I0,0W0\n,1F0,1I0,1W0\n")
    measured = simulate(schedule, replace(EVEN, backward_weight=[2, 3]))
    found = explain(schedule, EVEN, measured)
    slower = next(each for each in found.differences if each.ratio != 1)
    assert (slower.stage, slower.kind, slower.ratio) == (1, "W", 1.5)
    assert slower.makespan == 0 > slower.bubble  # its rank would have been idle


def test_messages_and_waiting_are_told_apart() -> None:
    measured = simulate(ONE_F_ONE_B, replace(EVEN, transfer=0.5))
    found = explain(ONE_F_ONE_B, EVEN, measured)
    assert (found.latency, found.compute, found.waiting) == (0.5, 0, 0)
    assert found.messages == measured.makespan - found.predicted > 0
    late = Timeline(2, [s._replace(start=s.start + 3, end=s.end + 3) if s.start >= 9 else s for s in measured.spans])
    found = explain(ONE_F_ONE_B, EVEN, late)
    assert (found.latency, found.compute, found.waiting) == (0.5, 0, 3)
    assert found.predicted + found.compute + found.messages + found.waiting == found.measured


@settings(deadline=None, max_examples=40)
@given(
    st.sampled_from(["gpipe", "1f1b", "interleaved", "zb-h1", "zb-v", "chimera", "seq1f1b"]),
    st.data(),
)
def test_measured_costs_explain_a_step_that_has_nothing_else(name: str, data: st.DataObject) -> None:
    options: dict[str, Any] = {"stages_per_rank": 2} if name == "interleaved" else {}
    schedule = build(name, ranks=2, micro_batches=4, **options)
    numbers = st.lists(st.integers(1, 5), min_size=schedule.stages, max_size=schedule.stages)
    planned, real = (Costs(*(data.draw(numbers) for _ in range(3))) for _ in range(2))
    found = explain(schedule, planned, simulate_as_run(schedule, real))
    assert found.compute == simulate_as_run(schedule, real).makespan - simulate_as_run(schedule, planned).makespan
    assert (found.messages, found.waiting) == (0, 0)
    gains = [each.makespan for each in found.differences]
    assert gains == sorted(gains, reverse=True)


def test_backwards_that_ran_whole_are_compared_as_such() -> None:
    schedule = parse("0F0,0F1,0I0,0W0,0I1,0W1\n")
    by_runtime = simulate(schedule, Costs(2, 7, 0))  # the runtime leaves nothing to a W that follows at once
    assert as_it_ran(schedule, by_runtime)[0].rows == parse("0F0,0F1,0B0,0B1\n").rows
    found = explain(schedule, EVEN, by_runtime)
    assert [(each.kind, each.predicted, each.measured) for each in found.differences] == [("B", 4, 7), ("F", 2, 2)]
    assert (found.compute, found.waiting) == (6, 0)
    split = parse("0F0,0F1,0I0,0I1,0W0,0W1\n")
    assert as_it_ran(split, simulate(split, Costs(2, 7, 0)))[0] == split  # something came in between


def test_a_whole_backward_need_not_cost_its_halves() -> None:
    costs = MeasuredCosts.of(EVEN, {(1, "B"): 3, (0, "F"): 9})
    per_stage = costs.per_stage(2)
    assert (per_stage["B"], per_stage["I"], per_stage["F"], per_stage["R"]) == ([4, 3], [2, 2], [9, 2], [2, 2])


def test_medians_ignore_a_disturbed_action() -> None:
    timeline = simulate(ONE_F_ONE_B, EVEN)
    spans = [span._replace(end=span.end + 100) if str(span.action) == "0B3" else span for span in timeline.spans]
    assert seconds_of(Timeline(2, spans)) == {(0, "B"): 4, (0, "F"): 2, (1, "B"): 4, (1, "F"): 2}
    assert latency_of(ONE_F_ONE_B, Timeline(2, spans)) == 0


def test_updates_at_the_end_are_no_part_of_it() -> None:
    step = simulate(ONE_F_ONE_B, EVEN)
    found = explain(ONE_F_ONE_B, replace(EVEN, update=5, reduce=1), step)
    assert (found.predicted, found.compute, found.waiting) == (step.makespan, 0, 0)


def test_another_schedule_is_refused() -> None:
    measured = simulate(build("1f1b", ranks=2, micro_batches=5), EVEN)
    with pytest.raises(ValueError, match="another schedule than 1f1b: rank 0 has 0B4"):
        explain(ONE_F_ONE_B, EVEN, measured)
    with pytest.raises(ValueError, match="another schedule than 1f1b: rank 1 lacks 1B0"):
        explain(ONE_F_ONE_B, EVEN, Timeline(1, [s for s in simulate(ONE_F_ONE_B, EVEN).spans if s.rank == 0]))


def test_only_what_matters_is_shown() -> None:
    measured = simulate(ONE_F_ONE_B, Costs([2, 2.001], [2, 5], [2, 1.5], transfer=1))
    found = explain(ONE_F_ONE_B, EVEN, measured)
    console = Console(width=100, file=StringIO())
    console.print(differences_table(found))
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert [line.split() for line in lines if "stage" in line] == [
        ["stage", "1:", "backward", "4", "s", "6.5", "s", "×", "1.62", "+10", "s", "+7.5", "points"]
    ]
    assert in_a_sentence(found).startswith("predicted 30 s, compute slower +10")
    assert "messages slower +" in in_a_sentence(found)
    assert differences_table(explain(ONE_F_ONE_B, EVEN, simulate(ONE_F_ONE_B, EVEN))) is None


def test_the_explanation_is_plain_data() -> None:
    found = explain(ONE_F_ONE_B, EVEN, simulate(ONE_F_ONE_B, replace(EVEN, forward=[2, 3])))
    data = json.loads(json.dumps(found.as_data()))
    assert data["actions"][0]["ratio"] == 1.5
    assert data["makespan"]["measured"] == data["makespan"]["predicted"] + sum(data["adds"].values())
