"""Payloads as bytes: what a tensor looks like, so that the other process can lay it out exactly the same.

The layout matters: kernels may round differently for other strides or another alignment, and a pipeline must not
change a bit. So of a tensor travels the stretch of memory that it spans, gaps included, as long as those are not most
of it; expanded tensors span little, and travel without their repetitions.

    header   small, marshalled: message, layouts, what is no tensor
    data     one flat piece per tensor; where it begins, modulo 64 bytes, is as it was
"""

import marshal
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from headrace.runtime.stage.boundary import Parcel
from headrace.runtime.transport.distributed.skeletons import decode, encode
from headrace.schedule.messages import Message

ALIGNMENT: Final = 64

_DTYPES: Final = {
    str(dtype).removeprefix("torch."): dtype for dtype in vars(torch).values() if isinstance(dtype, torch.dtype)
}

Layout = tuple[str, tuple[int, ...], tuple[int, ...], int, bool]
"""dtype, shape, strides, how many elements it begins after an aligned address, whether its gaps were left out."""


@dataclass(frozen=True)
class Packed:
    """A payload, ready to travel.

    Attributes:
        header: tells the receiver everything but the data.
        pieces: flat, dense, in order.
        places: for each piece its layout, and at which byte it begins if all are put into one block.
        size: bytes of that block.
    """

    header: bytes
    pieces: tuple[Tensor, ...]
    places: list[tuple[Layout, int]]
    size: int


@dataclass(frozen=True)
class Header:
    """What a receiver knows before the data comes."""

    round: int
    message: Message
    layouts: tuple[Layout, ...]
    rest: Any

    def places(self) -> list[tuple[Layout, int]]:
        """For each piece its layout, and at which byte of a common block it begins."""
        return _places(self.layouts)[0]

    def empty(self, device: torch.device) -> list[Tensor]:
        """Flat tensors for the pieces to be received into."""
        return [
            torch.empty(layout[3] + _length(layout), dtype=_DTYPES[layout[0]], device=device)[layout[3] :]
            for layout in self.layouts
        ]

    def payload(self, pieces: list[Tensor]) -> Any:
        """The payload, with its tensors laid out in `pieces`."""
        tensors = [_laid_out(piece, layout) for piece, layout in zip(pieces, self.layouts, strict=True)]
        kind, *details = self.rest
        if kind == "gradients":
            rest = iter(tensors)
            return tuple(next(rest) if present else None for present in details[0])
        return Parcel(tuple(tensors), tuple(details[0]), decode(details[1]), *details[2:])


def pack(round_number: int, message: Message, payload: Any) -> Packed:
    """Take a payload, a parcel or gradients, apart for the wire."""
    rest: tuple[Any, ...]
    if isinstance(payload, Parcel):
        tensors = payload.tensors
        rest = ("parcel", payload.needs_grad, encode(payload.skeleton), payload.rows, payload.batch)
    else:
        tensors = tuple(t for t in payload if t is not None)
        rest = ("gradients", tuple(t is not None for t in payload))
    flat = [_flat(t) for t in tensors]
    layouts = tuple(layout for layout, _ in flat)
    header = marshal.dumps((round_number, tuple(message), layouts, rest))
    return Packed(header, tuple(piece for _, piece in flat), *_places(layouts))


def read_header(data: Any) -> Header:
    """The header that `pack` wrote."""
    round_number, message, layouts, rest = marshal.loads(data)
    return Header(round_number, Message(*message), layouts, rest)


def piece_at(block: Any, layout: Layout, start: int) -> Tensor:
    """The piece that begins at byte `start` of a writable buffer; it shares the buffer's memory and keeps it alive."""
    count = _length(layout)
    dtype = _DTYPES[layout[0]]
    if count == 0:
        return torch.empty(0, dtype=dtype)
    return torch.frombuffer(block, dtype=dtype, count=count, offset=start)


def _places(layouts: tuple[Layout, ...]) -> tuple[list[tuple[Layout, int]], int]:
    places, end = [], 0
    for layout in layouts:
        itemsize = _DTYPES[layout[0]].itemsize
        start = end + layout[3] * itemsize
        places.append((layout, start))
        end = -(-(start + _length(layout) * itemsize) // ALIGNMENT) * ALIGNMENT
    return places, end


def _flat(tensor: Tensor) -> tuple[Layout, Tensor]:
    if tensor.layout is not torch.strided or tensor.is_quantized or type(tensor) not in (Tensor, torch.nn.Parameter):
        raise TypeError(
            f"a {type(tensor).__name__} of {tensor.dtype} with layout {tensor.layout} cannot pass between processes: "
            "hand on plain dense tensors"
        )
    base = tensor.detach().resolve_conj().resolve_neg()
    shape, strides, itemsize = tuple(base.shape), base.stride(), base.element_size()
    beyond = base.data_ptr() % ALIGNMENT
    shift = 0 if beyond % itemsize else beyond // itemsize
    dtype = str(base.dtype).removeprefix("torch.")
    span = _span(shape, strides)
    if span > 2 * _count(shape) and _never_twice(shape, strides):
        return (dtype, shape, strides, shift, True), base.contiguous().view(-1)
    return (dtype, shape, strides, shift, False), base.as_strided((span,), (1,))


def _laid_out(piece: Tensor, layout: Layout) -> Tensor:
    _, shape, strides, shift, packed = layout
    if not packed:
        return piece.as_strided(shape, strides)
    roomy = piece.new_empty(shift + _span(shape, strides))[shift:].as_strided(shape, strides)
    return roomy.copy_(piece.view(shape))


def _length(layout: Layout) -> int:
    """How many elements travel."""
    _, shape, strides, _, packed = layout
    return _count(shape) if packed else _span(shape, strides)


def _span(shape: tuple[int, ...], strides: tuple[int, ...]) -> int:
    """How many elements lie between the first and the last, both included."""
    if 0 in shape:
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))


def _never_twice(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Whether no two elements share memory; it may say no of some where that is true."""
    end = 0
    for stride, size in sorted((stride, size) for size, stride in zip(shape, strides, strict=True) if size > 1):
        if stride <= end:
            return False
        end += (size - 1) * stride
    return True


def _count(shape: tuple[int, ...]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count
