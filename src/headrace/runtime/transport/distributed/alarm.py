"""When one process fails, all of them hear the first cause, within milliseconds and before anybody is gone.

Every process keeps a connection to a switchboard, a thread of rank 0, which passes the first failure on to all. It
also notices whose connection closes without a goodbye, so a process that was killed is named to everybody.

    rank 2   raises ──▶ "failure" ──▶ switchboard ──▶ "failure" ──▶ all ranks   (each answers "heard")
             waits ◀─────────────────── "all heard" ◀──┘
    rank 0   … waits for a message … ◀── woken by its listening thread ──▶ raises the same cause

A killed rank 0 takes the switchboard along: then all see their own connection close.
"""

import os
import pickle
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, Final

from headrace.runtime.failure import PipelineFailure
from headrace.runtime.process.alignment import RoundTrip
from headrace.runtime.transport.distributed.switchboard import (
    ALL_HEARD,
    BYE,
    FAILURE,
    GATHER,
    HEARD,
    SECONDS,
    TIME,
    Switchboard,
    call,
)

_PATIENCE: Final = 2.0
"""Seconds to wait for others to hear a failure, or for a cause better than "the connection closed"."""


class Alarm:
    """Knows whether any process has failed.

    Args:
        rank: of this process.
        processes: how many there are; all of them make an Alarm at the same time.
        from_first: gives in every process the value that rank 0 gives to it.

    Attributes:
        bell: a file descriptor that becomes readable when there is a failure, and stays so.
        on_news: called by another thread when `gathered` has something to say.
    """

    def __init__(self, rank: int, processes: int, from_first: Callable[[Any], Any]) -> None:
        self._rank = rank
        self._line = call(from_first(Switchboard(processes).address if rank == 0 else None), rank)
        self.bell, self._striker = os.pipe()
        self._failure: PipelineFailure | None = None
        self._heard = threading.Event()
        self._all_heard = threading.Event()
        self._lock = threading.Lock()
        self._closed = False
        self._gathered: deque[bytes] = deque()
        self._times: SimpleQueue[RoundTrip | None] = SimpleQueue()
        self._line_open = True
        self.on_news: Callable[[], None] = _nothing
        self._thread = threading.Thread(target=self._listen, name="headrace alarm", daemon=True)
        self._thread.start()

    def failure(self) -> PipelineFailure:
        """The failure that there was, to be raised."""
        assert self._failure is not None, "ask only after it was heard"
        return _again(self._failure)

    def raise_if_rung(self) -> None:
        """Raise the failure, if there is one."""
        if self._failure is not None:
            raise self.failure()

    def refuse_if_rung(self) -> None:
        """Raise if there was a failure, for somebody who begins something new."""
        if self._failure is not None:
            note = "This was earlier. The pipeline is over since then: make a new one."
            raise PipelineFailure(self._failure.rank, self._failure.action, f"{self._failure.what}\n{note}")

    def ring(self, failure: PipelineFailure) -> PipelineFailure:
        """Tell everybody of a failure of this process; returns the first failure, which may be another one's."""
        if self._failure is not None:
            return self._failure
        try:
            self._line.send(FAILURE, pickle.dumps(failure))
        except OSError:  # the switchboard is gone with rank 0, as everybody notices
            return self._hear(failure)
        self._heard.wait(_PATIENCE)
        first = self._hear(failure)
        if first == failure:
            self._all_heard.wait(_PATIENCE)
        return first

    def contribute(self, part: bytes) -> None:
        """This process's part of what is to be gathered from all."""
        with suppress(OSError):  # `gathered` tells
            self._line.send(GATHER, part)

    def gathered(self) -> list[bytes] | None:
        """The parts of all processes by rank, once they are there.

        Raises:
            PipelineFailure: they will never be.
        """
        if self._gathered:
            parts: list[bytes] = pickle.loads(self._gathered.popleft())
            return parts
        if not self._line_open:
            raise self.lost(0)
        return None

    def ask_the_time(self) -> RoundTrip:
        """What time it is where the switchboard is, by `time.perf_counter` there.

        Raises:
            PipelineFailure: the switchboard is gone with rank 0.
        """
        with suppress(OSError):  # the listening thread tells
            self._line.send(TIME, SECONDS.pack(time.perf_counter()))
        trip = self._times.get()
        if trip is None:
            self._times.put(None)
            raise self.lost(0)
        return trip

    def close(self) -> None:
        """Say goodbye, and end the listening thread."""
        self._closed = True
        with suppress(OSError):
            self._line.send(BYE)
        if threading.current_thread() is not self._thread:
            self._thread.join(_PATIENCE)
        self._line.close()
        with self._lock:
            os.close(self.bell)
            os.close(self._striker)
            self._striker = -1

    def lost(self, rank: int) -> PipelineFailure:
        """The failure to raise when the connection to `rank` closed: its cause, if it left one."""
        return self.broken(rank, f"its process is gone, or has closed the pipeline: rank {self._rank} lost it")

    def broken(self, rank: int, what: str) -> PipelineFailure:
        """The failure to raise when something broke that `rank` is part of: the cause, if one is heard soon."""
        self._heard.wait(_PATIENCE / 2)
        return self.ring(PipelineFailure(rank, None, what))

    def _hear(self, failure: PipelineFailure) -> PipelineFailure:
        with self._lock:
            if self._failure is None:
                self._failure = _again(failure)
                if self._striker >= 0:
                    os.write(self._striker, b"!")
                self._heard.set()
            return self._failure

    def _listen(self) -> None:
        rank_0_stays = True
        while True:
            try:
                kind, body = self._line.receive()
            except OSError:
                break
            if kind == FAILURE:
                self._hear(pickle.loads(body))
                with suppress(OSError):
                    self._line.send(HEARD)
            elif kind == GATHER:
                self._gathered.append(body)
                self.on_news()
            elif kind == TIME:
                after = time.perf_counter()
                before, theirs = (moment for (moment,) in SECONDS.iter_unpack(body))
                self._times.put(RoundTrip(before, theirs, after))
            elif kind == ALL_HEARD:
                self._all_heard.set()
            elif kind == BYE:
                rank_0_stays = False
                if self._closed:
                    break
        if rank_0_stays and not self._closed:
            self._hear(PipelineFailure(0, None, "its process is gone"))
        self._line_open = False
        self._times.put(None)
        self.on_news()


def _nothing() -> None:
    return None


def _again(failure: PipelineFailure) -> PipelineFailure:
    """The same without traceback and cause: a common object would collect them, and keep alive what they refer to."""
    return PipelineFailure(failure.rank, failure.action, failure.what)
