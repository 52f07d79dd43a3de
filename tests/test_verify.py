"""`verify` finds every bit that differs, and nothing else."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from typer.testing import CliRunner

import headrace as hr
from headrace.cli.main import app
from headrace.runtime import pipeline
from headrace.train.verify import Difference, verify


def _model() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(
        nn.Linear(6, 12), nn.ReLU(inplace=True), nn.BatchNorm1d(12), nn.Dropout(0.2), nn.Linear(12, 9), nn.Linear(9, 4)
    )


def _batch() -> tuple[Tensor, Tensor]:
    torch.manual_seed(4)
    return torch.randn(11, 6), torch.randint(0, 4, (11,))


@pytest.mark.filterwarnings("ignore::headrace.runtime.model.warn.BatchStatisticsWarning")
def test_every_combination_of_an_awkward_model_is_bitwise_equal() -> None:
    model = _model()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    found = verify(
        model, nn.CrossEntropyLoss(), _batch(), ranks=(1, 2, 3), micro_batches=(1, 4), recompute=("never", "always")
    )
    assert found
    assert len(found.comparisons) == 3 * 2 * 2 * 2
    assert all(comparison.bitwise_equal for comparison in found.comparisons)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


def test_the_whole_batch_is_equal_to_rounding() -> None:
    model = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 4)).double()
    x, y = _batch()
    found = hr.verify(model, nn.CrossEntropyLoss(), (x.double(), y), ranks=(2,), micro_batches=(4,))
    assert found
    assert all(comparison.whole_batch.largest < 1e-12 for comparison in found.comparisons)


def test_a_loss_that_counts_something_else_than_rows_is_said_unless_it_is_weighed() -> None:
    model = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 4))
    x, y = _batch()
    y[[0, 1, 4]] = -100  # cross entropy is a mean over the others
    kept = {"ranks": (2,), "schedules": ("1f1b",), "recompute": ("never",)}
    unweighed = hr.verify(model, nn.CrossEntropyLoss(), (x, y), **kept)
    assert unweighed, "the pipeline does what it was told, and so do the micro-batches of the unsplit model"
    assert "loss_weight=" in str(unweighed)
    weighed = hr.verify(model, nn.CrossEntropyLoss(), (x, y), **kept, loss_weight=lambda target: (target >= 0).sum())
    assert "loss_weight=" not in str(weighed)


def test_a_wrong_gradient_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    step = pipeline.Pipeline.step

    def wrong(self: Any, x: Any, y: Any) -> Tensor:
        loss = step(self, x, y)
        dict(self.named_parameters())["2.bias"].grad += 1e-3
        return loss

    monkeypatch.setattr(pipeline.Pipeline, "step", wrong)
    model = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 4))
    found = verify(model, nn.CrossEntropyLoss(), _batch(), ranks=(2,), schedules=("1f1b",), recompute=("never",))
    assert not found
    (comparison,) = found.comparisons
    assert comparison.gradients.first == "step 1: 2.bias"
    assert comparison.gradients.largest > 0
    assert not comparison.parameters.bitwise_equal
    assert "2.bias" in str(found)


def test_a_missing_gradient_is_infinitely_far() -> None:
    assert Difference(None, 0.0).bitwise_equal
    assert str(Difference("a", 0.5)) == "differ by 5.0e-01: a"


SMALL = ["--layers", "1", "--dim", "8", "--seq", "6", "--batch", "5", "--ranks", "1,2", "--micro-batches", "3"]


def test_a_gradient_that_a_pipeline_does_not_give_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    step = pipeline.Pipeline.step

    def forgetful(self: Any, x: Any, y: Any) -> Tensor:
        loss = step(self, x, y)
        dict(self.named_parameters())["4.bias"].grad = None
        return loss

    monkeypatch.setattr(pipeline.Pipeline, "step", forgetful)
    model = nn.Sequential(*(nn.Linear(6, 6) for _ in range(5)))
    x, y = torch.randn(4, 6), torch.randn(4, 6)
    found = verify(model, nn.MSELoss(), (x, y), ranks=(2,), schedules=("1f1b",), recompute=("never",), steps=1)
    assert not found
    assert str(found.comparisons[0].gradients) == "differ by inf: step 1: 4.bias"


def test_what_is_not_a_number_in_either_is_no_difference() -> None:
    def loss(output: Tensor, target: Tensor) -> Tensor:
        return nn.functional.mse_loss(output, target) * float("nan")

    model, batch = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6)), (torch.randn(4, 6), torch.randn(4, 6))
    assert verify(model, loss, batch, ranks=(2,), schedules=("1f1b",), recompute=("never",))


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        ({"steps": 0}, ValueError, "steps=0 must be at least 1"),
        ({"ranks": ()}, ValueError, "ranks is empty, so nothing would be compared"),
        ({"schedules": "1f1b"}, TypeError, r"schedules='1f1b' must be a sequence, such as \['1f1b'\]"),
        ({"ranks": 2}, TypeError, r"ranks=2 must be a sequence, such as \[2\]"),
    ],
)
def test_what_compares_nothing_is_refused(wrong: dict[str, Any], error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        verify(_model(), nn.CrossEntropyLoss(), _batch(), **wrong)


def test_the_command_prints_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    done = CliRunner().invoke(app, ["verify", *SMALL])
    assert done.exit_code == 0, done.output
    assert "bitwise equal" in done.stdout
    step = pipeline.Pipeline.step

    def wrong(self: Any, x: Any, y: Any) -> Tensor:
        return step(self, x, y) * 1.5

    monkeypatch.setattr(pipeline.Pipeline, "step", wrong)
    done = CliRunner().invoke(app, ["verify", *SMALL])
    assert done.exit_code == 1
    assert "differ by" in done.stdout


def test_mistakes_end_with_code_2() -> None:
    done = CliRunner().invoke(app, ["verify", "--ranks", "two"])
    assert done.exit_code == 2
    assert "--ranks two" in done.stderr
    done = CliRunner().invoke(app, ["verify", *SMALL, "--ranks", "7"])
    assert done.exit_code == 2


@pytest.mark.parametrize("name", ["zb-h1", "zb-v", "dualpipe", "hanayo"])
def test_every_kind_of_schedule_is_bitwise_the_unsplit_model(name: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(6, 6) for _ in range(4)))
    batch = torch.randn(8, 6), torch.randn(8, 6)
    found = hr.verify(
        model, nn.functional.mse_loss, batch, ranks=[2], micro_batches=[4], schedules=[name], recompute=["never"]
    )
    assert found, str(found)


@pytest.mark.parametrize(
    ("name", "why"), [("pipedream", "it learns with delayed weights"), ("seq1f1b", "it cuts sequences into segments")]
)
def test_other_mathematics_are_not_compared_bit_by_bit(name: str, why: str) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    with pytest.raises(ValueError, match=f"{name}.* cannot be compared bit by bit with the unsplit model: {why}"):
        hr.verify(model, nn.functional.mse_loss, (torch.ones(8, 2), torch.ones(8, 2)), ranks=[2], schedules=[name])
