"""A hook on a weight hears of its gradient once, when it is whole: in W.

PyTorch calls a tensor's hooks whenever its gradient is asked for, so also when I computes a part of it.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from torch import Tensor


@contextmanager
def hooks_silent(tensors: Iterable[Tensor]) -> Iterator[None]:
    """Within it, hooks of leaf tensors are not called when their gradients are asked for."""
    hooked = [(t, t._backward_hooks) for t in tensors if t.is_leaf and t._backward_hooks]
    for tensor, _ in hooked:
        tensor._backward_hooks = None
    try:
        yield
    finally:
        for tensor, hooks in hooked:
            tensor._backward_hooks = hooks
