"""Exact bytes of live tensors, operation by operation; resident memory would also show what allocators keep.

Every tensor that an operation takes or returns is looked at, its storage is noted once, and a finalizer subtracts it
when the storage is really freed, wherever that happens. A storage belongs to the rank that used it last, so what is
handed over without a copy counts for the receiver from then on. What an operation allocates and frees inside itself
is not seen, for any contestant alike.
"""

import threading
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from cases import Case
from contestants import Contestant
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

Owner = str
"""The name of the thread that runs a rank."""


class Ledger:
    """Who has how many bytes now, and had at most since `restart`."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # finalizers may run in the midst of `see`
        self._owner: dict[int, Owner] = {}
        self.now: defaultdict[Owner, int] = defaultdict(int)
        self.peak: defaultdict[Owner, int] = defaultdict(int)

    def see(self, tensor: torch.Tensor, owner: Owner) -> None:
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


class _Watch(TorchDispatchMode):
    """Shows the ledger all tensors of the operations of one thread."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__()
        self._ledger, self._owner = ledger, threading.current_thread().name

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves((args, kwargs, result)):
            if isinstance(leaf, torch.Tensor):
                self._ledger.see(leaf, self._owner)
        return result


@contextmanager
def watching(ledger: Ledger) -> Iterator[None]:
    """Watch this thread and all that are started meanwhile (a dispatch mode sees its own thread only)."""
    life: Callable[[threading.Thread], None] = threading.Thread._bootstrap_inner  # type: ignore[attr-defined]

    def watched(thread: threading.Thread) -> None:
        with _Watch(ledger):
            life(thread)

    threading.Thread._bootstrap_inner = watched  # type: ignore[attr-defined]
    try:
        with _Watch(ledger):
            yield
    finally:
        threading.Thread._bootstrap_inner = life  # type: ignore[attr-defined]


def shared_memory() -> int:
    """Bytes of shared memory that this process maps, each segment once."""
    segments: dict[str, int] = {}
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, _, _, _, inode, *path = line.split(maxsplit=5)
        if path and path[0].startswith(("/dev/shm/", "/memfd:")):
            start, end = (int(bound, 16) for bound in span.split("-"))
            segments[inode] = max(segments.get(inode, 0), end - start)
    return sum(segments.values())


def peaks_of(contestant: Contestant, case: Case, rank: int, ranks: int) -> tuple[dict[Owner, int], int]:
    """Peak bytes of live tensors in a step once it is in its stride, per thread, and bytes of shared memory mapped."""
    ledger = Ledger()
    with watching(ledger):
        step = contestant.prepare(case, rank, ranks)
        for _ in range(2):
            step()
        ledger.restart()
        for _ in range(2):
            step()
        peak, shared = dict(ledger.peak), shared_memory()
        close = getattr(step, "close", None)
        if close is not None:
            close()
    return peak, shared
