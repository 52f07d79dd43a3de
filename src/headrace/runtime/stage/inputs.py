"""What comes in belongs to others as well: to the user's batch, to the graph of the stage before, to a recompute.

    stage    layers that write to their input in place get a copy of it
    layer    one that will run again keeps its input as it was: a copy where somebody writes to the original

Whether anybody writes is learned from the first run, for which all is copied, once per mode (training, evaluation).
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from headrace.runtime.stage.boundary import Parcel, Value, take_apart
from headrace.runtime.stage.gradients import Source

_ALIGNMENT: Final = 64  # bytes: torch allocates at multiples of it


class StageInput:
    """The input of a stage, safe to write to.

    Args:
        stage: its number.
    """

    def __init__(self, stage: int) -> None:
        self._stage = stage
        self._written: dict[int, bool] = {}

    def safe(self, tensors: tuple[Tensor, ...], mode: int) -> tuple[tuple[Tensor, ...], Callable[[], None]]:
        """Tensors that the layers may write to in place, and a check to run afterwards."""
        if torch.is_inference_mode_enabled() or any(t.is_inference() for t in tensors):
            return tuple(map(_twin, tensors)), _nothing
        if self._written.get(mode, True):
            copies = tuple(map(_twin, tensors))
            fresh = [t._version for t in copies]

            def learn() -> None:
                wrote = fresh != [t._version for t in copies]
                if wrote and _overlap(tensors):
                    raise RuntimeError(
                        f"stage {self._stage} writes in place to its input, whose tensors share memory: unsplit, the "
                        "write would show in both, but after a cut it does not. Take inplace=True away from its first "
                        "layers, or hand on copies"
                    )
                self._written[mode] = self._written.get(mode, False) or wrote

            return copies, learn
        versions = [t._version for t in tensors]

        def verify() -> None:
            if versions != [t._version for t in tensors]:
                self._written[mode] = True
                raise RuntimeError(
                    f"stage {self._stage} wrote to its input in place, which it had not done in its first forward, "
                    "so the input was not copied: repeat the step (it is copied from now on), "
                    "or take inplace=True away from its first layers"
                )

        return tensors, verify


@dataclass
class KeptInput:
    """The input of a layer's first run, for its second.

    Attributes:
        parcel: its tensors cut off from the graph.
        copied: whether they are copies.
        originals: by their places in it, the tensors that the first run got, as long as they must not be written to.
        versions: of these.
        wrote: whether the layer itself has written to them.
    """

    parcel: Parcel
    copied: bool
    originals: dict[int, Tensor]
    versions: dict[int, int]
    wrote: bool = False

    @property
    def written(self) -> bool:
        """Whether somebody has written to the originals."""
        return any(t._version != self.versions[place] for place, t in self.originals.items())

    def value(self) -> Value:
        """The same value once more, its tensors starts of a graph."""
        return self.parcel.skeleton.build(Source().open(self.parcel.tensors, self.parcel.needs_grad))


class LayerInput:
    """The inputs of one layer, kept for when it runs again.

    Args:
        layer: its name.
    """

    def __init__(self, layer: str) -> None:
        self._layer = layer
        self._written: dict[int, bool] = {}

    def keep(self, value: Value, mode: int, buffers: Collection[int]) -> KeptInput:
        """`value`, which the layer is about to get; `buffers` are the addresses of memory that may change later.

        Raises:
            TypeError: it contains something that cannot be kept as it is.
        """
        tensors, skeleton = take_apart(value, f"the input of layer {self._layer}, which recompute= names,")
        originals = {place: t.detach() for place, t in enumerate(tensors) if not (buffers and address(t) in buffers)}
        copied = self._written.get(mode, True)
        shared = {} if copied else originals
        mine = tuple(shared[place] if place in shared else _twin(t.detach()) for place, t in enumerate(tensors))
        parcel = Parcel(mine, tuple(t.requires_grad for t in tensors), skeleton)
        return KeptInput(parcel, copied, originals, {place: t._version for place, t in originals.items()})

    def settle(self, kept: KeptInput, mode: int) -> None:
        """At the end of the stage's forward: learn from it, or see that nothing has changed.

        Raises:
            RuntimeError: somebody wrote to an input that was not copied, or that no copy can stand for.
        """
        if not kept.copied:
            self.verify(kept, mode)
        self._written[mode] = self._written.get(mode, False) or kept.written
        if kept.wrote and _overlap(tuple(kept.originals.values())):
            raise RuntimeError(
                f"layer {self._layer}, which recompute= names, writes in place to its input, whose tensors share "
                "memory, so that it could not be kept for a second run: take inplace=True away from this layer, or "
                "leave it out of recompute="
            )
        if kept.copied:
            kept.originals = {}

    def verify(self, kept: KeptInput, mode: int) -> None:
        """Before the second run, and where nothing was copied.

        Raises:
            RuntimeError: somebody wrote to an input that was not copied.
        """
        if kept.written:
            self._written[mode] = True
            raise RuntimeError(
                f"the input of layer {self._layer}, which recompute= names, was written to in place, which had not "
                "happened in the first forward, so it was not copied: repeat the step (it is copied from now on), "
                "or leave this layer out of recompute="
            )


def address(tensor: Tensor) -> int:
    """Of its memory; 0 for tensors that have no single one."""
    return tensor.untyped_storage().data_ptr() if tensor.layout is torch.strided else 0


def _twin(tensor: Tensor) -> Tensor:
    """A copy with the strides and the alignment of the original, on which kernels round alike."""
    if tensor.layout is not torch.strided or not tensor.numel():
        return tensor.clone()
    lead = tensor.data_ptr() % _ALIGNMENT // tensor.element_size()
    extent = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    memory = tensor.new_empty(lead + extent)
    memory[lead:].copy_(tensor.as_strided((extent,), (1,)))
    return memory.as_strided(tensor.shape, tensor.stride(), lead)


def _overlap(tensors: tuple[Tensor, ...]) -> bool:
    """Whether two of them may share memory."""
    addresses = [address(t) for t in tensors if t.numel()]
    return len(set(addresses)) < len(addresses)


def _nothing() -> None:
    return None
