"""Planning again with what a run has measured, and going on with that plan without a bit of difference."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from moving import CUTS, SCHEDULES, STAYS, Moves, Trained, adamw, loss_fn, model, pipeline, trained
from torch import nn
from typer.testing import CliRunner

from headrace.cli.main import app
from headrace.layer_costs import LayerCosts
from headrace.planner import NoPlanFits, read_plan
from headrace.planner.replan import Replanned, replan
from headrace.planner.run_profile import Link, RunProfile, read_run
from headrace.planner.run_timelines import RunTimelines
from headrace.runtime.model.warn import BatchStatisticsWarning
from headrace.runtime.pipeline import Pipeline
from headrace.schedule import Schedule, build, parse
from headrace.simulate import simulate
from headrace.simulate.corrected import corrected
from headrace.timeline import Timeline
from headrace.train import job
from headrace.train.config import TrainConfig
from headrace.train.job import Prepared, StepRecord, train
from headrace.train.move import moved

pytestmark = pytest.mark.filterwarnings("ignore::headrace.runtime.model.warn.BatchStatisticsWarning")

ONE_F_ONE_B = build("1f1b", ranks=2, micro_batches=4)
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


@pytest.fixture(autouse=True)
def _one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def layers(seconds: Sequence[float]) -> LayerCosts:
    each, ones = tuple(seconds), (1,) * len(seconds)
    return LayerCosts(
        tuple(f"layer{i}" for i in range(len(each))), 2, each, each, each, ones, ones, ones, ones, ones, ones
    )


def a_run(schedule: Schedule = ONE_F_ONE_B, cut: tuple[int, ...] = (4, 4), link: Link | None = None) -> RunProfile:
    return RunProfile(layers([1] * 8), 8, schedule, cut, "f", ("cpu", "cpu"), link, torch="9.9")


def step_of(run: RunProfile, seconds: Sequence[float] = (1,) * 8, latency: float = 0) -> Timeline:
    """A step in which the layers take `seconds`."""
    found = layers(seconds)
    costs = found.stage_costs(run.cut, found.numbers(run.recomputed_layers))
    return simulate(run.schedule, replace(costs, transfer=latency))


# -- corrected costs -------------------------------------------------------------------------------------------------


def test_layers_are_as_slow_as_their_stage_was() -> None:
    run = a_run(cut=(3, 5))
    again = corrected(run.layers, run.schedule, run.cut, step_of(run, [2] * 3 + [3] * 5))
    assert again.forward == again.backward_input == again.backward_weight == (2,) * 3 + (3,) * 5
    assert again.activations == run.layers.activations


def test_layers_that_ran_twice_are_no_slower_for_it() -> None:
    run = replace(a_run(cut=(3, 5)), recomputed_layers=("layer1", "layer6"))
    measured = step_of(run, [2] * 3 + [3] * 5)
    again = corrected(run.layers, run.schedule, run.cut, measured, again=(1, 6))
    assert again.forward == again.backward_input == again.backward_weight == (2,) * 3 + (3,) * 5


def test_halves_are_corrected_by_themselves_where_they_ran_by_themselves() -> None:
    schedule = parse("0F0,0F1,0I0,0I1,0W0,0W1\n")
    measured = simulate(schedule, replace(run_costs := layers([1]).stage_costs([1]), backward_input=5, forward=2))
    again = corrected(layers([1]), schedule, (1,), measured)
    assert (again.forward, again.backward_input, again.backward_weight) == ((2,), (5,), (1,))
    whole = parse("0F0,0F1,0I0,0W0,0I1,0W1\n")  # the runtime splits no backward of these
    again = corrected(
        layers([1]), whole, (1,), simulate(whole, replace(run_costs, backward_input=6, backward_weight=0))
    )
    assert (again.backward_input, again.backward_weight) == ((3,), (3,))


def test_actions_of_segments_are_shares_of_a_micro_batch() -> None:
    schedule = build("seq1f1b", ranks=2, micro_batches=4)
    costs = layers([1 / schedule.segments] * 8).stage_costs((4, 4))
    assert corrected(layers([1] * 8), schedule, (4, 4), simulate(schedule, costs)).seconds == (3,) * 8


def test_no_alternative_is_listed_twice() -> None:
    run = a_run(cut=(7, 1))
    listed = [other.schedule for other in replan(run, step_of(run)).plan.alternatives]
    assert len(set(listed)) == len(listed)
    assert {"1f1b with m=4", "1f1b with m=4, cut as it ran"} <= set(listed)


# -- planning again --------------------------------------------------------------------------------------------------


def test_a_lopsided_run_gains_what_an_even_cut_saves() -> None:
    run = a_run(cut=(7, 1))
    found = replan(run, step_of(run), change="cut")
    assert (found.plan.schedule, found.plan.cut) == (run.schedule, (4, 4))
    assert found.own == step_of(run).makespan
    assert found.plan.predicted.step_seconds == pytest.approx(step_of(a_run()).makespan)
    assert found.gain == pytest.approx(1 - step_of(a_run()).makespan / step_of(run).makespan)
    assert str(found) == "re-planning gains 28.6 %: 1f1b with cut 4, 4, 84 s → 60 s a step"
    assert (found.plan.fingerprint, found.plan.devices, found.plan.batch) == ("f", ("cpu", "cpu"), 8)


def test_what_was_measured_decides_not_what_was_profiled() -> None:
    run, really = a_run(), [1] * 4 + [3] * 4
    best = min(((end, 8 - end) for end in range(1, 8)), key=lambda cut: step_of(a_run(cut=cut), really).makespan)
    assert replan(run, step_of(run, really), change="cut").plan.cut == best != run.cut


def test_the_best_run_has_nothing_to_gain() -> None:
    run = a_run()
    found = replan(run, step_of(run), change="cut")
    assert not found.worth_it
    assert (found.plan.schedule, found.plan.cut, found.gain) == (run.schedule, run.cut, 0)
    assert str(found).startswith("nothing to gain: the run's plan is the best known")


@pytest.mark.parametrize("cut", [(4, 4), (5, 3)])
def test_a_gain_within_the_noise_is_none(cut: tuple[int, int]) -> None:
    run = replace(a_run(cut=cut), layers=layers([1, 1, 1, 1, 0.0001, 1, 1, 1]))
    step = step_of(run, run.layers.forward)
    assert replan(run, step, change="cut").plan.cut == cut


def test_other_schedules_with_as_many_micro_batches_are_tried() -> None:
    run = a_run()
    found = replan(run, step_of(run))
    assert found.worth_it
    assert found.plan.schedule.name != "1f1b"
    assert found.plan.micro_batches == 4
    asked = replan(run, step_of(run), schedules=["gpipe"])
    assert asked.plan.schedule.name == "gpipe"  # though it is no better
    assert not asked.worth_it
    assert replan(run, step_of(run), change="cut", schedules=["gpipe"]).plan.schedule.name == "gpipe"
    assert replan(run, step_of(run), schedules=["gpipe"], micro_batches=[8]).plan.micro_batches == 8


def test_a_run_that_cuts_sequences_keeps_its_schedule() -> None:
    run = a_run(build("seq1f1b", ranks=2, micro_batches=4), (7, 1))
    measured = step_of(run, [1 / run.schedule.segments] * 8)
    found = replan(run, measured)
    assert (found.plan.schedule, found.plan.cut, found.plan.micro_batches) == (run.schedule, (4, 4), 4)
    assert found.own == pytest.approx(measured.makespan)
    even = step_of(a_run(run.schedule), [1 / run.schedule.segments] * 8)
    assert found.plan.predicted.step_seconds == pytest.approx(even.makespan)


def test_messages_count_as_long_as_they_took() -> None:
    run = a_run()
    slow = replan(run, step_of(run, latency=20), schedules=["1f1b", "interleaved"])
    assert slow.plan.schedule.name == "1f1b"  # half as many hops
    assert slow.own == step_of(run, latency=20).makespan
    assert replan(run, step_of(run), schedules=["1f1b", "interleaved"]).plan.schedule.name == "interleaved"
    known = replace(run, link=Link(latency=20))
    assert replan(known, step_of(run), schedules=["1f1b", "interleaved"]).plan.schedule.name == "1f1b"


def test_a_run_that_recomputes_does_so_until_memory_is_known_to_suffice() -> None:
    run = a_run(build("1f1b", ranks=2, micro_batches=4, recompute="always"), (7, 1))
    found = replan(run, step_of(run))
    assert (found.plan.schedule, found.plan.cut, found.plan.recomputes) == (run.schedule, (4, 4), (0, 1))
    freed = replan(run, step_of(run), memory=1000)
    assert not freed.plan.recomputes
    with pytest.raises(NoPlanFits, match="memory"):
        replan(run, step_of(run), memory=1)


def test_layers_that_recompute_do_so_until_memory_is_known_to_suffice() -> None:
    run = replace(a_run(cut=(7, 1)), recomputed_layers=("layer1", "layer2", "layer3"))
    measured = step_of(run)
    found = replan(run, measured)
    assert (found.plan.schedule, found.plan.recomputed_layers) == (run.schedule, run.recomputed_layers)
    assert found.own == measured.makespan
    seconds = {cut: step_of(replace(run, cut=cut)).makespan for cut in ((end, 8 - end) for end in range(1, 8))}
    assert found.plan.cut == min(seconds, key=lambda cut: seconds[cut])
    assert found.plan.predicted.step_seconds == min(seconds.values())
    freed = replan(run, measured, memory=1000)
    assert not freed.plan.recomputed_layers


def test_what_may_change_is_one_of_two_things() -> None:
    with pytest.raises(ValueError, match='change=\'layers\' must be "cut" or "schedule"'):
        replan(a_run(), step_of(a_run()), change="layers")  # type: ignore[arg-type]


# -- the files of a run ----------------------------------------------------------------------------------------------


def leave(run: RunProfile, folder: Path) -> Path:
    (folder / "profile.json").write_text(run.to_json(), encoding="utf-8")
    steps = RunTimelines(run.schedule.name, step_of(run), step_of(run))
    (folder / "timeline.json").write_text(steps.to_json(), encoding="utf-8")
    return folder


@pytest.mark.parametrize("link", [None, Link(0.5), Link(0.5, 1e9)])
def test_a_run_survives_its_files(tmp_path: Path, link: Link | None) -> None:
    run = replace(a_run(link=link), recomputed_layers=("layer2", "layer5"))
    assert read_run(leave(run, tmp_path)) == (run, step_of(run))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.update(version=1), "version is 1, but this headrace reads runs of version 4"),
        (lambda d: d.pop("recomputed_layers"), "the profile lacks 'recomputed_layers'"),
        (lambda d: d.update(recomputed_layers=["layr1"]), r"'layr1' is no layer: did you mean 'layer1'\?"),
        (lambda d: d.update(colour="red"), "the profile has an unknown key 'colour'"),
        (lambda d: d.pop("batch"), "the profile lacks 'batch'"),
        (lambda d: d["layers"].update(height=[]), "layers has an unknown key 'height'"),
        (lambda d: d["layers"]["forward"].pop(), "forward has 7 numbers for 8 layers"),
        (lambda d: d.update(cut=[8]), "cut has 1 stages, but the grid of schedule has 2"),
        (lambda d: d.update(cut=[4, 3]), "8 layers in all"),
        (lambda d: d.update(micro_batches=5), "micro_batches is 5, but the grid of schedule is for 4"),
        (lambda d: d["schedule"].update(grid="0B0,0F0"), "deadlocks"),
        (lambda d: d.update(link={}), "link lacks 'bandwidth'"),
        (lambda d: d.update(cut=3), "the profile: cut is 3, but must be a list"),
    ],
)
def test_a_profile_is_read_strictly(tmp_path: Path, change: Callable[[Any], Any], message: str) -> None:
    file = leave(a_run(), tmp_path) / "profile.json"
    data = json.loads(file.read_text(encoding="utf-8"))
    change(data)
    file.write_text(json.dumps(data), encoding="utf-8")
    with pytest.raises(ValueError, match=message) as refusal:
        read_run(tmp_path)
    assert str(refusal.value).startswith(str(file))


def test_a_folder_without_a_finished_run_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"holds no finished run: profile\.json cannot be read"):
        read_run(tmp_path)
    leave(a_run(), tmp_path)
    (tmp_path / "timeline.json").write_text("{")
    with pytest.raises(ValueError, match=r"timeline\.json is no JSON"):
        read_run(tmp_path)


# -- moving ----------------------------------------------------------------------------------------------------------


def same(one: Trained, other: Trained) -> bool:
    """Bit for bit."""
    states = one[1], other[1]
    return (
        one[0] == other[0]
        and states[0].keys() == states[1].keys()
        and all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    )


@pytest.mark.parametrize("moves", [CUTS, SCHEDULES])
def test_moving_changes_no_bit(moves: Moves) -> None:
    stays = trained(STAYS)
    assert stays[1]["3.calls"] == 4
    assert stays[1]["0.weight", "step"] == 5
    with pytest.warns(BatchStatisticsWarning) as warned:
        assert same(trained(moves), stays)
    assert len(warned) == 1  # not again after each move


@pytest.mark.slow
def test_processes_move_what_they_hold(tmp_path: Path) -> None:
    script = Path(__file__).with_name("moving.py")
    done = subprocess.run(
        [*TORCHRUN, script, tmp_path],
        capture_output=True, text=True, timeout=100, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for rank in (0, 1):
        assert f"rank {rank}: 4.weight has a gradient" in done.stdout
    each = [torch.load(tmp_path / str(rank)) for rank in (0, 1)]
    in_threads = trained(STAYS)
    for (losses, first), (same_losses, second) in zip(*each, strict=True):
        assert same_losses == losses
        assert same((losses, {**first, **second}), in_threads)


def test_what_cannot_move_is_refused_and_the_pipeline_goes_on() -> None:
    whole = model()
    x, y = torch.randn(8, 6), torch.zeros(8, dtype=torch.long)
    with pipeline(whole, "1f1b", (3, 4)) as pipe:
        optimizer = adamw(list(pipe.named_parameters()))
        move = partial(moved, pipe, optimizer, whole, loss_fn, adamw)
        pipe.step(x, y)
        with pytest.raises(ValueError, match=r"0.weight has a gradient, which does not move: call optimizer.step"):
            move(schedule=ONE_F_ONE_B, cut=(4, 3))
        optimizer.zero_grad()
        with pytest.raises(ValueError, match=r"cut=\(4, 4\) does not fit"):
            move(schedule=ONE_F_ONE_B, cut=(4, 4))
        with pytest.raises(ValueError, match="schedule 'pipedream' is asynchronous"):
            move(schedule=build("pipedream", ranks=2, micro_batches=4), cut=(4, 3))
        few = torch.optim.SGD(list(pipe.parameters())[1:], lr=0.1)
        with pytest.raises(ValueError, match=r"optimizer does not have 0.weight"):
            moved(pipe, few, whole, loss_fn, adamw, schedule=ONE_F_ONE_B, cut=(4, 3))
        strange = torch.optim.SGD([*pipe.parameters(), nn.Parameter(torch.zeros(1))], lr=0.1)
        with pytest.raises(ValueError, match="optimizer has parameters that are not of pipe"):
            moved(pipe, strange, whole, loss_fn, adamw, schedule=ONE_F_ONE_B, cut=(4, 3))
        one_group = partial(torch.optim.AdamW, lr=1e-2)
        with pytest.raises(ValueError, match=r"make_optimizer puts 0.weight and 0.bias into one group"):
            moved(pipe, optimizer, whole, loss_fn, one_group, schedule=ONE_F_ONE_B, cut=(4, 3))
        pipe.step(x, y)
        assert pipe.steps == 2


def test_the_old_pipeline_is_closed() -> None:
    whole = model()
    pipe = pipeline(whole, "1f1b", (3, 4))
    optimizer = adamw(list(pipe.named_parameters()))
    new, _ = moved(pipe, optimizer, whole, loss_fn, adamw, schedule=ONE_F_ONE_B, cut=(4, 3))
    with new:
        assert isinstance(new, Pipeline)
        assert new.cut == (4, 3)
    with pytest.raises(RuntimeError, match="closed"):
        pipe.step(torch.randn(8, 6), torch.zeros(8, dtype=torch.long))


# -- the main job ----------------------------------------------------------------------------------------------------

TINY = {"layers": 4, "dim": 16, "heads": 2, "sequence": 16, "batch": 8, "evaluation_batches": 1, "warm_up": 2}


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("".join(f"line {i} of a text about pipelines and bubbles\n" for i in range(400)))
    return path


@pytest.fixture(scope="module")
def lopsided(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plan for TINY whose first stage has all layers but one."""
    out = tmp_path_factory.mktemp("lopsided")
    done = CliRunner().invoke(
        app,
        ["plan", "--layers", "4", "--dim", "16", "--heads", "2", "--seq", "16", "--batch", "8", "--schedules", "1f1b",
         "--micro-batches", "4", "--out", str(out / "plan.json"),],
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    plan = replace(read_plan(out / "plan.json"), cut=(5, 1))
    (out / "plan.json").write_text(plan.to_json(), encoding="utf-8")
    return out / "plan.json"


def note(found: list[Replanned], followed_by: list[Prepared], replanned: Replanned, prepared: Prepared) -> None:
    found.append(replanned)
    followed_by.append(prepared)


def test_training_goes_on_with_a_better_cut_and_the_same_bits(text: Path, lopsided: Path) -> None:
    runs = []
    for replan_after in (None, 4):
        records: list[StepRecord] = []
        found: list[Replanned] = []
        followed_by: list[Prepared] = []
        config = TrainConfig(
            **TINY, steps=8, data=str(text), plan=str(lopsided), replan_after=replan_after, replan="cut"
        )
        result = train(config, on_step=records.append, on_replan=partial(note, found, followed_by))
        runs.append([(r.loss, r.gradient_norm, r.learning_rate, r.held_out_loss) for r in records])
    assert runs[0] == runs[1]
    (again,) = found
    assert followed_by == [result.prepared]
    assert again.worth_it
    assert result.replanned == again
    assert result.prepared.cut == result.run.cut == again.plan.cut != (5, 1)
    assert result.run.schedule == ONE_F_ONE_B
    assert result.prepared.predicted.makespan == again.plan.predicted.step_seconds


def test_training_goes_on_with_layers_recomputed(text: Path, lopsided: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    went_on: list[tuple[str, ...]] = []

    def noted(*arguments: Any, **options: Any) -> Any:
        pipe, optimizer = moved(*arguments, **options)
        went_on.append(pipe.recomputed_layers)
        return pipe, optimizer

    monkeypatch.setattr(job, "moved", noted)
    plan = replace(read_plan(lopsided), recomputed_layers=("block0", "block2"))
    lopsided.write_text(plan.to_json(), encoding="utf-8")
    runs = []
    for replan_after in (None, 4):
        records: list[StepRecord] = []
        config = TrainConfig(
            **TINY, steps=8, data=str(text), plan=str(lopsided), replan_after=replan_after, replan="cut"
        )
        result = train(config, on_step=records.append)
        runs.append([(r.loss, r.gradient_norm) for r in records])
        assert result.prepared.recomputed_layers == result.run.recomputed_layers == ("block0", "block2")
    assert runs[0] == runs[1]
    assert result.run.cut != (5, 1)
    assert went_on == [("block0", "block2")]


def test_the_command_plans_again_and_leaves_what_the_next_plan_needs(
    text: Path, lopsided: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # where runs go
    size = ["--layers", "4", "--dim", "16", "--heads", "2", "--seq", "16", "--batch", "8", "--data", str(text)]
    out = tmp_path / "run"
    train_it = ["train", *size, "--steps", "6", "--plan", str(lopsided), "--out", str(out)]
    done = CliRunner().invoke(app, [*train_it, "--replan-after", "5"])
    assert done.exit_code == 0, done.output
    assert "after 5 steps: re-planning gains " in done.stdout
    assert done.stdout.count("0: embedding") == 2  # the cut before, and the cut after
    assert "waiting that no cost explains" in done.stdout
    assert f"headrace plan --from {out}" in done.stderr
    explanation = json.loads((out / "explain.json").read_text())
    assert explanation["makespan"]["measured"] > 0
    run, measured = read_run(out)
    assert run.cut != (5, 1)
    assert len(measured.spans) == sum(map(len, run.schedule.rows))
    followed = read_plan(out / "plan.json")
    assert (followed.schedule.rows, followed.cut) == (run.schedule.rows, run.cut)
    assert "What the plan chose over" in (out / "report.html").read_text(encoding="utf-8")

    plan = tmp_path / "next.json"
    again = CliRunner().invoke(app, ["plan", "--from", str(out), "--schedules", "gpipe", "--out", str(plan)])
    assert again.exit_code == 0, again.output
    assert again.stdout.startswith(("re-planning ", "nothing to gain: "))  # which, the run's seconds decide
    assert read_plan(plan).schedule.name == "gpipe"
    taken = CliRunner().invoke(app, ["train", *size, "--steps", "2", "--plan", str(plan), "--json"])
    assert taken.exit_code == 0, taken.output
    summary = json.loads(taken.stdout)
    assert (summary["schedule"], summary["replanned"]) == ("gpipe", None)
    assert summary["explanation"]["makespan"]["measured"] > 0


@pytest.mark.slow
def test_processes_plan_again_as_threads_do(text: Path, lopsided: Path, tmp_path: Path) -> None:
    size = ["--layers", "4", "--dim", "16", "--heads", "2", "--seq", "16", "--batch", "8", "--data", str(text)]
    command = ["train", *size, "--steps", "6", "--plan", str(lopsided), "--replan", "cut"]
    alone = CliRunner().invoke(app, [*command, "--out", str(tmp_path / "threads")])
    assert alone.exit_code == 0, alone.output
    done = subprocess.run(
        [*TORCHRUN, "-m", "headrace", *command, "--replan-after", "4", "--out", str(tmp_path / "processes"), "--json"],
        capture_output=True, text=True, timeout=100, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert summary["replanned"]["moved"]
    assert summary["cut"] != [5, 1]
    losses = [
        [json.loads(line)["loss"] for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
        for name in ("threads", "processes")
    ]
    assert losses[0] == losses[1]


def test_mistakes_are_said_by_name(tmp_path: Path) -> None:
    leave(a_run(), tmp_path)
    for arguments, says in (
        (["plan", "--from", str(tmp_path)], "was measured with torch 9.9"),
        (["plan", "--from", str(tmp_path), "--layers", "6"], "--layers goes without --from"),
        (["plan", "--from", str(tmp_path / "nowhere")], "holds no finished run"),
        (["train", "--steps", "5", "--replan-after", "5"], "replan_after=5 must be at least 1 and less than steps=5"),
        (["train", "--steps", "5", "--replan-after", "0"], "replan_after=0"),
        (["train", "--replan", "layers"], "replan='layers' must be one of cut, schedule"),
    ):
        done = CliRunner().invoke(app, arguments)
        assert done.exit_code == 2, done.output
        assert says in done.stderr
