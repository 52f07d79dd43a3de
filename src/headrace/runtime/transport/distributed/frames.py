"""Short messages over a stream socket: a kind, a length, a body."""

import socket
import struct
import threading
from typing import Final

_HEAD: Final = struct.Struct("<cQ")


class Frames:
    """One end of a connection. Any thread may send, one receives."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self._data = bytearray()
        self._sending = threading.Lock()

    def send(self, kind: bytes, body: bytes = b"") -> None:
        """Send a message.

        Raises:
            OSError: the connection is closed.
        """
        with self._sending:
            self.socket.sendall(_HEAD.pack(kind, len(body)) + body)

    def receive(self) -> tuple[bytes, bytes]:
        """Wait for a message: its kind and body.

        Raises:
            OSError: the connection is closed.
        """
        while (found := self.next()) is None:
            self.read()
        return found

    def read(self) -> None:
        """Wait for data, for `next` to find messages in.

        Raises:
            OSError: the connection is closed.
        """
        data = self.socket.recv(1 << 16)
        if not data:
            raise ConnectionResetError("closed by the other end")
        self._data += data

    def next(self) -> tuple[bytes, bytes] | None:
        """The next message, if all of it has come."""
        if len(self._data) < _HEAD.size:
            return None
        kind, length = _HEAD.unpack_from(self._data)
        end = _HEAD.size + length
        if len(self._data) < end:
            return None
        body = bytes(memoryview(self._data)[_HEAD.size : end])
        del self._data[:end]
        return kind, body

    def close(self) -> None:
        """Close the connection."""
        self.socket.close()
