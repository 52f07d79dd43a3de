"""Plans: the fastest that fits, with reasons, as a file that is read strictly."""

import json
import random
from dataclasses import replace
from itertools import combinations, pairwise, product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.layer_costs import LayerCosts, at_rows
from headrace.partition.errors import NoCutFits
from headrace.planner import NoPlanFits, Plan, Request, make_plan, read_plan
from headrace.planner.appraise import at_close
from headrace.planner.candidates import candidates
from headrace.planner.choose import choose, lower_bound
from headrace.planner.reasons import why_not
from headrace.schedule import build
from headrace.schedule.catalogue.recompute import add_recompute
from headrace.schedule.joined import joined
from headrace.simulate import simulate
from headrace.simulate.memory import peak_memory_of
from headrace.units import seconds


def layers(seconds: list[int], rows: int = 1, *, kept: int = 10, weights: int = 100) -> LayerCosts:
    count = len(seconds)
    each = tuple(rows * s / 3 for s in seconds)
    return LayerCosts(
        names=tuple(f"layer{i}" for i in range(count)),
        rows=rows,
        forward=each,
        backward_input=each,
        backward_weight=each,
        parameters=(weights,) * count,
        trained=(3 * weights,) * count,
        activations=(rows * kept,) * count,
        for_weight=(rows * kept / 2,) * count,
        output=(rows,) * (count - 1) + (0,),
        transient=(0,) * count,
    )


EVEN = layers([3] * 8)


