"""Layers in other precisions, and layers that are left whole as splitting them could change something."""

import warnings
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.utils.checkpoint import checkpoint

import headrace as hr
from headrace.runtime.failure import PipelineFailure
from headrace.runtime.model.warn import WholeBackwardWarning
from runtime.cases import DIM, Do
from runtime.pipes import pipe_of
from runtime.splits import ONE_RANK, WEIGHT, Seen, assert_parity, left, of_function, one_layer, race, row, seen

__all__ = ["seen"]

# -- precision -------------------------------------------------------------------------------------------------------


def bfloat16() -> AbstractContextManager[Any]:
    return torch.autocast("cpu", torch.bfloat16)


def _with_autocast(layer: nn.Linear, x: Tensor) -> Tensor:
    with bfloat16():
        return layer(torch.tanh(layer(x)))


def test_autocast_inside_a_layer(seen: Seen) -> None:
    race(of_function(_with_autocast))
    assert left(seen) == [(DIM,), WEIGHT]


def test_autocast_around_the_step(seen: Seen) -> None:
    race(of_function(lambda m, x: m(torch.tanh(m(x)))), lambda: nn.Linear(DIM, DIM), context=bfloat16)
    assert left(seen) == [(DIM,), (DIM,), WEIGHT, WEIGHT]


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_other_precisions(dtype: torch.dtype, seen: Seen) -> None:
    race(lambda: Do(lambda x: x.to(dtype)), of_function(lambda m, x: m.to(dtype)(torch.tanh(m(x)))))
    assert left(seen) == [(DIM,), WEIGHT]


# -- what is left whole ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoints_are_not_split(reentrant: bool, seen: Seen) -> None:
    runs: list[int] = []

    def inner(layer: nn.Linear, x: Tensor) -> Any:
        def run(x: Tensor) -> Any:
            runs.append(1)
            return torch.tanh(layer(x))

        return checkpoint(run, x, use_reentrant=reentrant)

    order = "0F0 0F1 0F2 0I0 0I1 0I2 0W0 0W1 0W2" if reentrant else ONE_RANK  # it accumulates in I
    race(of_function(inner), lambda: nn.Linear(DIM, DIM), order=order)
    assert len(runs) == 2 * 2 * 3 * 3  # forward and once again; ours and theirs; micro-batches; steps
    assert left(seen) == ([] if reentrant else [(DIM,), WEIGHT])


def test_tensors_kept_elsewhere_are_not_split(seen: Seen) -> None:
    def kept_elsewhere(layer: nn.Linear, x: Tensor) -> Any:
        with torch.autograd.graph.save_on_cpu():
            return layer(x)

    race(of_function(kept_elsewhere), lambda: nn.Linear(DIM, DIM))
    assert left(seen) == [(DIM,), WEIGHT]


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
def test_a_compiled_layer_is_not_split_and_that_is_said_once(seen: Seen) -> None:
    def compiled() -> nn.Module:
        layer = nn.Linear(DIM, DIM)
        layer.compile(backend="aot_eager")
        return layer

    cases = one_layer(lambda: nn.Linear(DIM, DIM), compiled, lambda: nn.Linear(DIM, DIM), x=torch.randn(7, DIM))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert_parity(cases, row(ONE_RANK))
    said = [str(w.message) for w in caught if w.category is WholeBackwardWarning]
    assert len(said) == 1
    assert said[0].startswith("layer 1 is compiled, so its backward cannot be split")
    assert seen.leaves[0] == [(DIM,), (DIM,), WEIGHT, WEIGHT]


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
def test_a_compiled_function_within_a_layer(seen: Seen) -> None:
    activation = torch.compile(lambda x: torch.tanh(x) * 2, backend="aot_eager")
    product = torch.compile(lambda x, w: torch.tanh(F.linear(x, w)), backend="aot_eager")
    race(of_function(lambda m, x: activation(m(x))), of_function(lambda m, x: product(x, m.weight)))
    assert left(seen) == [(DIM,), WEIGHT]


def test_transforms_are_not_split(seen: Seen) -> None:
    def each(layer: nn.Linear, x: Tensor) -> Any:
        return torch.func.vmap(lambda row: F.linear(row, layer.weight, layer.bias))(x)

    def called(layer: nn.Linear, x: Tensor) -> Any:
        return torch.func.functional_call(layer, {"weight": layer.weight * 2}, (x,))

    race(of_function(each), of_function(called))
    assert left(seen) == [(DIM,), WEIGHT]


def test_forward_mode_is_not_split(seen: Seen) -> None:
    def with_tangent(layer: nn.Linear, x: Tensor) -> Any:
        with forward_ad.dual_level():
            return forward_ad.unpack_dual(layer(forward_ad.make_dual(x, torch.ones_like(x)))).tangent + x

    race(of_function(with_tangent), lambda: nn.Linear(DIM, DIM))
    assert left(seen) == [(DIM,), WEIGHT]


def test_differentiating_in_a_forward_is_refused_with_the_way_out() -> None:
    def force(layer: nn.Linear, x: Tensor) -> Any:
        x = x.detach().requires_grad_()
        return torch.autograd.grad(layer(torch.sin(x)).sum(), x, create_graph=True)[0]

    case = one_layer(of_function(force), x=torch.randn(4, DIM))()
    with (
        pipe_of(case, 1, 2, schedule=row("0F0 0F1 0I0 0I1 0W0 0W1")) as pipe,
        pytest.raises(
            PipelineFailure, match=r"0F0 .*differentiates in its forward.*use a schedule with whole backwards"
        ),
    ):
        pipe.step(case.x, case.y)


def test_an_in_place_layer_after_a_product(seen: Seen) -> None:
    race(of_function(lambda m, x: F.relu_(m(F.relu_(m(x).add_(1))).mul_(2))))
    assert left(seen) == [(DIM,), WEIGHT]


def test_writing_to_what_a_product_needs_is_noticed() -> None:
    case = one_layer(of_function(lambda m, x: m(h := m(x)) + h.mul_(2)), x=torch.randn(4, DIM))()
    with (
        pipe_of(case, 1, 2, schedule=row("0F0 0F1 0I0 0I1 0W0 0W1")) as pipe,
        pytest.raises(PipelineFailure, match="modified by an inplace operation"),
    ):
        pipe.step(case.x, case.y)


def test_modules_with_outputs_that_nobody_uses(seen: Seen) -> None:
    race(
        of_function(lambda m, x: (m(x), m(torch.sin(x)))[1]),
        of_function(lambda m, x: torch.lstm_cell(x, (x, x), *_cell(m))[0]),
    )
    assert (DIM,) in left(seen)


def _cell(layer: nn.Linear) -> tuple[Tensor, ...]:
    weight = layer.weight.repeat(4, 1)
    return weight, weight * 2, layer.bias.repeat(4), layer.bias.repeat(4)


def test_layers_as_they_are_without_a_pipeline() -> None:
    """Nothing is left behind in modules: they work as ever after a step."""
    case = one_layer(lambda: nn.Linear(DIM, DIM), x=torch.randn(4, DIM))()
    with hr.Pipeline(
        case.model, case.loss_fn, ranks=1, micro_batches=2, schedule=row("0F0 0F1 0I0 0I1 0W0 0W1"), loss_weight="sum"
    ) as pipe:
        pipe.step(case.x, case.y)
    case.model.zero_grad()
    case.model(case.x).sum().backward()
    assert case.model[0].weight.grad is not None
    assert type(case.model(case.x).grad_fn).__name__ == "AddmmBackward0"
