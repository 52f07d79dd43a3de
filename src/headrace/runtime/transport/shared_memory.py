"""Links between processes of one host that compute on CPUs: small messages through a socket, large ones through memory.

    ≤ 32 KiB     one frame of a Unix socket: header and data
    larger       data in a shared block (see `segments`), and a frame that names it

Sending never waits for the socket: what does not fit now leaves while this process waits for something else.
"""

import array
import marshal
import socket
from collections import deque
from typing import Any, Final

from headrace.runtime.transport.alarm import Alarm
from headrace.runtime.transport.inbox import Inbox
from headrace.runtime.transport.segments import OwnSegments, TheirSegments
from headrace.runtime.transport.wire import Packed, piece_at, read_header

_INLINE: Final = 1 << 15
_LARGEST_FRAME: Final = 1 << 17
_MANY_DONE: Final = 4


class SharedMemoryLink:
    """Both directions between this process and the one of `peer`.

    Args:
        peer: its rank.
        connection: a connected Unix socket of type SEQPACKET.
        inbox: where its messages go.
        alarm: asked for the cause when the connection breaks.
    """

    def __init__(self, peer: int, connection: socket.socket, inbox: Inbox, alarm: Alarm) -> None:
        connection.setblocking(False)
        self._peer = peer
        self._connection = connection
        self._inbox = inbox
        self._alarm = alarm
        self._own = OwnSegments()
        self._theirs = TheirSegments()
        self._unsent: deque[tuple[bytes, list[int]]] = deque()
        self._open = True
        inbox.watch(connection.fileno(), self._ready)

    def send(self, packed: Packed) -> None:
        """Send a message; its tensors are free to change when this returns.

        Raises:
            PipelineFailure: the other process is gone.
        """
        self._read()
        if not self._open:
            raise self._alarm.lost(self._peer)
        if packed.size + len(packed.header) <= _INLINE:
            block = bytearray(packed.size)
            _fill(memoryview(block), packed)
            self._send(packed.header, bytes(block))
            return
        segment = self._own.take(packed.size)
        _fill(memoryview(segment.memory), packed)
        descriptors = [] if segment.passed_on else [segment.descriptor]
        segment.passed_on = True
        self._send(packed.header, b"", segment.number, descriptors)

    def finish(self) -> None:
        """Wait until everything has left, and tell the other process which blocks it may fill again."""
        if self._theirs.done and self._open:
            self._send(b"")
        while self._unsent and self._open:
            self._inbox.wait()

    def say_goodbye(self) -> None:
        """Nothing to say: the other process sees the connection close."""

    def close(self) -> None:
        """Close the connection."""
        self._hang_up()
        self._own.close()

    def _send(self, header: bytes, data: bytes = b"", segment: int = -1, descriptors: list[int] | None = None) -> None:
        done = [self._theirs.done.popleft() for _ in range(len(self._theirs.done))]
        self._unsent.append((marshal.dumps((done, header, data, segment)), descriptors or []))
        self._write()

    def _ready(self) -> None:
        self._write()
        self._read()

    def _write(self) -> None:
        before = len(self._unsent)
        try:
            while self._unsent and self._open:
                frame, descriptors = self._unsent[0]
                ancillary: list[Any] = []
                if descriptors:
                    ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
                self._connection.sendmsg([frame], ancillary)
                self._unsent.popleft()
        except BlockingIOError:
            pass
        except OSError:
            self._hang_up()
        if self._open and (bool(self._unsent) or before > 1):
            self._inbox.watch(self._connection.fileno(), self._ready, writable=bool(self._unsent))

    def _read(self) -> None:
        while self._open:
            try:
                frame, ancillary, _, _ = self._connection.recvmsg(_LARGEST_FRAME, socket.CMSG_SPACE(4))
            except BlockingIOError:
                break
            except OSError:
                frame, ancillary = b"", []
            if not frame:
                self._hang_up()
                break
            self._take(frame, ancillary)
        if len(self._theirs.done) >= _MANY_DONE and self._open:
            self._send(b"")

    def _take(self, frame: bytes, ancillary: list[Any]) -> None:
        done, header_bytes, data, segment = marshal.loads(frame)
        for number in done:
            self._own.give_back(number)
        for _, _, content in ancillary:
            self._theirs.add(segment, array.array("i", content)[0])
        if not header_bytes:
            return
        header = read_header(header_bytes)
        block = memoryview(bytearray(data)) if segment < 0 else self._theirs.open(segment)
        pieces = [piece_at(block, layout, start) for layout, start in header.places()]
        self._inbox.keep((header.round, header.message), header.payload(pieces))

    def _hang_up(self) -> None:
        if self._open:
            self._open = False
            self._inbox.unwatch(self._connection.fileno())
            self._connection.close()
            self._inbox.lost(self._peer)


def _fill(block: memoryview, packed: Packed) -> None:
    for piece, (layout, start) in zip(packed.pieces, packed.places, strict=True):
        piece_at(block, layout, start).copy_(piece)