def test_the_plan_is_what_was_simulated() -> None:
    request = Request([EVEN], batch=8, ranks=2, latency=0.1, bandwidth=100, update=0.001)
    plan = make_plan(request)
    assert plan.layers == EVEN.names
    assert sum(plan.cut) == 8
    assert (plan.ranks, plan.batch, plan.replicas) == (2, 8, 1)
    costs = replace(
        at_rows([EVEN], 8 // plan.micro_batches).stage_costs(plan.cut),
        transfer=0.1, bandwidth=100, update=[0.001 * 100 * n for n in plan.cut],
    )  # fmt: skip
    timeline = simulate(plan.schedule, costs)
    assert plan.predicted.step_seconds == pytest.approx(timeline.makespan)
    assert plan.predicted.bubble_fraction == pytest.approx(timeline.bubble_fraction)
    assert plan.predicted.peak_bytes == peak_memory_of(plan.schedule, costs.memory)
    assert 0 <= plan.predicted.gap < 1
    assert plan.predicted.lower_bound == pytest.approx((1 - plan.predicted.gap) * plan.predicted.step_seconds)
    assert plan.alternatives
    assert all(other.step_seconds >= plan.predicted.step_seconds for other in plan.alternatives if other.step_seconds)


def test_a_plan_says_itself_in_a_line() -> None:
    plan = make_plan(Request([EVEN], batch=8, ranks=2, schedules=["gpipe"], micro_batches=[4]))
    assert str(plan).startswith("2 ranks, batch 8: gpipe with m=4, cut 4, 4; step ")
    assert str(plan).endswith(f"20.0 % of it above the lower bound of {seconds(plan.predicted.lower_bound)}")
    alike = replace(plan, schedule=add_recompute(plan.schedule, {1}), recomputes=(1,), replicas=2)
    assert str(alike).startswith("2 ranks, 2 replicas, batch 8: gpipe with m=4, cut 4, 4, recompute={1}; step ")
    single = replace(alike, recomputed_layers=("layer0", "layer2"))
    assert "cut 4, 4, recompute={1, 'layer0', 'layer2'}; step " in str(single)


@settings(deadline=None, max_examples=25)
@given(
    st.lists(st.integers(1, 9), min_size=3, max_size=6),
    st.sampled_from([0, 0.5, 3]),
    st.sampled_from(["1f1b", "gpipe", "zb-h1"]),
)
def test_no_cut_is_faster_than_the_planned_one_by_more_than_the_model_errs(
    seconds: list[int], latency: float, name: str
) -> None:
    request = Request([layers(seconds)], batch=6, ranks=2, latency=latency, schedules=[name], micro_batches=[3])
    (candidate,) = candidates(request)
    found = at_close(candidate, request)
    schedule = build(name, ranks=2, micro_batches=3)
    best = min(
        simulate(schedule, replace(at_rows(request.sizes, 2).stage_costs(cut), transfer=latency)).makespan
        for (end,) in combinations(range(1, len(seconds)), 1)
        for cut in [(end, len(seconds) - end)]
    )
    assert found.seconds <= best * 1.005
    assert lower_bound(request) <= best + 1e-9


def test_memory_decides_and_recompute_helps() -> None:
    free = make_plan(Request([EVEN], batch=8, ranks=2, schedules=["gpipe", "1f1b"], micro_batches=[8]))
    peak = max(free.predicted.peak_bytes)
    tight = Request(
        [EVEN], batch=8, ranks=2, schedules=["gpipe", "1f1b"], micro_batches=[8], memory=1650, recompute="stage"
    )
    plan = make_plan(tight)
    assert plan.recomputes
    assert max(plan.predicted.peak_bytes) <= 1650 < peak
    assert any(action.kind == "R" for row in plan.schedule.rows for action in row)
    assert plan.predicted.step_seconds > free.predicted.step_seconds
    with pytest.raises(NoPlanFits, match=r"nothing fits: no cut .* more"):
        make_plan(replace(tight, recompute="never"))
    with pytest.raises(NoPlanFits, match="memory") as refusal:
        make_plan(replace(tight, memory=100))
    assert refusal.value.ways_out


def test_single_layers_recompute_where_that_is_enough() -> None:
    request = Request([EVEN], batch=8, ranks=2, schedules=["1f1b"], micro_batches=[8], memory=1670)
    plan = make_plan(request)
    assert plan.recomputed_layers
    costs = at_rows([EVEN], 1).stage_costs(plan.cut, EVEN.numbers(plan.recomputed_layers))
    assert plan.predicted.step_seconds == simulate(plan.schedule, costs).makespan
    assert plan.predicted.peak_bytes == peak_memory_of(plan.schedule, costs.memory)
    assert max(plan.predicted.peak_bytes) <= 1670
    stages = make_plan(replace(request, recompute="stage"))
    assert not stages.recomputed_layers
    assert plan.predicted.step_seconds < stages.predicted.step_seconds


def every_choice(costs: LayerCosts, schedule: Any, memory: float, *, by_layers: bool) -> list[float]:
    """Seconds of all cuts with all choices of what recomputes that fit."""
    found = []
    for ends in combinations(range(1, costs.layers), schedule.stages - 1):
        spans = [*pairwise((0, *ends, costs.layers))]
        cut = tuple(end - start for start, end in spans)
        for whole in product((False, True), repeat=len(spans)):
            runs = joined(add_recompute(schedule, {stage for stage, again in enumerate(whole) if again}))
            free = [layer for again, span in zip(whole, spans, strict=True) if not again for layer in range(*span)]
            for count in range(len(free) + 1 if by_layers else 1):
                for single in combinations(free, count):
                    of_stages = costs.stage_costs(cut, single)
                    if max(peak_memory_of(runs, of_stages.memory)) <= memory:
                        found.append(simulate(runs, of_stages).makespan)
    return found


@pytest.mark.parametrize("recompute", ["stage", "layer"])
@pytest.mark.parametrize("name", ["1f1b", "gpipe", "zb-h1"])
def test_what_recomputes_is_the_best_choice_of_all(name: str, recompute: str) -> None:
    """Against every cut with every choice, on small models whose memory is a part of what they would take."""
    rng = random.Random(f"{name} {recompute}")
    schedule, errs = build(name, ranks=2, micro_batches=4), []
    for _ in range(15):
        count = rng.randint(4, 5)
        seconds = [[rng.randint(5, 50) for _ in range(count)] for _ in range(3)]
        sizes = [[rng.randint(1, most) for _ in range(count)] for most in (20, 60, 20, 10)]
        costs = LayerCosts(
            tuple(f"layer{i}" for i in range(count)), 1, *map(tuple, seconds), tuple(sizes[0]), (0,) * count,
            tuple(sizes[1]), tuple(map(min, sizes[1], sizes[2])), tuple(sizes[3]), (0,) * count,
        )  # fmt: skip
        request = Request([costs], batch=4, ranks=2, schedules=[name], micro_batches=[4], recompute=recompute)
        (candidate,) = candidates(request)
        memory = rng.uniform(0.5, 0.9) * max(at_close(candidate, request).peak)
        best = min(every_choice(costs, schedule, memory, by_layers=recompute == "layer"), default=None)
        try:
            found = at_close(candidate, replace(request, memory=memory))
        except NoCutFits:
            assert best is None
        else:
            assert best is not None
            errs.append(found.seconds / best - 1)
    assert len(errs) >= 5
    assert min(errs) >= 0
    assert max(errs) <= 0.005


def test_what_recomputes_layer_by_layer_is_said_to_cost_that() -> None:
    request = Request([EVEN], batch=8, ranks=2, schedules=["1f1b"], micro_batches=[8], memory=1670)
    (candidate,) = candidates(request)
    found, free = at_close(candidate, request), at_close(candidate, replace(request, memory=None))
    assert "more recompute" in why_not(found, free)


def test_hops_that_cost_more_than_the_bubble_they_save_are_not_taken() -> None:
    names = ["1f1b", "interleaved"]
    cheap = choose(Request([EVEN], batch=4, ranks=2, schedules=names, micro_batches=[4]))
    dear = choose(Request([EVEN], batch=4, ranks=2, schedules=names, micro_batches=[4], latency=4))
    assert cheap.best.candidate.name == "interleaved"
    assert dear.best.candidate.name == "1f1b"
    plan = make_plan(Request([EVEN], batch=4, ranks=2, schedules=names, micro_batches=[4], latency=4))
    assert any("waiting for messages" in other.reason for other in plan.alternatives)
    plan = make_plan(Request([EVEN], batch=4, ranks=2, schedules=names, micro_batches=[4]))
    assert any("more bubble" in other.reason for other in plan.alternatives)


def test_segments_share_the_cost_of_a_micro_batch() -> None:
    request = Request([EVEN], batch=4, ranks=2, schedules=["seq1f1b", "1f1b"], micro_batches=[2])
    found = choose(request)
    seconds = {each.candidate.name: each.seconds for each in (found.best, *found.others)}
    assert 2 * 24 < seconds["1f1b"] <= (2 + 1) * 24  # of equal stages; uneven ones may be better
    assert 4 * 12 < seconds["seq1f1b"] <= (4 + 1) * 12


def test_pins_and_layers_that_stay_together_are_respected() -> None:
    request = Request(
        [EVEN], batch=4, ranks=2, schedules=["1f1b"], keep_together=[(0, 5)], pin_rank={6: 1}, micro_batches=[2]
    )
    assert make_plan(request).cut == (6, 2)


def test_slow_ranks_get_less_and_replicas_shorten_pipelines() -> None:
    slow = Request([EVEN], batch=4, ranks=2, schedules=["1f1b"], micro_batches=[4], slowness=[3, 1])
    assert make_plan(slow).cut == (2, 6)
    both = Request([EVEN], batch=8, ranks=4, schedules=["1f1b"], replicas=[1, 2, 4])
    plan = make_plan(both)
    assert (plan.ranks, plan.replicas, plan.memory) == (1, 4, None)  # nothing to reduce over links that take no time
    costly = make_plan(replace(both, bandwidth=1.0))
    assert costly.replicas < 4


def test_lower_bounds_are_below_every_plan() -> None:
    for ranks in (1, 2, 3):
        plan = make_plan(Request([layers([1, 7, 2, 4, 4, 9])], batch=6, ranks=ranks))
        assert plan.predicted.lower_bound <= plan.predicted.step_seconds


# -- the file --------------------------------------------------------------------------------------------------------


@pytest.fixture
def plan() -> Plan:
    return make_plan(Request([EVEN], batch=8, ranks=2, micro_batches=[4]), fingerprint="f", devices=("cpu", "cpu"))


def test_a_plan_survives_its_file(plan: Plan, tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    file.write_text(plan.to_json(), encoding="utf-8")
    assert read_plan(file) == plan
    limited = replace(plan, memory=(2e9, 1e9), recomputed_layers=("layer1", "layer2", "layer7"))
    file.write_text(limited.to_json(), encoding="utf-8")
    assert read_plan(file) == limited
    data = json.loads(plan.to_json())
    assert [name for stage in data["cut"] for name in stage] == list(EVEN.names)


def _without(data: dict[str, Any], key: str) -> None:
    del data[key]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.update(version=1), "version is 1, but this headrace reads plans of version 4"),
        (lambda d: d.update(recomputes=[]), "recomputes must be an object with layers, stages"),
        (lambda d: d["recomputes"].pop("layers"), "recomputes lacks 'layers'"),
        (lambda d: d["recomputes"].update(halves=[]), "recomputes has an unknown key 'halves'"),
        (
            lambda d: d["recomputes"].update(layers=["layr3"]),
            r"recomputes has the layer 'layr3', which is none of model: did you mean 'layer3'\?",
        ),
        (lambda d: d["recomputes"].update(layers=["layer3", "layer1"]), "each once and in the order of model"),
        (lambda d: d["recomputes"].update(layers=["layer3", "layer3"]), "each once and in the order of model"),
        (lambda d: d.update(colour="red"), "the plan has an unknown key 'colour'"),
        (lambda d: _without(d, "cut"), "the plan lacks 'cut'"),
        (lambda d: d["model"].update(size=3), "model has an unknown key 'size'"),
        (lambda d: d["predicted"].update(luck=1), "predicted has an unknown key 'luck'"),
        (lambda d: d["alternatives"][0].pop("reason"), "alternatives: 0 lacks 'reason'"),
        (lambda d: d.update(micro_batches=5), "micro_batches is 5, but the grid of schedule is for 4"),
        (lambda d: d["cut"][0].pop(), "cut does not name the layers of model, each once and in order"),
        (lambda d: d["cut"].pop(), "cut does not name the layers of model, each once and in order"),
        (lambda d: d.update(cut=[[*d["model"]["layers"]]]), "cut has 1 stages, but the grid of schedule has"),
        (lambda d: d.update(batch=0), "batch=0 must be at least 1"),
        (lambda d: d.update(batch="8"), "the plan: batch is '8', but must be a whole number"),
        (lambda d: d.update(batch=True), "the plan: batch is True, but must be a whole number"),
        (lambda d: d.update(memory=[1]), "memory has 1 numbers, but the schedule has 2 ranks"),
        (lambda d: d.update(memory=[1, -1]), "the plan: memory: 1 is -1, but must be 0 or more"),
        (
            lambda d: d["recomputes"].update(stages=[1]),
            r"recomputes names the stages \[1\], but schedule has R of \[\]",
        ),
        (lambda d: d.update(cut=None), "the plan: cut is None, but must be a list"),
        (lambda d: d["predicted"].update(step_seconds=1e200), "predicted: step_seconds is 1e.200, but must be finite"),
        (
            lambda d: d["predicted"].update(forward=[1]),
            "predicted: forward has 1 numbers, but the schedule has",
        ),
        (lambda d: d["schedule"].update(grid=None), "the plan: schedule: grid is None, but must be a text"),
        (lambda d: d["schedule"].update(grid="0B0,0F0"), "deadlocks"),
        (lambda d: d["schedule"].update(grid="0X0"), "row 1, column 1: '0X0' is not an action"),
    ],
)
def test_a_file_is_read_strictly(plan: Plan, tmp_path: Path, change: Any, message: str) -> None:
    data = json.loads(plan.to_json())
    change(data)
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(data), encoding="utf-8")
    with pytest.raises(ValueError, match=message) as refusal:
        read_plan(file)
    assert str(refusal.value).startswith(str(file))


