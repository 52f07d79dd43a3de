"""Weights that are used several times, or made of parameters: they wait for W where that is right to the last bit."""

from collections.abc import Callable
from typing import Any, Final

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize

from headrace.runtime.split.ancestry import leaves_of_weight
from runtime.cases import DIM
from runtime.pipes import pipe_of
from runtime.splits import ONE_RANK, WEIGHT, Seen, assert_parity, left, of_function, one_layer, race, row, seen

__all__ = ["seen"]

# -- weights that are used several times -----------------------------------------------------------------------------


def test_a_weight_used_three_times_in_products(seen: Seen) -> None:
    race(of_function(lambda m, x: m(torch.tanh(m(torch.sin(m(x)))))))
    assert left(seen) == [(DIM,), WEIGHT]
    assert max(seen.products) == 3


def test_a_weight_used_in_products_of_different_kinds(seen: Seen) -> None:
    race(of_function(lambda m, x: F.linear(torch.tanh(x @ m.weight.t() + x @ m.weight), m.weight)))
    assert left(seen) == [WEIGHT]


def test_one_weight_as_embedding_and_head(seen: Seen) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(11, DIM)

        def forward(self, ids: Tensor) -> Tensor:
            hidden = torch.tanh(self.table(ids))
            return F.linear(hidden, self.table.weight) + hidden @ self.table.weight.t()

    assert_parity(one_layer(Tied, x=torch.randint(0, 11, (7, 3))), row(ONE_RANK))
    assert seen.leaves[0] == [(11, DIM)]


LIGHT: Final[dict[str, Callable[[nn.Linear, Tensor], Any]]] = {
    "penalty before": lambda m, x: (m.weight * m.weight).sum() + m(torch.tanh(m(x))),
    "penalty between": lambda m, x: m(torch.tanh(m(x)) + (m.weight * m.weight).sum()),
    "penalty after": lambda m, x: m(torch.tanh(m(x))) + m.weight.exp().mean(),
    "elementwise": lambda m, x: m(torch.tanh(m(x))) * m.weight[0].sigmoid() * m.weight[1],
    "a list": lambda m, x: m(torch.tanh(m(x))) + torch.stack([m.weight, m.weight * 2]).sum((0, 1)),
    "a function that no mode sees": lambda m, x: m(torch.tanh(m(x))) + _Square.apply(m.weight).sum(0),
    "behind a product": lambda m, x: m(torch.tanh(m(x))) + (m.weight @ m.weight).sum(0),
    "derived": lambda m, x: F.linear(torch.tanh(m(x)), (w := m.weight.sin())) + w.sum() + x @ w.t(),
}


class _Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return 2 * x * g


@pytest.mark.parametrize("name", LIGHT)
def test_a_weight_that_is_also_used_lightly_does_not_wait(name: str, seen: Seen) -> None:
    race(of_function(LIGHT[name]))
    assert WEIGHT not in left(seen)
    assert max(seen.products) >= 1  # the bias waits


@pytest.mark.parametrize("name", LIGHT)
def test_hooks_of_a_weight_that_does_not_wait_hear_of_it_once(name: str) -> None:
    def heard(schedule: str) -> list[Tensor]:
        case = one_layer(of_function(LIGHT[name]), x=torch.randn(4, DIM, generator=torch.Generator().manual_seed(1)))()
        result: list[Tensor] = []
        weight = case.model[0].layer.weight
        weight.register_hook(lambda g: result.append(g.clone()))
        weight.register_hook(lambda g: g * 2)
        weight.register_post_accumulate_grad_hook(lambda p: result.append(p.grad.clone()))
        with pipe_of(case, 1, 2, schedule=row(schedule)) as pipe:
            pipe.step(case.x, case.y)
        return result

    ours, theirs = heard("0F0 0F1 0I0 0I1 0W0 0W1"), heard("0F0 0F1 0B0 0B1")
    assert len(ours) == len(theirs) == 4
    assert all(map(torch.equal, ours, theirs))


def test_weights_that_share_parameters_with_one_that_cannot_wait(seen: Seen) -> None:
    """The light use of one parameter keeps a product from waiting, and with it the other parameter of that product."""
    race(of_function(lambda m, x: (x @ m.bias)[:, None] + F.linear(x.sin(), m.weight * m.bias) + m.weight.sum()))
    assert left(seen) == []


def test_what_is_far_from_its_leaves_is_no_weight() -> None:
    near = far = nn.Parameter(torch.ones(2))
    for i in range(100):
        far = far.sin()
        near = far if i == 5 else near
    assert leaves_of_weight(near) is not None
    assert leaves_of_weight(far) is None


# -- weights that are made of parameters -----------------------------------------------------------------------------


class Symmetric(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return weight.triu() + weight.triu(1).t()


def _parametrized() -> nn.Module:
    layer = nn.Linear(DIM, DIM)
    parametrize.register_parametrization(layer, "weight", Symmetric())
    return layer


MADE: Final[dict[str, tuple[Callable[[], nn.Module], bool]]] = {
    "parametrized": (_parametrized, True),
    "weight_norm": (lambda: parametrizations.weight_norm(nn.Linear(DIM, DIM)), True),
    "spectral_norm": (lambda: parametrizations.spectral_norm(nn.Linear(DIM, DIM)), False),
    "orthogonal": (lambda: parametrizations.orthogonal(nn.Linear(DIM, DIM)), True),
    "slices": (of_function(lambda m, x: F.linear(x[:, :3], m.weight[:, :3]) + F.linear(x, m.weight[2:3])), True),
    "chunks": (of_function(lambda m, x: F.linear(x @ m.weight.chunk(2)[0].t(), m.weight.chunk(2, 1)[1])), True),
    "one chunk of two": (of_function(lambda m, x: F.linear(x, m.weight.chunk(2)[1])), True),
    "cast": (of_function(lambda m, x: F.linear(x.double(), m.weight.double(), m.bias.double()).to(x.dtype)), True),
    "padded": (of_function(lambda m, x: F.linear(x, F.pad(m.weight, (0, 0, 1, 1)))), True),
}  # fmt: skip


@pytest.mark.parametrize("name", MADE)
def test_weights_that_are_made_of_parameters(name: str, seen: Seen) -> None:
    layer, waits = MADE[name]
    race(layer)
    assert any(len(shape) == 2 for shape in left(seen)) == waits


@pytest.mark.parametrize("cross", [False, True])
@pytest.mark.parametrize("need_weights", [False, True])
def test_attention(cross: bool, need_weights: bool, seen: Seen) -> None:
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(DIM, 2, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            keys = torch.sin(x) if cross else x
            result: Tensor = self.attention(x, keys, keys, need_weights=need_weights)[0]
            return result

    race(Attention, x=torch.randn(7, 3, DIM))
    assert left(seen) == [(DIM,), (DIM, DIM), (3 * DIM,), (3 * DIM, DIM)]


def test_a_layer_of_torchs_transformer(seen: Seen) -> None:
    race(lambda: nn.TransformerEncoderLayer(DIM, 2, 12, batch_first=True, dropout=0.0), x=torch.randn(7, 3, DIM))
    assert left(seen) == sorted([(DIM,), (DIM, DIM), (3 * DIM,), (3 * DIM, DIM), (12,), (12, DIM), (DIM,), (DIM, 12)])
