"""What comes out: joined predictions, and failures that say in their first line what happened."""

import pytest
import torch
from torch import Tensor, nn

import headrace as hr


class Recurrent(nn.Module):
    """An LSTM whose state has its rows in dim 1."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(3, 4, batch_first=True)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, float]:
        output, (hidden, _) = self.lstm(x)
        return output, hidden, 0.5


def _loss(output: tuple[Tensor, Tensor, float], target: Tensor) -> Tensor:
    return nn.functional.mse_loss(output[0].mean(1), target)


def test_outputs_are_joined_along_the_dims_that_output_split_says() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 3), Recurrent())
    x = torch.randn(5, 6, 3)
    with torch.no_grad():
        expected = model(x)
    with hr.Pipeline(model, _loss, ranks=2, micro_batches=2, output_split=(0, 1, 0)) as pipe:
        output, hidden, number = pipe.predict(x)
    torch.testing.assert_close(output, expected[0])
    torch.testing.assert_close(hidden, expected[1])
    assert hidden.shape == (1, 5, 4)
    assert number == 0.5


def test_replicate_takes_the_first_and_mistakes_are_named() -> None:
    model = nn.Sequential(nn.Linear(3, 3), Recurrent())
    x = torch.randn(4, 6, 3)
    with hr.Pipeline(model, _loss, ranks=2, micro_batches=2, output_split=(0, "replicate", 0)) as pipe:
        assert pipe.predict(x)[1].shape == (1, 2, 4)
    with (
        hr.Pipeline(model, _loss, ranks=2, micro_batches=2, output_split=(0, 3, 0)) as pipe,
        pytest.raises(ValueError, match="no dim 3 to join"),
    ):
        pipe.predict(x)


class Faulty(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        raise RuntimeError(f"no {x.dim()}-dim input today")


def test_the_first_line_of_a_failure_says_where_what_and_which_layer() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Sequential(nn.ReLU(), Faulty()))
    with (
        hr.Pipeline(model, nn.MSELoss(), ranks=3, micro_batches=2) as pipe,
        pytest.raises(hr.PipelineFailure) as caught,
    ):
        pipe.step(torch.ones(4, 3), torch.ones(4, 3))
    first, second = str(caught.value).splitlines()[:2]
    assert first == (
        "rank 2 failed at 2F0 (forward of stage 2, micro-batch 0): "
        "RuntimeError: no 2-dim input today – raised by layer 1.1 (Faulty)"
    )
    assert second.startswith("Traceback")
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_links_are_checked_in_one_process_too() -> None:
    with pytest.raises(ValueError, match="links='pigeons'"):
        hr.Pipeline(nn.Sequential(nn.Linear(2, 2)), nn.MSELoss(), ranks=1, micro_batches=1, links="pigeons")  # type: ignore[arg-type]
