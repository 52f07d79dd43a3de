"""Batches of every size and shape: cut rightly, weighted rightly, or refused by name."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import headrace as hr
from runtime.cases import DIM, On, make
from runtime.pipes import Race, Watch, four_linears, pipe_of
from runtime.reference import differing, gradients, same

mse = nn.functional.mse_loss


@pytest.mark.parametrize(
    ("rows", "micro_batches", "sizes"), [(7, 4, [2, 2, 2, 1]), (5, 4, [2, 1, 1, 1]), (4, 4, [1] * 4)]
)
def test_uneven_batches(rows: int, micro_batches: int, sizes: list[int]) -> None:
    seen: list[int] = []
    pipe = hr.Pipeline(
        nn.Sequential(Watch(lambda x: seen.append(len(x))), nn.Linear(DIM, DIM)),
        mse,
        ranks=2,
        micro_batches=micro_batches,
    )
    pipe.step(torch.randn(rows, DIM), torch.randn(rows, DIM))
    assert seen == sizes
    race = Race("plain", 2, micro_batches)
    race.step(torch.randn(rows, DIM), torch.randn(rows, DIM))


def test_fewer_rows_than_micro_batches_are_refused_and_the_next_step_works() -> None:
    race = Race("plain", 2, 4)
    with pytest.raises(ValueError, match="has 3 rows, too few for micro_batches=4: give it at least one row"):
        race.pipe.step(torch.randn(3, DIM), torch.randn(3, DIM))
    race.step(torch.randn(4, DIM), torch.randn(4, DIM))


def test_shapes_change_between_steps_and_evaluations() -> None:
    race = Race("token_ids", 3, 4, recompute="except_last")
    for step, (rows, length) in enumerate([(8, 3), (8, 9), (5, 2), (8, 3)]):
        generator = torch.Generator().manual_seed(step)
        x, y = (torch.randint(0, 10, (rows, length), generator=generator) for _ in range(2))
        race.step(x, y)
        assert race.pipe.predict(x[:2]).shape == (2, length, 11)
        race.pipe.evaluate(x[:2], y[:2])
    race.compare()


@pytest.mark.parametrize(
    ("x", "y", "complaint"),
    [
        ((torch.zeros(7, 2), torch.zeros(6, 2)), torch.zeros(7), r"x\[1\] has 6 rows, but x\[0\] has 7"),
        ({"a": torch.zeros(7), "b": [torch.zeros(3)]}, torch.zeros(7), r"x\['b'\]\[0\] has 3 rows, but x\['a'\] has 7"),
        (torch.zeros(7, 2), (torch.zeros(7), torch.zeros(8)), r"y\[1\] has 8 rows, but y\[0\] has 7"),
        (torch.zeros(7, 2), torch.zeros(6), "x has 7 rows, but y has 6"),
        (torch.zeros(()), torch.zeros(1), r"x has shape \(\) and no dim 0"),
        (None, torch.zeros(7), "x is missing"),
        (torch.zeros(7, 2), None, "y is missing"),
        (torch.zeros(7, 2, requires_grad=True), torch.zeros(7), "x requires grad, .* pass x.detach"),
    ],
)
def test_batches_that_do_not_fit_are_refused_by_name(x: Any, y: Any, complaint: str) -> None:
    pipe = hr.Pipeline(four_linears(), mse, ranks=2, micro_batches=2)
    with pytest.raises(ValueError, match=complaint):
        pipe.step(x, y)


@pytest.mark.parametrize("x", [3, [], {"a": None}, "text"])
def test_a_batch_without_a_tensor_is_refused(x: Any) -> None:
    pipe = hr.Pipeline(four_linears(), mse, ranks=2, micro_batches=2)
    with pytest.raises(TypeError, match=r"x is a .* without a tensor to cut"):
        pipe.step(x, torch.zeros(2))


# -- weights ---------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("double")
def test_a_mean_over_valid_tokens_is_that_of_the_whole_batch() -> None:
    case, whole = make("token_weights"), make("token_weights")
    assert [int((y != -100).sum()) for y in case.y.tensor_split(4)] == [4, 0, 4, 4]
    with pipe_of(case, 3, 4) as pipe:
        loss = pipe.step(case.x, case.y)
        evaluated = pipe.evaluate(case.x, case.y)["loss"]
    expected = whole.loss_fn(whole.model(whole.x), whole.y)
    expected.backward()
    torch.testing.assert_close(loss, expected.detach(), rtol=1e-12, atol=0)
    torch.testing.assert_close(evaluated, expected.detach(), rtol=1e-12, atol=0)
    for ours, theirs in zip(case.model.parameters(), whole.model.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-12, atol=1e-15)


def test_a_batch_in_which_nothing_counts_is_refused() -> None:
    case = make("token_weights")
    with pytest.raises(ValueError, match="loss_weight is 0 for every micro-batch: nothing in this batch counts"):
        pipe_of(case, 2, 4).step(case.x, torch.full_like(case.y, -100))


def test_a_frozen_model_is_refused_to_train_even_if_a_micro_batch_counts_nothing() -> None:
    case = make("token_weights")
    case.model.requires_grad_(False)
    pipe = pipe_of(case, 2, 4)
    with pytest.raises(hr.PipelineFailure, match="nothing would be trained"):
        pipe.step(case.x, case.y)
    assert torch.isfinite(pipe.evaluate(case.x, case.y)["loss"])


@pytest.mark.parametrize(
    ("loss_weight", "error", "complaint"),
    [
        (lambda _: "many", TypeError, "loss_weight returned 'many': it must return how much"),
        (lambda _: torch.ones(2), TypeError, "loss_weight returned tensor"),
        (lambda _: -1, ValueError, "loss_weight returned -1: .* a finite number of 0 or more"),
        (lambda _: float("nan"), ValueError, "loss_weight returned nan"),
    ],
)
def test_weights_that_are_none(loss_weight: Callable[[Any], Any], error: type[Exception], complaint: str) -> None:
    pipe = hr.Pipeline(four_linears(), mse, ranks=2, micro_batches=2, loss_weight=loss_weight)
    with pytest.raises(error, match=complaint):
        pipe.step(torch.zeros(2, DIM), torch.zeros(2, DIM))


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize("name", ["dropout", "token_weights", "in_place_first", "unused_output"])
def test_two_steps_before_an_optimizer_step_add_up(name: str, schedule: str) -> None:
    race = Race(name, 2, 4, schedule=schedule)
    race.step(*race.case.batch(0))
    once = gradients(race.case.model)
    race.step(*race.case.batch(1))
    assert differing(once, gradients(race.case.model))


def test_the_batch_is_left_alone() -> None:
    """Though the first layer of every stage writes in place."""
    case = make("in_place_first")
    pipe = pipe_of(case, 4, 4)
    x, y = case.batch(0)
    for _ in range(2):
        pipe.step(x, y)
        pipe.predict(x)
        with torch.inference_mode():
            pipe.evaluate(x, y)
    assert same(x, case.x)
    assert same(y, case.y)


def test_a_stage_may_begin_to_write_in_place_later_on() -> None:
    """Whether a stage writes to its input is learned from its first run; that it does so later is told, then known."""
    layer = nn.ReLU()
    model = nn.Sequential(nn.Linear(DIM, DIM), layer, nn.Linear(DIM, DIM))
    pipe = hr.Pipeline(model, mse, ranks=2, micro_batches=2, cut=(1, 2))
    x, y = torch.randn(4, DIM), torch.randn(4, DIM)
    expected = pipe.step(x, y)
    layer.inplace = True
    with pytest.raises(hr.PipelineFailure, match=r"stage 1 wrote to its input in place, .*repeat the step"):
        pipe.step(x, y)
    assert same(pipe.step(x, y), expected)


# -- how batches are cut ---------------------------------------------------------------------------------------------


def test_other_dims_and_replicated_tensors() -> None:
    """Sequence first, one mask for all: as if the rows came first."""
    seen: list[tuple[torch.Size, ...]] = []

    def see(value: tuple[Tensor, Tensor]) -> None:
        seen.append(tuple(t.shape for t in value))

    model = nn.Sequential(Watch(see), On(0, nn.Linear(DIM, DIM)), Masked())
    x, mask, y = torch.randn(3, 5, DIM), torch.rand(3, 1, DIM), torch.randn(3, 5, DIM)
    pipe = hr.Pipeline(
        model, mse, ranks=2, micro_batches=2, input_split=(1, "replicate"), target_split=1, loss_weight="rows"
    )
    loss = pipe.step((x, mask), y)
    assert seen == [((3, 3, DIM), (3, 1, DIM)), ((3, 2, DIM), (3, 1, DIM))]
    torch.testing.assert_close(loss, mse(model((x, mask)), y).detach())


def test_a_spec_may_be_the_beginning_of_a_nest() -> None:
    seen: list[Any] = []
    model = nn.Sequential(Watch(seen.append), Picked())
    pipe = hr.Pipeline(model, mse, ranks=2, micro_batches=2, input_split={"all": "replicate", "rows": 0})
    whole = torch.ones(5)
    pipe.step({"all": [whole, whole], "rows": (torch.zeros(2, DIM), torch.zeros(2, 1))}, torch.zeros(2, DIM))
    assert [value["all"][1].shape for value in seen] == [(5,), (5,)]
    assert [value["rows"][0].shape for value in seen] == [(1, DIM), (1, DIM)]


def test_a_spec_that_does_not_fit_is_refused() -> None:
    pipe = hr.Pipeline(four_linears(), mse, ranks=2, micro_batches=2, input_split=(0, 0))
    with pytest.raises(TypeError, match=r"the split spec \(0, 0\) is no prefix of x"):
        pipe.step(torch.zeros(2, DIM), torch.zeros(2, DIM))


class Masked(nn.Module):
    def forward(self, value: tuple[Tensor, Tensor]) -> Tensor:
        return value[0] * value[1]


class Picked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(DIM, DIM)

    def forward(self, value: dict[str, Any]) -> Tensor:
        result: Tensor = self.layer(value["rows"][0])
        return result
