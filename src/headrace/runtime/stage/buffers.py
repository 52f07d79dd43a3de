"""A recompute must see the buffers that the first run saw, and must not change them a second time.

BatchNorm counts a batch in its running statistics, spectral norm turns its vectors, an EMA moves: all of that happens
once, in F. For R, copies from before that F stand in their place:

    F   buffers b₀ → b₁      keep a copy of b₀
    …   other micro-batches      → b₄
    R   the copy of b₀ stands in for b₄; afterwards b₄ is back, untouched

Which buffers a stage changes is learned by comparing all of them around its first forward; only those are copied later.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class _Copy:
    owner: nn.Module
    name: str
    content: Tensor

    @property
    def changed(self) -> bool:
        now = self.owner._buffers[self.name]
        return now is None or now.shape != self.content.shape or not torch.equal(now, self.content)


BufferState = tuple[_Copy, ...]


class ChangingBuffers:
    """The buffers of one stage that its forward changes, learned once per mode (training, evaluation)."""

    def __init__(self, layers: Sequence[nn.Module]) -> None:
        modules = dict.fromkeys(module for layer in layers for module in layer.modules())
        self._all = [(module, name) for module in modules for name in module._buffers]
        self._changing: dict[int, list[tuple[nn.Module, str]]] = {}

    def before_forward(self, mode: int) -> BufferState:
        """Copies of what the coming F may change."""
        return tuple(
            _Copy(owner, name, buffer.detach().clone())
            for owner, name in self._changing.get(mode, self._all)
            if (buffer := owner._buffers[name]) is not None
        )

    def after_forward(self, mode: int, before: BufferState) -> BufferState:
        """What of `before` an R will need."""
        if mode in self._changing:
            return before
        changed = tuple(copy for copy in before if copy.changed)
        self._changing[mode] = [(copy.owner, copy.name) for copy in changed]
        return changed


@contextmanager
def standing_in(state: BufferState) -> Iterator[None]:
    """Within it, the copies of `state` are the buffers; what is done to them is forgotten."""
    real = [copy.owner._buffers[copy.name] for copy in state]
    for copy in state:
        copy.owner._buffers[copy.name] = copy.content
    try:
        yield
    finally:
        for copy, buffer in zip(state, real, strict=True):
            copy.owner._buffers[copy.name] = buffer
