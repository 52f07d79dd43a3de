"""The two halves of one micro-batch's backward through one stage.

    F   operations ─────▶ collected
    I   from the outputs back:  gradients of what the stage received   ──▶ handed on at once
                                gradients of small parameters           ──▶ kept ┐
                                (product, gradient that arrived)        ──▶ kept ┤
    W   ◀────────────────────────────────────────────────────────────────────────┘  all into `.grad`

Gradients of one micro-batch reach `.grad` together, in W, so parameters add them up in the order of the row's W, and
hooks hear of them once. That all products go into one backward matters for the last bit: PyTorch then adds up the uses
of a weight in the order in which the whole backward would.

A leaf that I reaches on some other way (a penalty on a weight, say) must not be split, as its parts would be added in
another order; so before I runs, the graph is looked through for such leaves. What is made of them is done in I.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge

from headrace.runtime.split.ancestry import is_leaf
from headrace.runtime.split.engine import accumulate, gradients_of
from headrace.runtime.split.hooks import hooks_silent
from headrace.runtime.split.operation import Operation, operation_of


class Halves:
    """Collects the operations of one forward, then performs I, then W."""

    def __init__(self) -> None:
        self.anchor = torch.empty(0, requires_grad=True)
        self._in_forward = True
        self._products: list[tuple[GradientEdge, Tensor]] = []
        self._waiting: dict[int, Tensor] = {}
        self._small: list[tuple[Tensor, Tensor]] = []

    def put(self, result: GradientEdge, gradient: Tensor) -> None:
        """`gradient` has arrived at the result of a product that has weights whose gradients can wait."""
        if self._in_forward:
            raise RuntimeError(
                "a layer differentiates in its forward through a product with a weight, whose backward the schedule "
                "splits into I and W: use a schedule with whole backwards (B) for this model"
            )
        self._products.append((result, gradient))

    def input_gradients(self, roots: Sequence[GradientEdge | None], gradients: Sequence[Tensor | None]) -> None:
        """I: run the backward from `roots`, but for what can wait; sources take what reaches them."""
        self._in_forward = False
        if not gradients:  # none comes where no root needs one
            return
        pairs = [(e, g) for e, g in zip(roots, gradients, strict=True) if e is not None and g is not None]
        if not pairs:
            return
        edges, arrived = [e for e, _ in pairs], [g for _, g in pairs]
        nodes = _nodes_behind(edges)
        operations = [operation for node in nodes if (operation := operation_of(node)) is not None]
        if any(type(node).__name__ == "CheckpointFunctionBackward" for node in nodes):
            # reentrant checkpointing runs a backward of its own into .grad, and refuses to when asked for single ones
            for operation in operations:
                operation.wait = [False] * len(operation.wait)
            torch.autograd.backward(edges, arrived)
            return
        touched = {id(node.variable): node.variable for node in nodes if is_leaf(node)}
        self._waiting = _settle(operations, touched)
        small = list(touched.values())
        with hooks_silent(small):
            found = gradients_of([self.anchor, *small], edges, arrived)
        self._small = [(leaf, part) for leaf, part in zip(small, found[1:], strict=True) if part is not None]

    def weight_gradients(self) -> None:
        """W: all gradients of parameters into `.grad`."""
        for leaves, edges, arrived in self.take():
            accumulate(leaves, edges, arrived)

    def take(self) -> list[tuple[list[Tensor], list[GradientEdge], list[Tensor]]]:
        """What W has to do, forgotten here once taken: leaves, roots of graphs, and the gradients that came there."""
        products, waiting, small = self._products, list(self._waiting.values()), self._small
        self._products, self._waiting, self._small = [], {}, []
        jobs = []
        if products:
            jobs.append((waiting, [edge for edge, _ in products], [g for _, g in products]))
        if small:  # by itself: products may be tied to such leaves, too, by operands that did not wait
            leaves = [leaf for leaf, _ in small]
            jobs.append((leaves, [get_gradient_edge(leaf) for leaf in leaves], [part for _, part in small]))
        return jobs


def _nodes_behind(edges: Iterable[GradientEdge]) -> list[Any]:
    """All nodes that a backward from `edges` reaches, not counting the weights of operations."""
    seen: dict[Any, None] = {}
    todo: list[Any] = [edge.node for edge in edges]
    while todo:
        node = todo.pop()
        if node in seen:
            continue
        seen[node] = None
        following = node.next_functions
        operation = operation_of(node)
        if operation is not None:
            behind = zip(operation.leaves, following[1:], strict=True)  # the first is the anchor
            following = tuple(edge for leaves, edge in behind if leaves is None)
        todo += [n for n, _ in following if n is not None]
    return list(seen)


def _settle(operations: Sequence[Operation], touched: dict[int, Tensor]) -> dict[int, Tensor]:
    """Leave no weight to W that is made of a leaf that I touches; the leaves that are left to W.

    What I does for such a weight touches its other leaves, too, so they are added to `touched`, until no more come.
    """
    waiting = [(operation, i, of) for operation in operations for i, of in enumerate(operation.leaves) if of]
    grown = True
    while grown:
        grown = False
        for operation, i, leaves in waiting:
            if operation.wait[i] and not touched.keys().isdisjoint(leaves):
                operation.wait[i] = False
                grown = grown or not leaves.keys() <= touched.keys()
                touched.update(leaves)
    return {key: leaf for operation, i, of in waiting if operation.wait[i] for key, leaf in of.items()}
