"""A recompute must see the buffers that the first run saw, and must not change them a second time.

BatchNorm counts a batch in its running statistics, spectral norm turns its vectors, an EMA moves: all of that happens
once, in F. For R, copies from before that F stand in their place:

    F   buffers b₀ → b₁      keep a copy of b₀
    …   other micro-batches      → b₄
    R   the copy of b₀ stands in for b₄; afterwards b₄ is back, untouched

Which buffers a stage changes is learned by comparing all of them around its first forward; only those are copied later.
One that starts to change only then is noticed by its version, and the step is refused once.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class _Copy:
    owner: nn.Module
    name: str
    content: Tensor | None

    @property
    def changed(self) -> bool:
        now = self.owner._buffers[self.name]
        if now is None or self.content is None:
            return now is not self.content
        return now.shape != self.content.shape or not torch.equal(now, self.content)


BufferState = tuple[_Copy, ...]


class ChangingBuffers:
    """The buffers of one stage that its forward changes, learned once per mode (training, evaluation)."""

    def __init__(self, layers: Sequence[nn.Module]) -> None:
        modules = dict.fromkeys(module for layer in layers for module in layer.modules())
        self._all = [(module, name) for module in modules for name in module._buffers]
        self._changing: dict[int, list[tuple[nn.Module, str]]] = {}
        self._versions: list[int] = []

    def before_forward(self, mode: int) -> BufferState:
        """Copies of what the coming F may change."""
        self._versions = self._versions_of_others(mode)
        return _copies(self._changing.get(mode, self._all))

    def before_layers(self, mode: int) -> BufferState:
        """The same where each layer runs again by itself, from copies of its own: only what there is to learn from."""
        self._versions = self._versions_of_others(mode)
        return () if mode in self._changing else _copies(self._all)

    def before_layer(self, mode: int, layer: nn.Module) -> BufferState:
        """Copies of what the coming F, or another layer in it, may change of `layer`."""
        changing = self._changing.get(mode, self._all)
        mine = set(layer.modules()) if changing else ()
        return _copies([(owner, name) for owner, name in changing if owner in mine])

    def after_forward(self, mode: int, before: BufferState) -> BufferState:
        """What of `before` an R will need.

        Raises:
            RuntimeError: a buffer changed that had not changed in the first forward, so there is no copy of it.
        """
        if mode in self._changing:
            if self._versions != self._versions_of_others(mode):
                del self._changing[mode]
                raise RuntimeError(
                    "a buffer was changed that had not changed in the first forward, so a recompute could not see what "
                    "it was: repeat the step (from now on it is copied), or train this model with recompute='never'"
                )
            return before
        changed = tuple(copy for copy in before if copy.changed)
        self._changing[mode] = [(copy.owner, copy.name) for copy in changed]
        return changed

    def _versions_of_others(self, mode: int) -> list[int]:
        """One per buffer that is not copied: it grows when the buffer is written to, and differs for another one."""
        copied = set(self._changing.get(mode, self._all))
        others = (owner._buffers[name] for owner, name in self._all if (owner, name) not in copied)
        return [-1 if buffer is None else id(buffer) + buffer._version for buffer in others]


def _copies(buffers: Iterable[tuple[nn.Module, str]]) -> BufferState:
    return tuple(
        _Copy(owner, name, None if (buffer := owner._buffers[name]) is None else buffer.detach().clone())
        for owner, name in buffers
    )


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
