"""Which layers of a stage can run under interception, and what is said of those that cannot.

A compiled layer is one node of the graph, whatever is in it: its backward is one function that gives all gradients.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import nn

from headrace.runtime.model.warn import warn_of_whole_backward
from headrace.runtime.split.halves import Halves
from headrace.runtime.split.interception import Interception
from headrace.runtime.stage.randomness import is_compiled


def split_layer(
    halves: Halves | None, layer: nn.Module, name: str, pack: Callable[..., Any] | None = None
) -> AbstractContextManager[Any]:
    """A context around the forward of the layer called `name`, in which what `halves` can split is caught.

    `pack` is as for `Interception`.
    """
    if halves is None:
        return nullcontext()
    if is_compiled(layer):
        warn_of_whole_backward(layer, name)
        return nullcontext()
    return Interception(halves, pack)
