"""What goes over the wire comes out with the same bits, in the same layout."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from distributed.work import bits
from headrace.runtime.stage.boundary import ONE_TENSOR, Parcel, take_apart
from headrace.runtime.transport.distributed import wire
from headrace.schedule.messages import Message

MESSAGE = Message("activation", 1, 2)
DTYPES = [
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
    torch.uint8, torch.bool, torch.complex64, torch.complex128, torch.float8_e4m3fn,
]  # fmt: skip


def through_a_block(payload: Any) -> Any:
    """As over shared memory: all pieces in one block."""
    packed = wire.pack(7, MESSAGE, payload)
    block: Any = torch.full((packed.size,), 85, dtype=torch.uint8).numpy()
    for piece, (layout, start) in zip(packed.pieces, packed.places, strict=True):
        wire.piece_at(memoryview(block), layout, start).copy_(piece)
    header = wire.read_header(packed.header)
    assert (header.round, header.message) == (7, MESSAGE)
    return header.payload([wire.piece_at(memoryview(block), layout, start) for layout, start in header.places()])


def through_pieces(payload: Any) -> Any:
    """As over torch.distributed: each piece into a tensor of its own."""
    packed = wire.pack(7, MESSAGE, payload)
    header = wire.read_header(packed.header)
    pieces = header.empty(torch.device("cpu"))
    for piece, sent in zip(pieces, packed.pieces, strict=True):
        piece.copy_(sent)
    return header.payload(pieces)


WAYS = pytest.mark.parametrize("through", [through_a_block, through_pieces])


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    """Tensors of all dtypes, and views of them by all means that there are."""
    dtype = draw(st.sampled_from(DTYPES))
    shape = draw(st.lists(st.integers(0, 5), max_size=4))
    numbers = torch.randint(0, 256, (*shape, dtype.itemsize), dtype=torch.uint8)
    if dtype is torch.bool:
        numbers %= 2
    tensor = numbers.view(dtype).reshape(shape) if numbers.numel() else torch.empty(shape, dtype=dtype)
    for _ in range(draw(st.integers(0, 4))):
        step = draw(st.sampled_from(STEPS))
        dim = draw(st.integers(0, tensor.dim() - 1)) if tensor.dim() else None
        if dim is not None:
            tensor = step(tensor, dim, draw(st.integers(0, 3)))
    return tensor


def window(tensor: Tensor, dim: int, number: int) -> Tensor:
    return tensor.unfold(dim, min(number, tensor.shape[dim]), 1) if tensor.dim() < 5 else tensor


STEPS: list[Callable[[Tensor, int, int], Tensor]] = [
    lambda t, dim, _: t.transpose(0, dim),
    lambda t, dim, n: t.narrow(dim, min(n, t.shape[dim]), t.shape[dim] - min(n, t.shape[dim])),
    lambda t, dim, n: t[(slice(None),) * dim + (slice(None, None, n + 1),)],
    lambda t, dim, n: t.unsqueeze(dim).expand(*t.shape[:dim], n, *t.shape[dim:]) if t.dim() < 5 else t,
    lambda t, dim, n: t.select(dim, min(n, t.shape[dim] - 1)) if t.shape[dim] else t,
    window,
]


@WAYS
@settings(max_examples=300, deadline=None)
@given(tensor=tensors())
def test_a_tensor_comes_with_the_same_bits_and_layout(through: Callable[[Any], Any], tensor: Tensor) -> None:
    (came,) = through((tensor,))
    assert (came.dtype, came.shape, came.stride()) == (tensor.dtype, tensor.shape, tensor.stride())
    assert bits(came) == bits(tensor)
    if tensor.numel():
        assert came.data_ptr() % 64 == tensor.data_ptr() % 64


@pytest.mark.parametrize(
    ("tensor", "elements"),
    [
        (torch.randn(10, 10), 100),
        (torch.randn(10, 10).t(), 100),
        (torch.randn(10, 1).expand(10, 1000), 10),
        (torch.randn(3).expand(5, 3), 3),
        (torch.randn(10, 10)[:, :5], 95),  # gaps are no more than half of it
        (torch.randn(10, 1000)[:, :5], 50),  # mostly gaps
        (torch.randn(100).unfold(0, 50, 1), 100),
        (torch.randn(1000).unfold(0, 50, 50)[:, :3].unfold(1, 2, 1), 953),  # shares memory with itself: with its gaps
    ],
)
def test_no_more_travels_than_needed(tensor: Tensor, elements: int) -> None:
    (piece,) = wire.pack(0, MESSAGE, (tensor,)).pieces
    assert piece.numel() == elements
    assert bits(through_pieces((tensor,))[0]) == bits(tensor)


@WAYS
def test_conjugated_and_negated_views_come_resolved(through: Callable[[Any], Any]) -> None:
    z = torch.randn(4, 3, dtype=torch.complex64)
    conjugate, negative = through((z.conj(), z.conj().imag))
    assert bits(conjugate) == bits(z.conj().resolve_conj())
    assert bits(negative) == bits(-z.imag)


@WAYS
def test_gradients_may_be_missing(through: Callable[[Any], Any]) -> None:
    first, second, third = through((None, torch.ones(3), None))
    assert first is None
    assert third is None
    assert second.tolist() == [1, 1, 1]


@dataclass
class Point:
    """A dataclass that pytree hears of only when one is opened."""

    x: Tensor
    name: str


VALUES = [
    {"b": torch.ones(2), "a": [1, None, (True, "é", 2.5)]},
    Point(torch.ones(2), "here"),
    [Point(torch.ones(2), "here"), {"deep": Point(torch.zeros(0), "there")}],
    (),
    None,
    torch.Size([2, 3]),
    [torch.float16, torch.device("cpu"), b"bytes", 1 + 2j],
]


@WAYS
@pytest.mark.parametrize("value", VALUES, ids=str)
def test_nests_come_as_they_were(through: Callable[[Any], Any], value: Any) -> None:
    tensors, skeleton = take_apart(value, "value")
    came = through(Parcel(tensors, (False,) * len(tensors), skeleton, 11))
    assert came.skeleton == skeleton
    assert came.rows == 11
    assert str(came.value) == str(skeleton.build(tensors))
    assert [type(leaf) for leaf in came.skeleton.leaves] == [type(leaf) for leaf in skeleton.leaves]


def test_a_dataclass_is_made_known_to_the_receiver() -> None:
    """Its process may never have opened one."""
    from torch.utils import _pytree as pytree

    tensors, skeleton = take_apart(Unknown(torch.ones(2)), "value")
    packed = wire.pack(0, MESSAGE, Parcel(tensors, (True,), skeleton))
    pytree._deregister_pytree_node(Unknown)
    assert Unknown not in pytree.SUPPORTED_NODES
    came = wire.read_header(packed.header).payload([torch.ones(2)])
    assert isinstance(came.value, Unknown)


@dataclass
class Unknown:
    """For the test above alone."""

    x: Tensor


def test_the_commonest_parcel_costs_no_description() -> None:
    came = through_pieces(Parcel((torch.ones(2),), (True,), ONE_TENSOR))
    assert came.skeleton is ONE_TENSOR
    assert came.needs_grad == (True,)


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.ones(3).to_sparse(),
        lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8),
        lambda: torch.ones(3).as_subclass(type("Odd", (Tensor,), {})),
    ],
    ids=["sparse", "quantized", "subclass"],
)
@pytest.mark.filterwarnings("ignore:.*quantize")
def test_what_is_no_plain_tensor_is_refused_in_words(make: Callable[[], Tensor]) -> None:
    with pytest.raises(TypeError, match="cannot pass between processes: hand on plain dense tensors"):
        wire.pack(0, MESSAGE, (make(),))
