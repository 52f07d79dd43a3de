"""The main job: it learns, is the same over threads and processes, and leaves its files behind."""

import json
import os
import re
import subprocess
import sys
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from headrace.cli.main import app
from headrace.schedule import CATALOGUE
from headrace.schedule.actions import Action
from headrace.train.config import TrainConfig
from headrace.train.job import Prepared, StepRecord, train
from headrace.train.learning_rate import learning_rate

TINY = ["--layers", "2", "--dim", "16", "--heads", "2", "--seq", "16", "--batch", "8", "--steps", "6"]


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small text that is easy to learn."""
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("".join(f"line {i} of a text about pipelines and bubbles\n" for i in range(400)))
    return path


@pytest.fixture(autouse=True)
def _one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def _headrace(*arguments: str, processes: int = 1) -> subprocess.CompletedProcess[str]:
    launcher = [sys.executable, "-m"]
    if processes > 1:
        launcher += ["torch.distributed.run", "--standalone", "--nproc-per-node", str(processes), "-m"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "120"}
    return subprocess.run(
        [*launcher, "headrace", *arguments], capture_output=True, text=True, env=environment, timeout=100, check=False
    )


def test_it_learns_and_says_what_it_predicted(text: Path) -> None:
    ready: list[Prepared] = []
    records: list[StepRecord] = []
    config = TrainConfig(
        layers=2, dim=16, heads=2, sequence=16, batch=8, steps=40, learning_rate=1e-2, warm_up=4, data=str(text),
        evaluate_every=20, evaluation_batches=2,
    )  # fmt: skip
    result = train(config, ready.append, records.append)
    assert 5.3 < result.held_out_before < 5.8
    assert result.held_out_after < 3.5
    assert [record.step for record in records] == list(range(1, 41))
    assert [record.step for record in records if record.held_out_loss is not None] == [20, 40]
    assert records[-1].held_out_loss == result.held_out_after
    (prepared,) = ready
    assert sum(prepared.cut) == 4
    assert sum(prepared.parameters) == sum(prepared.profile.parameters)
    assert prepared.predicted.peak_in_flight == result.measured.peak_in_flight == (2, 1)
    assert len(result.measured.spans) == len(prepared.predicted.spans) == 2 * 2 * config.micro_batches
    assert result.makespan <= result.step_seconds
    assert 0 < result.bubble_fraction < 1


def test_the_same_seed_is_the_same_run_whatever_the_pipeline(text: Path) -> None:
    losses = []
    for ranks, schedule, recompute in (
        (1, "1f1b", "never"), (3, "gpipe", "always"), (4, "1f1b", "except_last"), (2, "1f1b", "layer"),
        (2, "1f1b", {0, "block1"}), (2, "1f1b", {1: "layer", 0: "always"}),
    ):  # fmt: skip
        records: list[StepRecord] = []
        config = TrainConfig(
            ranks=ranks, schedule=schedule, recompute=recompute, layers=2, dim=16, heads=2, sequence=16, batch=8,
            steps=3, warm_up=1, data=str(text), evaluation_batches=1,
        )  # fmt: skip
        train(config, on_step=records.append)
        losses.append([record.loss for record in records])
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)
    assert losses[0] == losses[2] == losses[3] == losses[4] == losses[5]


@pytest.mark.parametrize("schedule", sorted(set(CATALOGUE) - {"pipedream", "pipedream-2bw"}))
def test_every_synchronous_schedule_trains_alike(text: Path, schedule: str) -> None:
    losses = []
    for name in ("1f1b", schedule):
        records: list[StepRecord] = []
        config = TrainConfig(
            schedule=name, layers=2, dim=16, heads=2, sequence=16, batch=8, steps=3, warm_up=1, data=str(text),
            evaluation_batches=1,
        )  # fmt: skip
        train(config, on_step=records.append)
        losses.append([record.loss for record in records])
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_a_schedule_from_a_file_trains(text: Path, tmp_path: Path) -> None:
    file, out = tmp_path / "mine.csv", tmp_path / "run"
    file.write_text("0F0,0F1,0I0,0W0,0B1\n1F0,1B0,1F1,1I1,1W1\n")
    done = _headrace(
        "train", "--schedule-file", str(file), "--layers", "2", "--dim", "16", "--heads", "2", "--seq", "16", "--batch",
        "4", "--steps", "2", "--data", str(text), "--out", str(out),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "mine, 2 ranks, 2 micro-batches of 2 × 16 bytes" in done.stdout
    assert "0F0,0F1," in json.loads((out / "config.json").read_text())["grid"]


def test_learning_rate_warms_up_and_falls_to_a_twentieth() -> None:
    rates = [learning_rate(step, 100, 10, 2.0) for step in range(100)]
    assert rates[:10] == pytest.approx([0.2 * (step + 1) for step in range(10)])
    assert rates[10] == 2.0
    assert rates[-1] == pytest.approx(0.1)
    assert all(a >= b for a, b in pairwise(rates[10:]))
    assert learning_rate(0, 1, 0, 2.0) == 2.0


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"ranks": 0}, "ranks=0"),
        ({"batch": 3}, "batch=3 rows"),
        ({"recompute": "sometimes"}, "recompute='sometimes' is unknown"),
        ({"recompute": "layer", "plan": "plan.json"}, "recompute='layer' goes without plan="),
        ({"ranks": 9, "layers": 2}, "ranks=9"),
        ({"learning_rate": 0.0}, "learning_rate=0.0"),
        ({"learning_rate": float("inf")}, "learning_rate=inf must be above 0 and finite"),
        ({"seed": 2**64}, "seed=18446744073709551616 must be less than"),
        ({"device": "tpu"}, "device='tpu'"),
        ({"schedule": "pipedream"}, "schedule 'pipedream' is asynchronous"),
        ({"schedule": "zb-v", "ranks": 4, "layers": 4}, "schedule 'zb-v' has 8 stages, but layers=4 blocks"),
    ],
)
def test_impossible_configurations_are_refused_by_name(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        TrainConfig(**wrong)


def test_the_command_prints_tables_and_writes_its_files(text: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    done = CliRunner().invoke(app, ["train", *TINY, "--data", str(text), "--out", str(out)])
    assert done.exit_code == 0, done.output
    for wanted in ("held-out loss", "predicted", "measured", "peak in flight", "one real step", "tokens per second"):
        assert wanted in done.stdout
    config = json.loads((out / "config.json").read_text())
    assert (config["layers"], config["sequence"], config["steps"]) == (2, 16, 6)
    metrics = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in metrics] == [1, 2, 3, 4, 5, 6]
    timeline = json.loads((out / "timeline.json").read_text())
    for which in ("predicted", "measured"):
        actions = [Action.parse(span["action"]) for span in timeline[which]]
        assert len(actions) == len(set(actions)) == 16
    again = CliRunner().invoke(app, ["train", *TINY, "--data", str(text), "--out", str(out)])
    assert again.exit_code == 2
    assert "holds a run already" in again.stderr


def test_a_run_that_diverges_ends_with_its_files_all_the_same(text: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    command = ["train", *TINY, "--lr", "1e30", "--data", str(text), "--out", str(out), "--json"]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["held_out_after"] is None
    strictly = partial(json.loads, parse_constant=pytest.fail)
    metrics = [strictly(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert metrics[0]["loss"] > 0
    assert (metrics[-1]["loss"], metrics[-1]["held_out_loss"]) == (None, None)
    assert "the loss is not finite" in (out / "report.html").read_text(encoding="utf-8")


def test_without_a_folder_each_run_gets_one_of_its_own(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    command = ["train", *TINY, "--steps", "2", "--data", str(text)]
    said = CliRunner().invoke(app, command)
    assert said.exit_code == 0, said.output
    first = said.stdout.splitlines()[-1].removeprefix("report: ")
    as_json = CliRunner().invoke(app, [*command, "--json"])
    second = json.loads(as_json.stdout)["report"]
    assert first != second
    for report in (first, second):
        assert re.fullmatch(r"runs/\d{4}-\d\d-\d\d-\d+/report\.html", report)
        assert "Where the time went" in Path(report).read_text(encoding="utf-8")


def test_mistakes_end_with_code_2_and_one_line(text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for arguments, says in (
        (["--ranks", "9"], "ranks=9"),
        (["--schedule", "2f2b"], "schedule='2f2b' is unknown"),
        (["--data", str(text / "nowhere")], "nowhere"),
        (["--batch", "2"], "batch=2"),
    ):
        done = CliRunner().invoke(app, ["train", *TINY, "--data", str(text), *arguments])
        assert done.exit_code == 2, done.output
        assert says in done.stderr
        assert "Traceback" not in done.stderr
        assert not list(tmp_path.glob("runs/*"))


def test_under_torchrun_it_is_the_same_job(text: Path, tmp_path: Path) -> None:
    runs = {}
    for name, processes in (("threads", 1), ("processes", 2)):
        out = tmp_path / name
        done = _headrace("train", *TINY, "--data", str(text), "--out", str(out), "--json", processes=processes)
        assert done.returncode == 0, done.stderr
        runs[name] = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
        summary = json.loads(done.stdout)
        assert summary["peak_in_flight"]["measured"] == [2, 1]
    for threads, processes in zip(runs["threads"], runs["processes"], strict=True):
        assert threads["loss"] == processes["loss"]
        assert threads["gradient_norm"] == pytest.approx(processes["gradient_norm"], rel=1e-9)
