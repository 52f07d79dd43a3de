"""One product with a weight, cut out of the graph of its stage so that its two gradients can be asked for separately.

    graph of the stage    … ──x────▶ [ operation ] ──▶ y ──▶ …
                                      ▲ ┊
    graph of its own           x' ──▶ product ──▶ y'          x' begins a graph: W keeps this product alive, but nothing
                               w  ──────┘                     of what came before x

    I   a gradient g arrives at y      y' is asked for that of x', which goes on to x; (y', g) is put aside
    W   all (y', g) of the micro-batch at once: y' are asked for those of their w

So each half runs PyTorch's own formula for the product, on the operands that the whole backward would have: the bits
are the same without our knowing any formula. The weight is tied to the stage's graph as well: if I needs its gradient
after all, it arrives where and when it would in a whole backward.
"""

from collections.abc import Sequence
from typing import Any, Final, Protocol

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge

from headrace.runtime.split.ancestry import Leaves
from headrace.runtime.split.engine import gradients_of
from headrace.runtime.split.hooks import hooks_silent


class Queue(Protocol):
    """Takes what W will do."""

    def put(self, result: GradientEdge, gradient: Tensor) -> None:
        """`gradient` has arrived at the result of a product that has weights whose gradients can wait."""


class Operation:
    """One product with a weight in one micro-batch.

    Args:
        queue: of the micro-batch.
        operands: those of its own graph that need a gradient; of one whose memory may go, the edge that made it.
        leaves: for each operand those that it is made of; None for an activation.
        result: of its own graph.
    """

    def __init__(
        self,
        queue: Queue,
        operands: Sequence[Tensor | GradientEdge],
        leaves: Sequence[Leaves | None],
        result: Tensor,
    ) -> None:
        self.leaves = tuple(leaves)
        self.wait = [of_operand is not None for of_operand in leaves]
        """For each operand whether its gradient is left to W."""

        self._queue = queue
        self._operands = tuple(operands)
        self._edge = get_gradient_edge(result)
        self._value: Tensor | None = result.detach()

    def join(self, anchor: Tensor, operands: Sequence[Tensor]) -> Tensor:
        """The result as part of the stage's graph, where it hangs on `operands`."""
        result: Tensor = _Node.apply(anchor, self, *operands)  # type: ignore[no-untyped-call]
        return result

    def take_value(self) -> Tensor:
        value, self._value = self._value, None
        if value is None:
            raise RuntimeError("the result of a split operation was taken twice")
        return value

    def backward(self, gradient: Tensor) -> list[Tensor | None]:
        """I: gradients of the operands that cannot wait."""
        found: list[Tensor | None] = [None] * len(self._operands)
        now = [i for i, wait in enumerate(self.wait) if not wait]
        later = len(now) < len(found)
        if later:
            self._queue.put(self._edge, gradient)
        if now:
            wanted = [self._operands[i] for i in now]
            with hooks_silent(w for w in wanted if isinstance(w, Tensor)):
                parts = gradients_of(wanted, (self._edge,), (gradient,), again=later)
            for i, part in zip(now, parts, strict=True):
                found[i] = part
        return found


class _Node(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, _anchor: Tensor, operation: Operation, *_operands: Tensor) -> Tensor:
        ctx.operation = operation
        ctx.set_materialize_grads(False)
        return operation.take_value()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor | None) -> tuple[Tensor | None, ...]:
        operation: Operation = ctx.operation
        if gradient is None:
            return (None,) * (2 + len(operation.leaves))
        return (None, None, *operation.backward(gradient))


_NODE: Final[Any] = _Node._backward_cls


def operation_of(node: Any) -> Operation | None:
    """The operation that a node of the stage's graph stands for."""
    found: Operation | None = node.operation if isinstance(node, _NODE) else None
    return found
