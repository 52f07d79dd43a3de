"""What cannot be planned for a model is refused by the name of the argument, before anything is measured."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import headrace as hr
from headrace.cli.main import app
from headrace.planner.model import described, measured
from headrace.runtime.process import processes

X, Y = torch.randn(4, 6), torch.randn(4, 6)
LOSS = nn.functional.mse_loss


def model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6))


@pytest.mark.parametrize(
    ("batch", "options", "error", "message"),
    [
        ((X, Y), {"ranks": 0}, ValueError, "ranks=0 must be at least 1"),
        ((X, Y), {"ranks": 2.0}, TypeError, "ranks=2.0 must be a whole number"),
        ((X, Y), {"micro_batches": [0]}, ValueError, "micro_batches=0 must be at least 1"),
        ((X, Y), {"micro_batches": [5]}, ValueError, "are more than the batch has rows, which is 4"),
        ((X, Y), {"optimizer_bytes": -1}, ValueError, "optimizer_bytes=-1 must be finite and at least 0"),
        ((X, Y), {"optimizer_bytes": math.nan}, ValueError, "optimizer_bytes=nan must be finite and at least 0"),
        ((X[:0], Y[:0]), {}, ValueError, "x has 0 rows and y 0"),
        ((X, Y[:3]), {}, ValueError, "x has 4 rows and y 3: they must be rows of the same batch"),
        ((X, torch.tensor(1.0)), {}, ValueError, r"y has shape \(\) and no dim 0 to cut along"),
        ((X, None), {}, TypeError, "y is a NoneType without a tensor to cut"),
    ],
)
def test_misuse_is_refused_by_name(batch: Any, options: dict[str, Any], error: Any, message: str) -> None:
    given = {"ranks": 2, "micro_batches": None, **options}
    with pytest.raises(error, match=message):
        measured(model(), batch, LOSS, **given)
    with pytest.raises(error, match=message):
        described(model().to("meta"), batch, LOSS, hardware="cpu", **given)


def test_a_loss_per_row_is_refused_for_hardware_too() -> None:
    with pytest.raises(
        TypeError, match=r"loss_fn must return one number as a tensor, .*, not a tensor of shape \(4, 6\)"
    ):
        described(model().to("meta"), (X, Y), nn.MSELoss(reduction="none"), 1, [1], "cpu")


def test_a_cut_for_no_rank_is_refused() -> None:
    with pytest.raises(ValueError, match="ranks=0 must be at least 1"):
        hr.measured_cut(model(), X, ranks=0)


def test_a_batch_without_data_is_refused() -> None:
    with pytest.raises(ValueError, match="sample is on the meta device"):
        hr.plan(model(), (X.to("meta"), Y), LOSS, ranks=2)


def test_a_layer_that_refuses_few_rows_is_told_of_as_that() -> None:
    own = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6))
    with pytest.raises(ValueError, match="more than 1 value per channel") as refusal:
        hr.plan(own, (X, Y), LOSS, ranks=2)
    assert "with micro-batches of 1 of the 4 rows: micro_batches= says how many there may be" in refusal.value.__notes__


MODULE = """
from torch import nn, randn
def refuses_few_rows():
    return nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6)), nn.MSELoss(), (randn(4, 6), randn(4, 6))
def loss_per_row():
    return nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6)), nn.MSELoss(reduction="none"), (randn(4, 6), randn(4, 6))
no_function = 3
"""


@pytest.mark.parametrize(
    ("name", "code", "says"),
    [
        ("refuses_few_rows", 2, "with micro-batches of 1 of the 4 rows"),
        ("loss_per_row", 4, "TypeError: loss_fn must return one number as a tensor"),
        ("no_function", 2, "is int: it must be a function without arguments"),
    ],
)
@pytest.mark.parametrize("command", [("plan",), ("profile", "--micro-batches", "4")], ids="-".join)
def test_a_users_model_that_cannot_be_trained_ends_with_its_code(
    command: tuple[str, ...], name: str, code: int, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "odd_models.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    done = CliRunner().invoke(app, [*command, "--model", f"odd_models:{name}", "--ranks", "2"])
    assert done.exit_code == code, done.output
    assert done.stderr.startswith(f"headrace {command[0]}: ")
    assert says in done.stderr


@pytest.mark.parametrize("command", ["plan", "profile"])
def test_under_torchrun_only_the_first_process_prints_and_writes(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = ("--layers", "1", "--dim", "8", "--heads", "2", "--seq", "4", "--batch", "4")
    monkeypatch.setattr(processes, "process_rank", lambda: 1)
    done = CliRunner().invoke(app, [command, *small, "-o", str(tmp_path / "it.json")])
    assert (done.exit_code, done.stdout, list(tmp_path.iterdir())) == (0, "", [])
