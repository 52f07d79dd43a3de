"""Count the bytes that a layer makes and keeps: after its forward, after the first half of its backward, at the most.

Every operation passes by on its way to the kernel, and what it made is counted as long as its memory is alive:

    bytes     ╭─╮ the most                          ╭─╮
            ╭─╯ ╰──────── activations ──────────────╯ ╰──── for_weight ────╮
    ────────╯ F                                       I                    ╰──── W

So whatever a layer does, also checkpointing or a custom function, is counted as it is.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from headrace.costs import Bytes


@dataclass(frozen=True)
class Held:
    """Bytes of one layer for one micro-batch.

    Attributes:
        activations: alive after F, what the layer received included if it is kept, what it handed on only if kept.
        for_weight: alive after I.
        output: of what it hands on.
        transient: alive at the most at any time, beyond the above.
        keeps_input, keeps_output: how many of the bytes that it received, or handed on, are among the activations.
        input_for_weight: how many of the bytes that it received are alive after I.
        passed: how many of the bytes that it received it hands on, without keeping them: a view, say.
    """

    activations: Bytes
    for_weight: Bytes
    output: Bytes
    transient: Bytes
    keeps_input: Bytes
    keeps_output: Bytes
    input_for_weight: Bytes
    passed: Bytes


class LiveBytes(TorchDispatchMode):
    """Counts memory that operations made since it was entered and that is still alive."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._made: dict[int, tuple[StorageWeakRef, int]] = {}
        self._there: set[int] = set()
        self.peak = 0

    def ignore(self, tensors: list[Tensor]) -> None:
        """Do not count the memory of `tensors`, which is not the layer's."""
        for tensor in tensors:
            if tensor.layout is torch.strided:
                self._there.add(tensor.untyped_storage()._cdata)
                self._made.pop(tensor.untyped_storage()._cdata, None)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        new = False
        for tensor in pytree.tree_leaves(result):
            if isinstance(tensor, Tensor) and tensor.layout is torch.strided:
                storage = tensor.untyped_storage()
                known = self._made.get(storage._cdata)
                if storage._cdata not in self._there and (known is None or known[0].expired()):
                    self._made[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())
                    new = True
        if new:
            self.peak = max(self.peak, self.live)
        return result

    def restart(self) -> Bytes:
        """The most bytes that were alive since the last time."""
        peak, self.peak = self.peak, self.live
        return peak

    @property
    def live(self) -> int:
        """Bytes that are alive now."""
        dead = [address for address, (reference, _) in self._made.items() if reference.expired()]
        for address in dead:
            del self._made[address]
        return sum(size for _, size in self._made.values())


def bytes_of(tensors: list[Tensor]) -> int:
    """The memory of `tensors`, shared parts once."""
    storages = [t.untyped_storage() for t in tensors if t.layout is torch.strided]
    return sum({storage._cdata: storage.nbytes() for storage in storages}.values())


def alive(references: list[tuple[StorageWeakRef, int]]) -> int:
    """How many bytes of these are alive."""
    return sum(size for reference, size in references if not reference.expired())


def watched(tensors: list[Tensor]) -> list[tuple[StorageWeakRef, int]]:
    """References to the memory of `tensors` that do not keep it alive."""
    storages = {t.untyped_storage()._cdata: t.untyped_storage() for t in tensors if t.layout is torch.strided}
    return [(StorageWeakRef(storage), storage.nbytes()) for storage in storages.values()]
