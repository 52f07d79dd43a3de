"""`headrace plan` and `headrace profile`."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from headrace.analytic import hardware_names
from headrace.cli.exits import Exit
from headrace.cli.main import app
from headrace.planner import model as model_planner
from headrace.planner import read_plan
from headrace.planner.exchange import from_megatron
from headrace.schedule import check, parse

TINY = ["--layers", "2", "--dim", "16", "--heads", "2", "--seq", "16", "--batch", "8"]
ELSEWHERE = [*TINY, "--hardware", "v100-16g", "--schedules", "1f1b,zb-h1"]


def run(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, list(arguments))
    return result.exit_code, result.stdout, result.stderr


def test_a_plan_measured_here_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # where runs go
    file, text = tmp_path / "plan.json", tmp_path / "text.txt"
    text.write_text("a text about bubbles\n" * 200)
    code, out, err = run("plan", *TINY, "--schedules", "1f1b,zb-v", "--micro-batches", "4", "--out", str(file))
    assert (code, err) == (Exit.DONE, f"\nplan written to {file}\n")
    assert "2 ranks (cpu), batch 8: " in out
    assert "above the lower bound of" in out
    plan = read_plan(file)
    assert (plan.ranks, plan.micro_batches, plan.layers[0]) == (2, 4, "embedding")
    job = ["--data", str(text), "--steps", "2", "--plan", str(file)]
    code, out, err = run("train", *TINY, *job)
    assert code == Exit.DONE, err
    assert f"{plan.schedule.name}, 2 ranks, 4 micro-batches" in out
    code, _, err = run("train", *TINY, "--layers", "3", *job)
    assert (code, "the plan is for another model" in err, "sizes must be the same" in err) == (Exit.USAGE, True, True)
    code, _, err = run("train", *TINY, *job, "--micro-batches", "2")
    assert (code, "--micro-batches goes without --plan" in err) == (Exit.USAGE, True)
    code, _, err = run("train", "--plan", "nowhere.json")
    assert (code, err) == (Exit.USAGE, "headrace train: --plan nowhere.json: No such file or directory\n")
    for option, value in (("--schedule", "1f1b"), ("--recompute", "never")):  # even their defaults
        code, _, err = run("train", *TINY, *job, option, value)
        assert (code, f"{option} goes without --plan" in err) == (Exit.USAGE, True)
    code, _, err = run("train", *TINY, *job, "--batch", "12")
    assert (code, "the plan is for batches of 8 rows, not of 12" in err) == (Exit.USAGE, True)


def test_a_plan_that_recomputes_layers_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    file, text = tmp_path / "plan.json", tmp_path / "text.txt"
    text.write_text("a text about bubbles\n" * 200)
    size = ["--layers", "6", *TINY[2:]]
    planned = ["plan", *size, "--hardware", "cpu", "--schedules", "1f1b", "--micro-batches", "4", "--out", str(file)]
    assert run(*planned)[0] == Exit.DONE
    free = read_plan(file)
    memory = f"{0.69 * max(free.predicted.peak_bytes):.0f}"
    code, out, err = run(*planned, "--memory", memory)
    assert code == Exit.DONE, err
    plan = read_plan(file)
    assert (plan.recomputes, plan.recomputed_layers) == ((0,), ("block3", "block4", "block5"))
    cells = [line.split("  ")[-1].strip() for line in out.splitlines() if line[:2] in ("0:", "1:")]
    assert cells == ["yes", "block3 … block5"]
    job = ["train", *size, "--data", str(text), "--steps", "2"]
    losses = []
    for more in (["--plan", str(file), "--out", "recomputes"], ["--micro-batches", "4", "--out", "keeps"]):
        code, out, err = run(*job, *more)
        assert code == Exit.DONE, err
        assert ("recomputed one by one: " in out) == ("--plan" in more)
        metrics = tmp_path / more[-1] / "metrics.jsonl"
        losses.append([json.loads(line)["loss"] for line in metrics.read_text().splitlines()])
    assert losses[0] == losses[1]
    assert read_plan(tmp_path / "recomputes" / "plan.json") == plan
    profile = json.loads((tmp_path / "recomputes" / "profile.json").read_text())
    assert tuple(profile["recomputed_layers"]) == plan.recomputed_layers
    code, _, err = run(*job, "--plan", str(file), "--recompute", "layer")
    assert (code, "--recompute goes without --plan" in err) == (Exit.USAGE, True)
    code, _, err = run(*planned, "--memory", memory, "--export", "torch")
    assert (code, "which PyTorch's rows cannot say: plan with --recompute never" in err.replace("\n", " ")) == (
        Exit.USAGE,
        True,
    )
    data = json.loads(file.read_text())
    data["recomputes"]["layers"][0] = "blok0"
    file.write_text(json.dumps(data))
    code, _, err = run(*job, "--plan", str(file))
    assert (code, "has the layer 'blok0', which is none of model: did you mean 'block" in err) == (Exit.USAGE, True)


def test_a_job_names_stages_and_layers_that_recompute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = tmp_path / "text.txt"
    text.write_text("a text about bubbles\n" * 200)
    job = ["train", *TINY, "--data", str(text), "--steps", "1"]
    code, out, err = run(*job, "--recompute", "0,block1,head", "--out", "mixed")
    assert code == Exit.DONE, err
    assert "4 forwards recomputed, recomputed one by one: block1, head" in out
    assert json.loads((tmp_path / "mixed" / "config.json").read_text())["recompute"] == ["block1", "head"]
    code, out, err = run(*job, "--recompute", "layer")
    assert (code, "recomputed one by one: embedding … head" in out) == (Exit.DONE, True), err
    code, _, err = run(*job, "--recompute", "blok1")
    assert (code, "'blok1', which is no layer: did you mean 'block" in err) == (Exit.USAGE, True)
    code, _, err = run("simulate", "--recompute", "layer")
    assert (code, "recompute='layer' is unknown" in err) == (Exit.USAGE, True)


def test_a_plan_for_hardware_that_is_not_here() -> None:
    code, out, _ = run("plan", *ELSEWHERE, "--json")
    assert code == Exit.DONE
    plan = json.loads(out)
    assert plan["made_with"]["devices"] == ["NVIDIA V100 SXM2 16 GB, NVLink 2"] * 2
    assert plan["schedule"]["name"] in ("1f1b", "zb-h1")
    assert plan["alternatives"]


def test_help_names_the_hardware(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "1000")
    _, out, _ = run("plan", "--help")
    assert all(name in out for name in hardware_names())


def test_what_does_not_fit_ends_with_three_and_says_what_would() -> None:
    code, out, err = run("plan", *ELSEWHERE, "--memory", "10kB")
    assert (code, out) == (Exit.NO_PLAN, "")
    assert err.startswith("headrace plan: nothing fits: no cut of 4 layers into 2 stages fits into memory")
    assert "memory=" in err


def test_plans_in_the_notations_of_others() -> None:
    def exported(notation: str) -> str:
        code, out, _ = run("plan", *ELSEWHERE, "--export", notation)
        assert code == Exit.DONE
        return out

    stages = json.loads(exported("torchtitan"))
    assert [name for stage in stages for name in stage] == ["embedding", "block0", "block1", "head"]
    assert [len(stage) for stage in from_megatron(exported("megatron").strip())] == [len(stage) for stage in stages]
    assert check(parse(exported("torch"))).schedule.ranks == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--export", "deepspeed"], "--export deepspeed is unknown: choose one of megatron, torchtitan, torch"),
        (["--memory", "lots"], "--memory lots: write a size such as 16GiB"),
        (["--model", "gpt9"], "--model gpt9 is unknown"),
        (["--model", "nowhere:model"], "--model nowhere:model cannot be imported"),
        (["--model", "transformer-6b"], "say which with --hardware"),
        (["--micro-batches", "x"], "--micro-batches x: write whole numbers"),
        (["--schedules", "pipedream"], "schedules names 'pipedream', which trains with delayed weights"),
        (["--hardware", "abacus"], "abacus"),
    ],
)
def test_misuse_is_refused_by_name(arguments: list[str], message: str) -> None:
    code, _, err = run("plan", *TINY, *arguments)
    assert code == Exit.USAGE
    assert message in err
    assert "Traceback" not in err


def test_a_model_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_model_for_plan.py").write_text(
        "import torch\n"
        "def build():\n"
        "    model = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(4)))\n"
        "    return model, torch.nn.functional.mse_loss, (torch.zeros(8, 8), torch.zeros(8, 8))\n"
        "def wrong():\n"
        "    return 3\n"
        "def broken():\n"
        "    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(4, 4))\n"
        "    return model, torch.nn.functional.mse_loss, (torch.zeros(8, 8), torch.zeros(8, 4))\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    chosen = ["--hardware", "cpu", "--schedules", "1f1b", "--json"]
    code, out, _ = run("plan", "--model", "my_model_for_plan:build", *chosen)
    assert code == Exit.DONE
    assert [name for stage in json.loads(out)["cut"] for name in stage] == ["0", "1", "2", "3"]
    code, _, err = run("plan", "--model", "my_model_for_plan:wrong", *chosen)
    assert (code, "must return a model, a loss function and a pair (x, y)" in err) == (Exit.USAGE, True)
    for command, more in (("plan", []), ("profile", []), ("plan", ["--hardware", "cpu"])):
        code, _, err = run(command, "--model", "my_model_for_plan:broken", *more)
        words = "RuntimeError: " in err, "layer '1' (Linear)" in err, "Traceback" in err
        assert (code, *words) == (Exit.WORKER_FAILED, True, True, True), err
    for command, option in (("plan", "--batch"), ("plan", "--dim"), ("profile", "--seq")):  # which would be ignored
        code, _, err = run(command, "--model", "my_model_for_plan:build", option, "8")
        assert (code, f"{option} is of gpt: my_model_for_plan:build brings its own" in err) == (Exit.USAGE, True)


def test_a_profile_says_which_ranks_are_slower(monkeypatch: pytest.MonkeyPatch) -> None:
    real = model_planner.measured
    monkeypatch.setattr(model_planner, "measured", lambda *a: replace(real(*a), slowness=(1, 2.5)))
    code, out, _ = run("profile", *TINY)
    assert code == Exit.DONE
    assert "seconds are those of rank 0: 1.00 × as long on rank 0, 2.50 × as long on rank 1" in out


def test_a_profile_is_printed_and_written(tmp_path: Path) -> None:
    file = tmp_path / "costs.json"
    code, out, _ = run("profile", *TINY, "--out", str(file))
    assert code == Exit.DONE
    assert "kept for W" in out
    data = json.loads(file.read_text())
    assert data["layers"]["names"] == ["embedding", "block0", "block1", "head"]
    assert data["latency"] > 0
    assert data["slowness"] == [1, 1]
    assert all(seconds > 0 for seconds in data["layers"]["spread"])
