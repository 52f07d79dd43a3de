"""Exact bytes of live tensors, rank by rank, while a pipeline runs.

Every tensor that an operation takes or returns is looked at, its memory is noted once, and a finalizer subtracts it
when that is really freed, wherever that happens. Memory belongs to the rank that used it last, so what is handed over
without a copy counts for the receiver from then on:

    rank 0   ── output ──╮ still its own
                         ╰──▶ rank 1 takes it in: its from here on

So what a rank keeps and hands on as well is counted once, for whichever of the two used it last.
What an operation allocates and frees inside itself is not seen. Resident memory would also show what allocators keep.
"""

import threading
import weakref
from collections import defaultdict
from collections.abc import Hashable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from headrace.costs import Bytes
from headrace.runtime.pipeline import Pipeline


class Ledger:
    """Who has how many bytes now, and had at most since `restart`.

    Attributes:
        now: bytes by owner.
        peak: the most of them.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()  # finalizers may run in the midst of `see`
        self._owner: dict[int, Hashable] = {}
        self.now: defaultdict[Hashable, int] = defaultdict(int)
        self.peak: defaultdict[Hashable, int] = defaultdict(int)

    def see(self, tensor: Tensor, owner: Hashable) -> None:
        """`owner` has used `tensor`."""
        storage = tensor.untyped_storage()
        size, key = storage.nbytes(), storage._cdata
        if not size:
            return
        with self._lock:
            before = self._owner.get(key)
            if before is None:
                weakref.finalize(storage, self._gone, key, size).atexit = False
            elif before != owner:
                self.now[before] -= size
            if before != owner:
                self._owner[key] = owner
                self.now[owner] += size
                self.peak[owner] = max(self.peak[owner], self.now[owner])

    def _gone(self, key: int, size: int) -> None:
        with self._lock:
            self.now[self._owner.pop(key)] -= size

    def restart(self) -> None:
        """Forget former peaks."""
        with self._lock:
            self.peak = defaultdict(int, self.now)


class Watch(TorchDispatchMode):
    """Shows a ledger all tensors of the operations of the thread that enters it."""

    def __init__(self, ledger: Ledger, owner: Hashable) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._ledger, self._owner = ledger, owner

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in pytree.tree_leaves((args, kwargs, result)):
            if isinstance(leaf, Tensor):
                self._ledger.see(leaf, self._owner)
        return result


@contextmanager
def watched(pipe: Pipeline) -> Iterator[Ledger]:
    """Within it, the ranks of `pipe` that this process runs are watched; they own bytes by their number."""
    ledger = Ledger()
    watches = {rank: ExitStack() for rank in pipe.on_ranks(lambda rank: rank)}
    pipe.on_ranks(lambda rank: watches[rank].enter_context(Watch(ledger, rank)))
    try:
        yield ledger
    finally:
        pipe.on_ranks(lambda rank: watches[rank].close())


def bytes_of_step(pipe: Pipeline, x: Any, y: Any) -> dict[int, Bytes]:
    """For each rank that this process runs, the bytes that a step holds at the most beyond what stays between steps.

    Parameters, gradients (of two steps, which add up in them) and the batch stay; activations, messages and what layers
    need for a moment count.

    Args:
        pipe: takes two steps.
        x, y: a mini-batch, as for `Pipeline.step`.

    Raises:
        ValueError, PipelineFailure: as for `Pipeline.step`.
    """
    with watched(pipe) as ledger:
        pipe.step(x, y)
        ledger.restart()
        stays = dict(ledger.now)
        pipe.step(x, y)
        return {rank: ledger.peak[rank] - stays.get(rank, 0) for rank in pipe.on_ranks(lambda rank: rank)}
