"""What passes from stage to stage: any nest of tuples, lists, dicts and dataclasses, taken apart into its tensors.

    {"x": tensor, "mask": tensor, "n": 3}   →   tensors (x, mask)   +   skeleton {"x": ●, "mask": ●, "n": 3}

Tensors travel as tensors; the skeleton is small plain data, which a transport between processes pickles.
"""

import dataclasses
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

Value = Any
"""A nest of tensors, None, numbers, bools and strings."""

_PLAIN: Final = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size)


class _Tensor:
    """Stands for a tensor in a skeleton."""

    def __reduce__(self) -> str:
        return "TENSOR"


TENSOR: Final = _Tensor()


@dataclass(frozen=True)
class Skeleton:
    """The nest without its tensors: how to put the value together again."""

    spec: pytree.TreeSpec
    leaves: tuple[Any, ...]

    def build(self, tensors: tuple[Tensor, ...]) -> Value:
        """The value, with `tensors` in their places."""
        rest = iter(tensors)
        return pytree.tree_unflatten([next(rest) if leaf is TENSOR else leaf for leaf in self.leaves], self.spec)


ONE_TENSOR: Final = Skeleton(pytree.tree_flatten(torch.empty(0))[1], (TENSOR,))


@dataclass(frozen=True)
class Parcel:
    """A value that passes a boundary.

    Attributes:
        tensors: its tensors, in order.
        needs_grad: for each, whether its gradient must come back.
        skeleton: the rest of it.
        rows: how many the batch has of which it is a part; 0 where that does not matter.
        batch: the fingerprint of that batch; 0 where nobody could compare it.
    """

    tensors: tuple[Tensor, ...]
    needs_grad: tuple[bool, ...]
    skeleton: Skeleton
    rows: int = 0
    batch: int = 0

    @property
    def wants_gradient(self) -> bool:
        """Whether any gradient must come back for it; if not, no message is sent for that."""
        return True in self.needs_grad

    @property
    def value(self) -> Value:
        """The value with the tensors as they are."""
        return self.skeleton.build(self.tensors)


def take_apart(value: Value, where: str) -> tuple[tuple[Tensor, ...], Skeleton]:
    """The tensors and the skeleton of a value; `where` names it in errors.

    Raises:
        TypeError: it contains something that cannot pass from one device to another.
    """
    if isinstance(value, Tensor):
        return (value,), ONE_TENSOR
    leaves, spec = flatten(value)
    tensors: list[Tensor] = []
    rest: list[Any] = []
    for leaf in leaves:
        if isinstance(leaf, Tensor):
            tensors.append(leaf)
            rest.append(TENSOR)
        elif isinstance(leaf, _PLAIN):
            rest.append(leaf)
        else:
            raise TypeError(
                f"{where} contains a {type(leaf).__name__}: only tensors, None, numbers, bools and strings, in tuples, "
                "lists, dicts and dataclasses, pass from stage to stage (torch.utils._pytree.register_pytree_node "
                "makes a container of a class)"
            )
    return tuple(tensors), Skeleton(spec, tuple(rest))


def flatten(value: Value) -> tuple[list[Any], pytree.TreeSpec]:
    """`pytree.tree_flatten`, with dataclasses opened too."""
    leaves, spec = pytree.tree_flatten(value)
    strangers = {type(leaf) for leaf in leaves if dataclasses.is_dataclass(leaf)}
    if not strangers:
        return leaves, spec
    for cls in strangers:
        pytree.register_dataclass(cls)
    return flatten(value)
