"""The two ends of a stage's piece of the autograd graph.

    received ──Source──▶ layers ──▶ output        forward
      grads ◀──Source─── layers ◀── edge          backward

Source makes a received tensor the start of a fresh graph, one per micro-batch. Its results are no leaves, so a layer
may write to them in place; they share memory and version counter with what came in, so a write that would spoil
somebody's backward is noticed by autograd as in the unsplit model. The gradients that arrive at it are the message to
the stage before.

At the other end we keep only the graph edge that made an output, not the output: its memory is free once it is sent.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge, saved_tensors_hooks

Gradients = tuple[Tensor | None, ...]


class Source:
    """Where the graph of one micro-batch begins; after the backward it holds the gradients that came back."""

    def __init__(self) -> None:
        self._arrived: Gradients = ()
        self._places: list[int] = []
        self._count = 0

    def open(self, tensors: Sequence[Tensor], needs_grad: Sequence[bool]) -> tuple[Tensor, ...]:
        """`tensors`, those that need a gradient as starts of a graph; none of them where grad mode is off."""
        self._count = len(tensors)
        self._places = [i for i, needs in enumerate(needs_grad) if needs and torch.is_grad_enabled()]
        if not self._places:
            return tuple(tensors)
        anchor = torch.empty(0, requires_grad=True)
        opened = list(tensors)
        starts = _Start.apply(anchor, self, *(tensors[i] for i in self._places))  # type: ignore[no-untyped-call]
        for i, start in zip(self._places, starts, strict=True):
            opened[i] = start
        return tuple(opened)

    def arrive(self, gradients: Gradients) -> None:
        self._arrived = gradients

    def gradients(self) -> Gradients:
        """One per tensor of the parcel; None where it needs none, or nothing depended on it."""
        result: list[Tensor | None] = [None] * self._count
        for place, gradient in zip(self._places, self._arrived, strict=False):
            result[place] = gradient
        return tuple(result)


class _Start(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, _anchor: Tensor, source: Source, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.source = source
        ctx.set_materialize_grads(False)
        return tuple(t.detach() for t in tensors)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[None, ...]:
        ctx.source.arrive(gradients)
        return (None,) * (2 + len(gradients))


def edges(tensors: Sequence[Tensor]) -> tuple[GradientEdge | None, ...]:
    """For each tensor the graph edge that made it; None where it needs no gradient."""
    return tuple(get_gradient_edge(t) if t.requires_grad else None for t in tensors)


def backward(roots: Sequence[GradientEdge | None], gradients: Gradients) -> None:
    """Run the backward from `roots`; parameters accumulate into `.grad`, sources take what reaches them.

    `gradients` are one per root, or none at all where no root needs one.
    """
    if not gradients:
        return
    pairs = [(e, g) for e, g in zip(roots, gradients, strict=True) if e is not None and g is not None]
    if pairs:
        torch.autograd.backward([e for e, _ in pairs], [g for _, g in pairs])


@contextmanager
def nothing_saved() -> Iterator[None]:
    """Build graphs whose saved tensors are dropped at once: for a forward that will be recomputed.

    Unlike no_grad, this tells exactly which outputs will need a gradient, and layers see the grad mode of the rerun.
    """
    with saved_tensors_hooks(lambda _: None, _never):
        yield


def _never(_: None) -> Tensor:
    raise RuntimeError("a backward ran through a forward that was to be recomputed first")