def test_a_layer_of_a_stage_that_recomputes_as_a_whole_is_refused(plan: Plan, tmp_path: Path) -> None:
    whole = replace(plan, schedule=add_recompute(plan.schedule, {0}), recomputes=(0,))
    data = json.loads(whole.to_json())
    data["recomputes"]["layers"] = ["layer0"]
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(data), encoding="utf-8")
    with pytest.raises(ValueError, match="recomputes has the layer 'layer0' and, as a whole, its stage 0"):
        read_plan(file)


def test_what_is_no_json_is_said_so(tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    file.write_text("{")
    with pytest.raises(ValueError, match="is no JSON"):
        read_plan(file)


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        ({"schedules": []}, ValueError, "schedules is empty: name some, or leave it out"),
        ({"schedules": "1f1b"}, TypeError, r"schedules='1f1b' must be a sequence, such as \['1f1b'\]"),
        ({"micro_batches": []}, ValueError, "micro_batches is empty"),
        ({"micro_batches": [0]}, ValueError, "micro_batches=0 must be at least 1"),
        (
            {"micro_batches": [9, 10]},
            ValueError,
            r"micro_batches=\[9, 10\] are more than the batch has rows, which is 8",
        ),
        ({"memory": "1GiB"}, TypeError, "memory='1GiB' must be a number of bytes, or one for each rank"),
        ({"memory": [1.0]}, ValueError, "memory has 1 numbers, but there are 2 ranks"),
        ({"memory": float("inf")}, ValueError, "memory has inf, which must be finite"),
        ({"keep_together": (0, 1)}, TypeError, r"keep_together=\(0, 1\) must hold groups of layers, such as"),
    ],
)
def test_what_nothing_can_be_chosen_from_is_refused(wrong: dict[str, Any], error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        Request(**{"sizes": [EVEN], "batch": 8, "ranks": 2, **wrong})


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"sizes": []}, "sizes is empty"),
        ({"schedules": ["pipedream"]}, "schedules names 'pipedream', which trains with delayed weights"),
        ({"schedules": ["1f2b"]}, "schedules names '1f2b', which is unknown"),
        ({"replicas": [3]}, "replicas has 3, which does not divide ranks=2"),
        ({"recompute": "layers"}, 'recompute=.layers. must be "never", "stage" or "layer"'),
        ({"ranks": 0}, "ranks=0"),
    ],
)
def test_misuse_is_refused_by_name(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Request(**{"sizes": [EVEN], "batch": 8, "ranks": 2, **wrong})


def test_more_ranks_than_layers() -> None:
    with pytest.raises(ValueError, match="no schedule exists for these numbers"):
        make_plan(Request([layers([1, 2])], batch=8, ranks=4))
