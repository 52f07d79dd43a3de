"""Products with weights, one by one: whatever their operands look like, the halves are bitwise the whole."""

from collections.abc import Callable
from typing import Any, Final

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

import headrace as hr
from runtime.cases import Case
from runtime.splits import ONE_RANK, Seen, assert_parity, one_layer, row, seen, two_stages

__all__ = ["seen"]

DIM: Final = 5
TYPES: Final = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


class Scale(nn.Module):
    """A stage without products, so that what comes after it gets something that needs a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.rand(()) + 0.5)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale


class Product(nn.Module):
    """A product of what comes in with weights of given shapes."""

    def __init__(
        self, shapes: list[tuple[int, ...]], product: Callable[..., Tensor], turn: Callable[[Tensor], Tensor] | None
    ) -> None:
        super().__init__()
        self.weights = nn.ParameterList(nn.Parameter(torch.randn(shape)) for shape in shapes)
        self.product, self.turn = product, turn or _as_is

    def forward(self, x: Tensor) -> Tensor:
        return self.product(self.turn(x), *self.weights)


def _as_is(x: Tensor) -> Tensor:
    return x


def product(
    shapes: list[tuple[int, ...]],
    function: Callable[..., Tensor],
    x: Tensor,
    turn: Callable[[Tensor], Tensor] | None = None,
    dtype: torch.dtype = torch.float32,
) -> Callable[[], Case]:
    layers = (Scale, lambda: Product(shapes, function, turn))
    return one_layer(*(lambda layer=layer: layer().to(dtype) for layer in layers), x=x.to(dtype))


def left_to_w(seen: Seen) -> list[list[tuple[int, ...]]]:
    """The shapes of weights that were left to W in the second stage."""
    return seen.leaves[::2]


LAYOUTS: Final[dict[str, tuple[tuple[int, ...], Callable[[Tensor], Tensor] | None]]] = {
    "2-D": ((7, DIM), None),
    "3-D": ((7, 3, DIM), None),
    "4-D": ((7, 2, 3, DIM), None),
    "one row": ((7, 1, DIM), None),
    "transposed": ((7, DIM, 3), lambda x: x.transpose(1, 2)),
    "transposed 2-D": ((7, 3, DIM), lambda x: x.sum(0).t().contiguous().t()),
    "expanded": ((7, 1, DIM), lambda x: x.expand(-1, 4, -1)),
    "expanded first": ((7, DIM), lambda x: x[None].expand(3, -1, -1)),
    "strided": ((7, 3, 2 * DIM), lambda x: x[..., ::2]),
    "overlapping": ((7, DIM + 3), lambda x: x.unfold(1, DIM, 1)),
    "4-D permuted": ((7, DIM, 2, 3), lambda x: x.permute(0, 2, 3, 1)),
}


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_linear(layout: str, bias: bool, dtype: torch.dtype, seen: Seen) -> None:
    shape, turn = LAYOUTS[layout]
    shapes = [(4, DIM), (4,)] if bias else [(4, DIM)]
    assert_parity(product(shapes, F.linear, torch.randn(shape), turn, dtype), two_stages(), steps=1)
    assert left_to_w(seen) == [sorted(shapes)] * 3


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_matmul_with_a_transposed_weight(layout: str, dtype: torch.dtype, seen: Seen) -> None:
    shape, turn = LAYOUTS[layout]
    x = torch.randn(shape)
    assert_parity(product([(4, DIM)], lambda x, w: x @ w.t(), x, turn, dtype), two_stages(), steps=1)
    assert_parity(product([(DIM, 4)], torch.matmul, x, turn, dtype), two_stages(), steps=1)
    assert left_to_w(seen) == [[(4, DIM)]] * 3 + [[(DIM, 4)]] * 3


def _padded(ids: Tensor, table: Tensor) -> Tensor:
    return F.embedding(ids, table, padding_idx=2, scale_grad_by_freq=True)


SINGLE: Final[dict[str, tuple[list[tuple[int, ...]], Callable[..., Tensor], tuple[int, ...]]]] = {
    "mm": ([(DIM, 3)], torch.mm, (7, DIM)),
    "mm, method": ([(DIM, 3)], Tensor.mm, (7, DIM)),
    "weight first": ([(3, 7)], lambda x, w: w[:, : len(x)] @ x, (7, DIM)),
    "mv": ([(DIM,)], torch.mv, (7, DIM)),
    "bmm": ([(3, DIM, 2)], lambda x, w: torch.bmm(x.transpose(0, 1), w).transpose(0, 1), (7, 3, DIM)),
    "broadcast matmul": ([(3, DIM, 2)], lambda x, w: x[:, None] @ w, (7, 2, DIM)),
    "vector": ([(DIM,)], torch.matmul, (7, 3, DIM)),
    "addmm": ([(2,), (DIM, 2)], lambda x, b, w: torch.addmm(b, x, w, beta=0.5, alpha=2), (7, DIM)),
    "baddbmm": ([(1, 2), (7, DIM, 2)], lambda x, b, w: torch.baddbmm(b, x, w[: len(x)]), (7, 3, DIM)),
    "einsum": ([(3, DIM, 2)], lambda x, w: torch.einsum("bhd,hde->bhe", x, w), (7, 3, DIM)),
    "einsum, list": ([(3, DIM, 2)], lambda x, w: torch.einsum("bhd,hde->bhe", [x, w]), (7, 3, DIM)),
    "einsum of three": ([(DIM, 2), (2, 4)], lambda x, v, w: torch.einsum("bd,de,ef->bf", x, v, w), (7, DIM)),
    "an operand twice": ([(DIM, DIM)], lambda x, w: torch.einsum("bd,be,de->b", x, x, w) + x.sum(1), (7, DIM)),
    "bilinear": ([(3, DIM, DIM), (3,)], lambda x, w, b: F.bilinear(x, x.sin(), w, b), (7, DIM)),
    "conv1d": ([(4, 2, 3), (4,)], lambda x, w, b: F.conv1d(x, w, b, padding=1), (7, 2, 6)),
    "conv2d": ([(4, 2, 3, 3), (4,)], lambda x, w, b: F.conv2d(x, w, b, stride=2), (7, 2, 6, 6)),
    "conv2d, no bias, named": ([(4, 2, 3, 3)], lambda x, w: F.conv2d(input=x, weight=w, dilation=2), (7, 2, 6, 6)),
    "conv2d, groups": ([(4, 1, 3, 3), (4,)], lambda x, w, b: F.conv2d(x, w, b, groups=2), (7, 2, 6, 6)),
    "conv2d, turned": ([(4, 2, 3, 3)], lambda x, w: F.conv2d(x.transpose(2, 3), w), (7, 2, 6, 5)),
    "conv3d": ([(3, 2, 2, 2, 2), (3,)], F.conv3d, (7, 2, 3, 3, 3)),
    "conv_transpose1d": ([(2, 4, 3), (4,)], F.conv_transpose1d, (7, 2, 6)),
    "conv_transpose2d": ([(2, 4, 3, 3), (4,)], lambda x, w, b: F.conv_transpose2d(x, w, b, stride=2), (7, 2, 5, 5)),
    "conv_transpose3d": ([(2, 3, 2, 2, 2)], F.conv_transpose3d, (7, 2, 3, 3, 3)),
}  # fmt: skip
WHOLE: Final = {"einsum, list", "an operand twice"}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", SINGLE)
def test_products(name: str, dtype: torch.dtype, seen: Seen) -> None:
    shapes, function, shape = SINGLE[name]
    assert_parity(product(shapes, function, torch.randn(shape), dtype=dtype), two_stages())
    assert left_to_w(seen) == [[] if name in WHOLE else sorted(shapes)] * 9


@pytest.mark.parametrize(
    "table",
    [
        lambda: nn.Embedding(11, DIM),
        lambda: nn.Embedding(11, DIM, padding_idx=2, scale_grad_by_freq=True),
        lambda: nn.Embedding(11, DIM, max_norm=1.0),
        lambda: nn.EmbeddingBag(11, DIM, mode="mean"),
    ],
)
def test_embeddings(table: Callable[[], nn.Module], seen: Seen) -> None:
    assert_parity(one_layer(table, x=torch.randint(0, 11, (7, 4))), row(ONE_RANK))
    assert seen.leaves == [[(11, DIM)]] * 9


def test_sparse_embedding(seen: Seen) -> None:
    def gradients_of(schedule: str) -> Tensor:
        case = one_layer(lambda: nn.Embedding(11, DIM, sparse=True), x=torch.arange(8).view(4, 2))()
        order = row(schedule)
        with hr.Pipeline(case.model, case.loss_fn, ranks=1, micro_batches=2, schedule=order, loss_weight="sum") as pipe:
            pipe.step(case.x, case.y)
        gradient = case.model[0].weight.grad
        assert gradient is not None
        assert gradient.is_sparse
        return gradient.to_dense()

    assert torch.equal(gradients_of("0F0 0F1 0I0 0I1 0W0 0W1"), gradients_of("0F0 0F1 0B0 0B1"))
    assert seen.leaves == [[(11, DIM)]] * 2


def test_frozen_weights_and_an_input_without_gradient(seen: Seen) -> None:
    """First stage: all that a product has to do is left to W; and of a frozen one nothing is left."""

    def layers() -> nn.Module:
        return Chain(nn.Linear(DIM, DIM), nn.Linear(DIM, DIM).requires_grad_(False), nn.Linear(DIM, 3, bias=False))

    assert_parity(one_layer(layers, x=torch.randn(7, DIM)), row(ONE_RANK), steps=1)
    assert seen.leaves == [sorted([(DIM, DIM), (DIM,), (3, DIM)])] * 3


class Chain(nn.Module):
    """A Sequential that the pipeline does not open."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Any) -> Any:
        return self.layers(x)
