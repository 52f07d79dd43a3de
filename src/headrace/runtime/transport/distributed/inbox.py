"""Where a process waits for whatever comes next: messages, answers, or bad news.

Everything that can happen is a readable file descriptor, so one poll watches them all, and a wait never outlives a
failure. Threads that receive leave messages by `deliver`.
"""

import os
import select
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from headrace.runtime.transport.distributed.alarm import Alarm
from headrace.schedule.messages import Message

Key = tuple[int, Message]
"""Round and message: a fast neighbour may already send for the next step."""


class Inbox:
    """The incoming messages of one process.

    Args:
        alarm: what ends every wait.
    """

    def __init__(self, alarm: Alarm) -> None:
        self._alarm = alarm
        self._poll = select.poll()
        self._handlers: dict[int, Callable[[], None]] = {}
        self._shelf: dict[Key, Any] = {}
        self._delivered: deque[tuple[Key, Any]] = deque()
        self._lost: set[int] = set()
        self._wake_up, self._waker = os.pipe()
        os.set_blocking(self._wake_up, False)
        os.set_blocking(self._waker, False)
        self._closing = threading.Lock()
        self.watch(alarm.bell, alarm.raise_if_rung)
        self.watch(self._wake_up, self._collect)

    def watch(self, descriptor: int, handler: Callable[[], None], *, writable: bool = False) -> None:
        """Have `handler` called, by whoever waits here, when `descriptor` can be read (or also: written)."""
        self._poll.register(descriptor, select.POLLIN | (select.POLLOUT if writable else 0))
        self._handlers[descriptor] = handler

    def unwatch(self, descriptor: int) -> None:
        """Watch `descriptor` no more."""
        if self._handlers.pop(descriptor, None) is not None:
            self._poll.unregister(descriptor)

    def keep(self, key: Key, payload: Any) -> None:
        """Put a message on the shelf; called by handlers."""
        self._shelf[key] = payload

    def lost(self, rank: int) -> None:
        """Nothing more will come from `rank`, whose connection closed; callable from any thread."""
        self._lost.add(rank)
        self.nudge()

    def deliver(self, key: Key, payload: Any) -> None:
        """Leave a message; called by other threads."""
        self._delivered.append((key, payload))
        self.nudge()

    def nudge(self) -> None:
        """Make whoever waits look again; callable from any thread."""
        with self._closing, suppress(BlockingIOError):  # full: whoever waits will look anyway
            if self._waker >= 0:
                os.write(self._waker, b"!")

    def receive(self, key: Key, source: int) -> Any:
        """Wait for a message from the rank `source`.

        Raises:
            PipelineFailure: a process has failed.
        """
        while key not in self._shelf:
            if source in self._lost and not self._delivered:
                raise self._alarm.lost(source)
            self.wait()
        return self._shelf.pop(key)

    def wait(self, milliseconds: int | None = None) -> None:
        """Wait for anything to happen and handle it."""
        for descriptor, _ in self._poll.poll(milliseconds):
            handler = self._handlers.get(descriptor)
            if handler is not None:
                handler()

    def close(self) -> None:
        """Free the descriptors; nobody waits any more."""
        with self._closing:
            os.close(self._wake_up)
            os.close(self._waker)
            self._waker = -1

    def _collect(self) -> None:
        os.read(self._wake_up, 4096)
        while self._delivered:
            key, payload = self._delivered.popleft()
            self._shelf[key] = payload
