"""The thread of rank 0 that every process is connected to: it tells all what one has to say, each what all
say, and what time it is there.

torch has key-value stores for such ends, but they look up the name of everybody who connects, which takes seconds where
name servers are slow, and none of them notices that a client is gone.
"""

import hmac
import os
import pickle
import secrets
import selectors
import socket
import struct
import threading
import time
from contextlib import suppress
from typing import Final, NamedTuple

from headrace.runtime.failure import PipelineFailure
from headrace.runtime.transport.distributed.forks import not_for_children
from headrace.runtime.transport.distributed.frames import Frames

JOIN: Final = b"J"
FAILURE: Final = b"F"
HEARD: Final = b"H"
ALL_HEARD: Final = b"A"
BYE: Final = b"B"
GATHER: Final = b"G"
TIME: Final = b"T"
SECONDS: Final = struct.Struct("<d")
_SECONDS: Final = 60.0


class Address(NamedTuple):
    """Where the switchboard is, and what callers must know."""

    host: str
    port: int
    token: bytes


def call(address: Address, rank: int) -> Frames:
    """A line from the process of `rank` to the switchboard.

    Raises:
        OSError: it cannot be reached.
    """
    connection = socket.create_connection((address.host, address.port), _SECONDS)
    line = Frames(_prepared(connection))
    line.send(JOIN, address.token + str(rank).encode())
    return line


class Switchboard:
    """Serves the lines of so many `processes`, and ends when the last of them is gone.

    Attributes:
        address: for `call`.
    """

    def __init__(self, processes: int) -> None:
        host = os.environ.get("MASTER_ADDR") or socket.gethostname()
        self._listener = not_for_children(_listener(host))
        self.address = Address(host, self._listener.getsockname()[1], secrets.token_bytes(16))
        self._expected = processes
        self._lines: dict[int, Frames] = {}
        self._processes = processes
        self._join_by = time.monotonic() + _SECONDS
        self._parts: dict[int, bytes] = {}
        self._left: set[int] = set()
        self._failure: bytes | None = None
        self._deaf: set[int] = set()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        threading.Thread(target=self._run, name="headrace switchboard", daemon=True).start()

    def _run(self) -> None:
        while self._expected or self._lines:
            for key, _ in self._selector.select(1 if self._expected else None):
                if key.fileobj is self._listener:
                    connection = _prepared(self._listener.accept()[0])
                    self._selector.register(connection, selectors.EVENT_READ, Frames(connection))
                else:
                    self._read(key.data)
            if self._expected and time.monotonic() > self._join_by:
                self._expected = 0
                missing = min(set(range(self._processes)) - set(self._lines), default=0)
                self._lose(missing, "its process did not come to make this pipeline")
        self._selector.close()
        self._listener.close()

    def _read(self, line: Frames) -> None:
        try:
            line.read()
            while (frame := line.next()) is not None:
                self._handle(line, *frame)
        except OSError:
            ranks = self._ranks_of(line)
            self._hang_up(line)
            for rank in ranks:
                self._lose(rank, "its process is gone")

    def _handle(self, line: Frames, kind: bytes, body: bytes) -> None:
        if kind == JOIN:
            self._join(line, body)
            return
        for rank in self._ranks_of(line):
            if kind == FAILURE:
                self._spread(body)
            elif kind == HEARD:
                self._deaf.discard(rank)
                self._tell_if_all_heard()
            elif kind == GATHER:
                self._parts[rank] = body
                self._tell_if_gathered()
            elif kind == TIME:
                line.send(TIME, body + SECONDS.pack(time.perf_counter()))
            elif kind == BYE:
                if rank == 0:
                    self._to_all(BYE)
                self._hang_up(line)
                self._left.add(rank)
                self._tell_if_gathered()

    def _join(self, line: Frames, body: bytes) -> None:
        token = self.address.token
        if not hmac.compare_digest(body[: len(token)], token):
            self._hang_up(line)
            return
        self._lines[int(body[len(token) :])] = line
        self._expected -= 1
        if self._failure is not None:
            self._deaf.add(int(body[len(token) :]))
            line.send(FAILURE, self._failure)

    def _spread(self, failure: bytes) -> None:
        if self._failure is None:
            self._failure = failure
            self._deaf = set(self._lines)
            self._to_all(FAILURE, failure)
            self._tell_if_all_heard()

    def _lose(self, rank: int, what: str) -> None:
        self._spread(pickle.dumps(PipelineFailure(rank, None, what)))

    def _tell_if_gathered(self) -> None:
        if self._parts and self._left:
            self._lose(min(self._left), "its process has closed the pipeline, which others still use")
        elif len(self._parts) == self._processes:
            self._to_all(GATHER, pickle.dumps([part for _, part in sorted(self._parts.items())]))
            self._parts.clear()

    def _tell_if_all_heard(self) -> None:
        if self._failure is not None and not self._deaf:
            self._to_all(ALL_HEARD)

    def _to_all(self, kind: bytes, body: bytes = b"") -> None:
        for line in self._lines.values():
            with suppress(OSError):  # a closed line is noticed when it is read
                line.send(kind, body)

    def _hang_up(self, line: Frames) -> None:
        for rank in self._ranks_of(line):
            del self._lines[rank]
            self._deaf.discard(rank)
            self._tell_if_all_heard()
        with suppress(KeyError, ValueError):
            self._selector.unregister(line.socket)
        line.close()

    def _ranks_of(self, line: Frames) -> list[int]:
        """The rank at the other end, if it has joined."""
        return [rank for rank, other in self._lines.items() if other is line]


def _listener(host: str) -> socket.socket:
    family, _, _, _, address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
    try:
        return socket.create_server(address[:2], family=family)
    except OSError:  # a name that others use for this host, but no address of it
        return socket.create_server(("", 0), family=family)


def _prepared(connection: socket.socket) -> socket.socket:
    connection.settimeout(None)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_KEEPIDLE"):  # a host that loses its power is missed within half a minute
        for option, value in ((socket.TCP_KEEPIDLE, 10), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 4)):
            connection.setsockopt(socket.IPPROTO_TCP, option, value)
    return not_for_children(connection)
