"""Links between processes of one host that compute on CPUs: small messages through a socket, large ones through memory.

    ≤ 32 KiB     one frame of a Unix socket: header and data
    larger       data in a shared block (see `segments`), and a frame that names it

Sending never waits for the socket: what does not fit now leaves while this process waits for something else.
"""

import array
import errno
import marshal
import socket
from collections import deque
from typing import Any, Final

import torch

from headrace.runtime.transport.distributed.alarm import Alarm
from headrace.runtime.transport.distributed.inbox import Inbox
from headrace.runtime.transport.distributed.segments import OwnSegments, Segment, TheirSegments
from headrace.runtime.transport.distributed.wire import Packed, piece_at, read_header

_INLINE: Final = 1 << 15
_LARGEST_FRAME: Final = 1 << 17
_MANY_DONE: Final = 4
_MOST_DONE: Final = 4096
"""So many numbers of blocks fit into a frame beside everything else."""


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
        self._unsent: deque[tuple[bytes, Segment | None]] = deque()
        self._open = True
        self._waits_to_write = False
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
            data = bytearray(packed.size)
            _fill(memoryview(data), packed)
            self._send(packed.header, bytes(data))
            return
        header: bytes | int = packed.header
        end = packed.size
        if len(packed.header) > _INLINE:
            header = len(packed.header)
            end += header
        segment = self._own.take(end)
        _fill(segment.memory, packed)
        if end > packed.size:
            segment.memory[packed.size : end] = packed.header
        self._send(header, packed.size, segment)

    def finish(self) -> None:
        """Wait until everything has left, and tell the other process which blocks it may fill again."""
        while self._theirs.done and self._open:
            self._send(b"")
        while self._unsent and self._open:
            self._inbox.wait()

    def say_goodbye(self) -> None:
        """Nothing to say: the other process sees the connection close."""

    def close(self) -> None:
        """Close the connection."""
        self._hang_up()
        self._own.close()

    def _send(self, header: bytes | int, data: bytes | int = b"", segment: Segment | None = None) -> None:
        """A frame: header and data, or `segment` with so many bytes of data, and the header too if only its length."""
        done = self._theirs.done
        numbers = [done.popleft() for _ in range(min(len(done), _MOST_DONE))]
        number = -1 if segment is None else segment.number
        self._unsent.append((marshal.dumps((numbers, header, data, number)), segment))
        self._write()

    def _ready(self) -> None:
        self._write()
        self._read()

    def _write(self) -> None:
        try:
            while self._unsent and self._open:
                frame, segment = self._unsent[0]
                ancillary: list[Any] = []
                if segment is not None and segment.descriptor is not None:
                    ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [segment.descriptor]))]
                self._connection.sendmsg([frame], ancillary)
                self._unsent.popleft()
                if segment is not None:
                    segment.passed_on()
        except BlockingIOError:
            pass
        except OSError as error:
            if error.errno != errno.ETOOMANYREFS:  # too many descriptors are on their way; otherwise: closed
                self._take_all()
                self._hang_up()
        if self._open and self._waits_to_write != bool(self._unsent):
            self._waits_to_write = bool(self._unsent)
            self._inbox.watch(self._connection.fileno(), self._ready, writable=self._waits_to_write)

    def _read(self) -> None:
        if not self._take_all():
            self._hang_up()
        if len(self._theirs.done) >= _MANY_DONE and self._open:
            self._send(b"")

    def _take_all(self) -> bool:
        """Take what has come; whether more may come."""
        while self._open:
            try:
                frame, ancillary, flags, _ = self._connection.recvmsg(_LARGEST_FRAME, socket.CMSG_SPACE(4))
            except BlockingIOError:
                return True
            except OSError:
                return False
            if not frame:
                return False
            if flags & socket.MSG_CTRUNC:
                raise OSError(errno.EMFILE, "too many open files to take another shared block: raise `ulimit -n`")
            self._take(frame, ancillary)
        return False

    def _take(self, frame: bytes, ancillary: list[Any]) -> None:
        done, header, data, segment = marshal.loads(frame)
        for number in done:
            self._own.give_back(number)
        for _, _, content in ancillary:
            self._theirs.add(segment, array.array("i", content)[0])
        if not header:
            return
        block = _aligned(data) if segment < 0 else self._theirs.open(segment)
        if isinstance(header, int):
            header = bytes(block[data : data + header])
        parsed = read_header(header)
        pieces = [piece_at(block, layout, start) for layout, start in parsed.places()]
        self._inbox.keep((parsed.round, parsed.message), parsed.payload(pieces))

    def _hang_up(self) -> None:
        if self._open:
            self._open = False
            self._inbox.unwatch(self._connection.fileno())
            self._connection.close()
            self._inbox.lost(self._peer)


def _aligned(data: bytes) -> memoryview:
    """The bytes at an address that torch could have chosen."""
    block: Any = torch.empty(len(data), dtype=torch.uint8).numpy()
    view = memoryview(block)
    view[:] = data
    return view


def _fill(block: memoryview, packed: Packed) -> None:
    for piece, (layout, start) in zip(packed.pieces, packed.places, strict=True):
        piece_at(block, layout, start).copy_(piece)
