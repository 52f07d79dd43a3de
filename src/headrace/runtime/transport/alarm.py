"""When one process fails, all of them hear the first cause, within milliseconds and before anybody is gone.

Each pipeline has a small key-value store of its own, served by rank 0. A thread in every process waits there for a key
that brings news for it; whoever fails first sets those of all, and leaves only once they have heard:

    rank 2   raises ──▶ set "news 0", "news 1" … ─▶ wait until all have heard ──▶ raise
    rank 0   … waits for a message … ◀── woken by its watching thread ──▶ raise the same cause
"""

import os
import pickle
import threading
import time
from datetime import timedelta
from typing import Any, Final

from torch.distributed import TCPStore  # type: ignore[attr-defined]

from headrace.runtime.failure import PipelineFailure

_FAILURE: Final = "failure"
_HEARD: Final = "heard"
_CLOSED: Final = "closed"
_PATIENCE: Final = 2.0
"""Seconds to wait for others to hear a failure, or for a cause better than "the connection closed"."""


class Alarm:
    """Knows whether any process has failed.

    Args:
        store: for this thread.
        watched: another connection to the same store, for the thread that waits.
        rank: of this process.
        processes: how many there are.

    Attributes:
        bell: a file descriptor that becomes readable when there is a failure, and stays so.
    """

    def __init__(self, store: TCPStore, watched: TCPStore, rank: int, processes: int) -> None:
        self.bell, self._striker = os.pipe()
        self._store = store
        self._rank = rank
        self._processes = processes
        self._failure: PipelineFailure | None = None
        self._heard = threading.Event()
        self._thread = threading.Thread(target=self._watch, args=(watched,), name="headrace alarm", daemon=True)
        self._thread.start()

    def raise_if_rung(self) -> None:
        """Raise the failure, if there is one."""
        if self._failure is not None:
            raise self._failure

    def ring(self, failure: PipelineFailure) -> PipelineFailure:
        """Tell everybody of a failure of this process; returns the first failure, which may be another one's."""
        news: Any = pickle.dumps(failure)  # bytes; torch's annotation says str
        try:
            first = pickle.loads(self._store.compare_set(_FAILURE, "", news))
        except RuntimeError:  # the store is gone with rank 0, so others see their connections close
            return self._hear(failure)
        if (first.rank, first.what) != (failure.rank, failure.what):
            return self._hear(first)
        self._hear(failure)
        for rank in range(self._processes):
            self._store.set(f"news {rank}", news)
        self._wait_for_all(_HEARD)
        return failure

    def close(self) -> None:
        """End the watching thread; the process that serves the store waits a moment for the others."""
        try:
            nothing: Any = pickle.dumps(None)
            self._store.set(f"news {self._rank}", nothing)
            self._store.add(_CLOSED, 1)
            if self._rank == 0 and self._failure is None:
                self._wait_for_all(_CLOSED)
            self._thread.join(_PATIENCE)
        except RuntimeError:  # rank 0 is gone already, and the store with it
            return

    def lost(self, rank: int) -> PipelineFailure:
        """The failure to raise when the connection to `rank` closed: its cause, if it left one."""
        return self.broken(rank, f"its process is gone: rank {self._rank} lost the connection to it")

    def broken(self, rank: int, what: str) -> PipelineFailure:
        """The failure to raise when something broke that `rank` is part of: the cause, if one is heard soon."""
        self._heard.wait(_PATIENCE / 2)
        return self._failure or self.ring(PipelineFailure(rank, None, what))

    def _hear(self, failure: PipelineFailure) -> PipelineFailure:
        if self._failure is None:
            self._failure = failure
            os.write(self._striker, b"!")
            self._heard.set()
        return self._failure

    def _wait_for_all(self, counter: str) -> None:
        deadline = time.monotonic() + _PATIENCE
        while time.monotonic() < deadline and self._store.add(counter, 0) < self._processes:
            time.sleep(0.01)

    def _watch(self, store: TCPStore) -> None:
        mine = f"news {self._rank}"
        try:
            store.wait([mine], timedelta(days=365))
            failure = pickle.loads(store.get(mine))
            if failure is not None:
                self._hear(failure)
                store.add(_HEARD, 1)
        except RuntimeError:  # rank 0 ended without a word: closed connections will tell
            return
