"""What autograd keeps of one layer's forward: dropped at its end, and there again when the backward asks for it.

    F      op ─▶ ○   op ─▶ ○     each tensor that an operation saves goes into a slot; at the end all slots are emptied
    B, I   op ◀─ ●   op ◀─ ●     the first empty slot that is asked for makes the layer run again, which fills them all
    W                op ◀─ ●     a slot lives as long as its operation does: what W needs stays until then

The graph stays that of the first run. So gradients arrive and add up as without recompute, to the last bit, also where
layers share a weight; hooks hear of them once, and a split backward takes in each half what that half needs.

Not by torch.utils.checkpoint (use_reentrant=False), which would run the layer again for each half, and ends a second
run with the last tensor saved: too early where a function writes to what it has saved, as rrelu does to its noise.
"""

import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks


class Slot:
    """Where a saved tensor is, or was and will be."""

    __slots__ = ("__weakref__", "slots", "tensor", "version")

    def __init__(self, slots: "Slots", tensor: Tensor) -> None:
        self.slots = slots
        self.tensor: Tensor | None = tensor
        self.version: int | None = None


class Slots:
    """All slots of one run of one layer, in the order in which its operations saved.

    Args:
        layer: its name.
    """

    def __init__(self, layer: str) -> None:
        self._layer = layer
        self._slots: list[weakref.ref[Slot]] = []  # operations own them
        self._kinds: list[tuple[torch.Size, torch.dtype]] = []
        self._again: Callable[[Slots], None] | None = None
        self._filled: int | None = None
        self._lock = threading.Lock()  # a backward over two kinds of devices asks in two threads

    @contextmanager
    def first_run(self) -> Iterator[None]:
        """Around the layer's forward."""
        with saved_tensors_hooks(self.pack, _unpack):
            yield
        for reference in self._slots:
            slot = reference()
            if slot is not None:
                slot.tensor = None

    def then(self, again: "Callable[[Slots], None]") -> None:
        """What runs the layer again, with these slots; it is dropped, with all that it holds, once it was called."""
        self._again = again

    def pack(self, tensor: Tensor) -> Slot | Tensor:
        """Autograd saves `tensor`: in a new slot in the first run, in its old one in the second."""
        if self._filled is None:
            slot = Slot(self, tensor)
            self._slots.append(weakref.ref(slot))
            self._kinds.append((tensor.shape, tensor.dtype))
            return slot
        place, self._filled = self._filled, self._filled + 1
        if place >= len(self._slots) or self._kinds[place] != (tensor.shape, tensor.dtype):
            raise self._differs()
        saved, slot_or_none = tensor.detach(), self._slots[place]()
        if slot_or_none is not None:
            slot_or_none.tensor, slot_or_none.version = saved, saved._version
        return saved

    def fill(self) -> None:
        """Run the layer again, unless another thread did meanwhile."""
        with self._lock:
            again, self._again = self._again, None
            if again is None:
                return
            self._filled = 0
            with saved_tensors_hooks(self.pack, _unpack):
                again(self)
            if self._filled != len(self._slots):
                raise self._differs()

    def _differs(self) -> RuntimeError:
        return RuntimeError(
            f"layer {self._layer} saved other tensors for its backward when it ran again than in its forward, so what "
            "it does depends on something that a recompute cannot repeat (Python's random, an attribute that it "
            "changes): leave it out of recompute="
        )

    def spoilt(self) -> RuntimeError:
        """What to raise where a saved tensor was written to."""
        return RuntimeError(
            f"layer {self._layer} writes in place to a tensor that its own backward needs: take inplace=True away"
        )


def _unpack(saved: Slot | Tensor) -> Tensor:
    if isinstance(saved, Tensor):
        return saved
    if saved.tensor is None:
        saved.slots.fill()
    tensor = saved.tensor
    if tensor is None:
        raise RuntimeError("a backward ran on after a layer had failed to run again")
    if saved.version is not None and tensor._version != saved.version:
        raise saved.slots.spoilt()
    return tensor
