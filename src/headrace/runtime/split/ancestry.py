"""Where a gradient would end: the graph, read from a tensor back to the leaves.

    an operand that is weight:       w ◀─ transpose ◀─ to(bfloat16) ◀─ leaf        its gradient can wait until W
    an operand that is activation:   h ◀─ gelu ◀─ … ◀─ what the stage received     its gradient belongs into I

An operand counts as weight if a few nodes lead from it to leaves only, so parametrized, cast, sliced and transposed
weights do. Where that errs it costs time, never correctness: what is not recognised is computed in I.
"""

from collections.abc import Mapping
from typing import Any, Final

from torch import Tensor

_FAR: Final = 16  # nodes; the longest parametrizations have some ten

Leaves = Mapping[int, Tensor]
"""Leaf tensors by identity."""


def leaves_of_weight(tensor: Tensor) -> Leaves | None:
    """The leaves that an operand is made of; None if it is an activation."""
    if tensor.is_leaf:
        return {id(tensor): tensor}
    leaves: dict[int, Tensor] = {}
    seen: set[Any] = set()
    todo: list[Any] = [tensor.grad_fn]
    while todo:
        node = todo.pop()
        if node in seen:
            continue
        seen.add(node)
        if len(seen) > _FAR:
            return None
        for following, _ in node.next_functions:
            if following is None:
                continue
            if not is_leaf(following):
                todo.append(following)
            elif following.variable.numel():
                leaves[id(following.variable)] = following.variable
            else:  # an anchor, by which Source and split operations keep their nodes in the graph: no weight has one
                return None
    return leaves


def is_leaf(node: Any) -> bool:
    """Whether a node of a graph is where a leaf tensor accumulates its gradient."""
    return type(node).__name__ == "AccumulateGrad"
