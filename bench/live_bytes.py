"""Exact bytes of live tensors of any contestant, operation by operation, by the ledger of `headrace.profiling`.

A storage belongs to the rank that used it last, so what is handed over without a copy counts for the receiver from
then on. What an operation allocates and frees inside itself is not seen, for any contestant alike.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from cases import Case
from contestants import Contestant

from headrace.profiling.rank_bytes import Ledger, Watch

Owner = str
"""The name of the thread that runs a rank."""


@contextmanager
def watching(ledger: Ledger) -> Iterator[None]:
    """Watch this thread and all that are started meanwhile (a dispatch mode sees its own thread only)."""
    life: Callable[[threading.Thread], None] = threading.Thread._bootstrap_inner  # type: ignore[attr-defined]

    def watched(thread: threading.Thread) -> None:
        with Watch(ledger, threading.current_thread().name):
            life(thread)

    threading.Thread._bootstrap_inner = watched  # type: ignore[attr-defined]
    try:
        with Watch(ledger, threading.current_thread().name):
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
        peak, shared = {str(owner): size for owner, size in ledger.peak.items()}, shared_memory()
        close = getattr(step, "close", None)
        if close is not None:
            close()
    return peak, shared
