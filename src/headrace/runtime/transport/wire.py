"""Payloads as bytes: what a tensor looks like, so that the other process can lay it out exactly the same.

The layout matters: a kernel may round differently for a transposed input, and a pipeline must not change a bit. Dense
tensors travel in the order of their memory, expanded ones without their repetitions; only what has gaps is packed.

    header   small, marshalled: message, layouts, what is no tensor
    data     one flat piece per tensor, each aligned to 64 bytes as torch's own allocations are
"""

import marshal
import pickle
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from headrace.runtime.boundary import ONE_TENSOR, Parcel
from headrace.schedule.messages import Message

ALIGNMENT: Final = 64

_DTYPES: Final = {
    str(dtype).removeprefix("torch."): dtype for dtype in vars(torch).values() if isinstance(dtype, torch.dtype)
}

Layout = tuple[str, tuple[int, ...], tuple[int, ...], tuple[int, ...]]
"""dtype, shape, shape without repetitions, strides of that."""


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
        return [torch.empty(_count(layout[2]), dtype=_DTYPES[layout[0]], device=device) for layout in self.layouts]

    def payload(self, pieces: list[Tensor]) -> Any:
        """The payload, with its tensors laid out in `pieces`."""
        tensors = [_laid_out(piece, layout) for piece, layout in zip(pieces, self.layouts, strict=True)]
        kind, *details = self.rest
        if kind == "gradients":
            rest = iter(tensors)
            return tuple(next(rest) if present else None for present in details[0])
        skeleton = ONE_TENSOR if details[1] is None else pickle.loads(details[1])
        return Parcel(tuple(tensors), tuple(details[0]), skeleton)


def pack(round_number: int, message: Message, payload: Any) -> Packed:
    """Take a payload, a parcel or gradients, apart for the wire."""
    rest: tuple[Any, ...]
    if isinstance(payload, Parcel):
        tensors = payload.tensors
        skeleton = None if payload.skeleton is ONE_TENSOR else pickle.dumps(payload.skeleton)
        rest = ("parcel", payload.needs_grad, skeleton)
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
    count = _count(layout[2])
    dtype = _DTYPES[layout[0]]
    if count == 0:
        return torch.empty(0, dtype=dtype)
    return torch.frombuffer(block, dtype=dtype, count=count, offset=start)


def _places(layouts: tuple[Layout, ...]) -> tuple[list[tuple[Layout, int]], int]:
    places, end = [], 0
    for layout in layouts:
        places.append((layout, end))
        size = _count(layout[2]) * _DTYPES[layout[0]].itemsize
        end += -(-size // ALIGNMENT) * ALIGNMENT
    return places, end


def _flat(tensor: Tensor) -> tuple[Layout, Tensor]:
    if tensor.layout is not torch.strided or type(tensor) not in (Tensor, torch.nn.Parameter):
        raise TypeError(
            f"a {type(tensor).__name__} with layout {tensor.layout} cannot pass between processes: "
            "hand on plain dense tensors"
        )
    base = tensor.detach().resolve_conj().resolve_neg()
    shape = tuple(base.shape)
    if not base.is_contiguous():
        for dim, (size, stride) in enumerate(zip(base.shape, base.stride(), strict=True)):
            if stride == 0 and size > 1:
                base = base.narrow(dim, 0, 1)
        if not torch.ops.aten.is_non_overlapping_and_dense(base):
            base = base.contiguous()
    layout = (str(base.dtype).removeprefix("torch."), shape, tuple(base.shape), base.stride())
    return layout, base.as_strided((base.numel(),), (1,))


def _laid_out(piece: Tensor, layout: Layout) -> Tensor:
    _, shape, base_shape, strides = layout
    base = piece.as_strided(base_shape, strides)
    return base if shape == base_shape else base.expand(shape)


def _count(shape: tuple[int, ...]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count
