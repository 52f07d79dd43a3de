"""Count what operations do while they run on tensors without data: FLOPs, bytes moved, bytes alive.

FLOPs come from the formulas of torch's own counter (`torch.utils.flop_counter`): products and convolutions count, a
multiplication and an addition as two; attention counts all pairs of positions, masked or not. All else is free of
FLOPs, so its price is the bytes that it moves: each operation reads its operands and writes its results once, as where
nothing is fused. A view moves nothing.
"""

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count

from headrace.costs import Bytes

_ATEN = torch.ops.aten


class Work(NamedTuple):
    """What a part of a layer does: FLOPs, and bytes read and written."""

    flops: int = 0
    moved: Bytes = 0

    def plus(self, other: "Work") -> "Work":
        """Both."""
        return Work(self.flops + other.flops, self.moved + other.moved)

    def minus(self, part: "Work") -> "Work":
        """What is left without `part` of it."""
        return Work(max(self.flops - part.flops, 0), max(self.moved - part.moved, 0))


Birth = tuple[str, int, int]
"""Where a storage came from, the same in every run of a layer: ("op", which operation, which result), say."""


class Ledger(TorchDispatchMode):
    """Within, every operation is entered.

    Attributes:
        work: of all operations so far.
        live: bytes of the storages that operations made and that are still there.
        peak: the most that `live` has been since `restart`.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.work = Work()
        self.peak: Bytes = 0
        self._births: dict[StorageWeakRef, Birth] = {}
        self._made: list[tuple[StorageWeakRef, int]] = []
        self._operations = 0

    def name(self, tensors: Any, kind: str) -> None:
        """Know the storages of `tensors`, which no operation made, as (kind, place, 0)."""
        for place, tensor in enumerate(tensors):
            self._births.setdefault(StorageWeakRef(tensor.untyped_storage()), (kind, place, 0))

    def birth(self, tensor: Tensor) -> Birth:
        """Where the storage of `tensor` came from; a stranger is a constant of the layer's own."""
        return self._births.get(StorageWeakRef(tensor.untyped_storage()), ("constant", 0, 0))

    def restart(self) -> Work:
        """Begin anew; returns the work since the last time."""
        done, self.work = self.work, Work()
        self.peak = self.live
        return done

    @property
    def live(self) -> Bytes:
        self._made = [(storage, size) for storage, size in self._made if not storage.expired()]
        return sum(size for _, size in self._made)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if func.namespace == "prim":
            return result
        results = _tensors(result)
        if not results:
            return result
        operands = _tensors((args, kwargs))
        known = {StorageWeakRef(tensor.untyped_storage()) for tensor in operands}
        self._operations += 1
        fresh = 0
        for place, tensor in enumerate(results):
            storage = StorageWeakRef(tensor.untyped_storage())
            if storage not in known and storage not in self._births:
                self._births[storage] = ("op", self._operations, place)
                self._made.append((storage, tensor.untyped_storage().nbytes()))
                fresh += 1
        self.peak = max(self.peak, self.live)
        if fresh or func._schema.is_mutable:
            packet = func._overloadpacket
            formula = _FORMULAS.get(packet) or flop_registry.get(packet)
            flops = formula(*args, **kwargs, out_val=result) if formula is not None else 0
            # a lookup reads as much as it writes, not the whole table
            read = results if packet is _ATEN.embedding else operands
            self.work = self.work.plus(Work(flops, sum(map(_size, read)) + sum(map(_size, results))))
        return result


def _tensors(value: Any) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, Tensor)]


def _size(tensor: Tensor) -> int:
    """Bytes that reading it takes; an expanded tensor has more numbers than memory."""
    return int(min(tensor.numel() * tensor.element_size(), tensor.untyped_storage().nbytes()))


def _attention(query: Tensor, key: Tensor, value: Tensor, *_: Any, **__: Any) -> int:
    return int(sdpa_flop_count(query.shape, key.shape, value.shape))


def _attention_backward(gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, *_: Any, **__: Any) -> int:
    return int(sdpa_backward_flop_count(gradient.shape, query.shape, key.shape, value.shape))


_FORMULAS: Final[dict[Any, Callable[..., int]]] = {  # torch's counter leaves out the CPU's fused attention
    _ATEN._scaled_dot_product_flash_attention_for_cpu: _attention,
    _ATEN._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward,
}
