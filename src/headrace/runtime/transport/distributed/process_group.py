"""Links over torch.distributed, for ranks on different hosts or on GPUs.

A header goes first, over gloo: fixed in size, so that its receive can be posted long before it comes; a longer one
says so and follows. It tells what is coming, so that the data's receives can be posted too: over the same gloo group on
CPUs, over NCCL on GPUs, where each direction between two ranks has a communicator of its own (a communicator runs its
operations in order, and two directions in one would wait for each other).

    sender     isend(header), isend(data) …           nothing is waited for
    receiver   a thread per channel: recv(header) ─▶ recv(data) ─▶ inbox
"""

import struct
import threading
import time
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor

from headrace.runtime.transport.distributed.alarm import Alarm
from headrace.runtime.transport.distributed.inbox import Inbox
from headrace.runtime.transport.distributed.wire import Header, Packed, read_header

_HEADER: Final = 512
_LENGTH: Final = struct.Struct("<q")
_GOODBYE: Final = -1
_GOODBYE_SECONDS: Final = 1.5

Group = Any


class ProcessGroupLink:
    """Both directions between this process and the one of `peer`.

    Args:
        peer: its rank.
        device: of this rank.
        control: a gloo group of all ranks, for headers and for data on CPUs.
        outgoing, incoming: NCCL groups for data on GPUs; None on CPUs.
        inbox: where its messages go.
        alarm: asked for the cause when the connection breaks.
    """

    def __init__(
        self,
        peer: int,
        device: torch.device,
        control: Group,
        outgoing: Group | None,
        incoming: Group | None,
        inbox: Inbox,
        alarm: Alarm,
    ) -> None:
        self._peer = peer
        self._control = control
        self._outgoing = outgoing or control
        self._alarm = alarm
        self._inbox = inbox
        self._said_goodbye = False
        self._sent = _Sent(inbox)
        receiver = _Receiver(peer, device, control, incoming or control, inbox)
        self._threads = [
            threading.Thread(target=self._sent.run, name=f"headrace to rank {peer}", daemon=True),
            threading.Thread(target=receiver.run, name=f"headrace from rank {peer}", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def send(self, packed: Packed) -> None:
        """Start sending a message; its tensors must not change until `finish`.

        Raises:
            PipelineFailure: the other process is gone.
        """
        try:
            for part in _header_parts(packed.header):
                self._sent.hold(dist.isend(part, self._peer, group=self._control), part)
            for piece in packed.pieces:
                if piece.numel():
                    self._sent.hold(dist.isend(piece, self._peer, group=self._outgoing), piece)
        except RuntimeError:
            raise self._alarm.lost(self._peer) from None

    def finish(self) -> None:
        """Wait until everything has left."""
        while self._sent.under_way:
            self._inbox.wait()

    def say_goodbye(self) -> None:
        """Let the threads of this link end in the other process, as nothing more will come; once is enough."""
        if self._said_goodbye:
            return
        self._said_goodbye = True
        with suppress(RuntimeError):
            part = _header_tensor(_GOODBYE, b"")
            # not by dist.isend: the user may have ended torch.distributed, but the group is still ours
            self._sent.hold(self._control.send([part], self._peer, 0), part)
        self._sent.end()

    def close(self) -> None:
        """Wait for the other side's goodbye: a thread still in gloo when Python ends would abort the process."""
        end = time.monotonic() + _GOODBYE_SECONDS
        for thread in self._threads:
            if thread is not threading.current_thread():  # which may be the one that collects garbage
                thread.join(max(0.0, end - time.monotonic()))


class _Sent:
    """Holds what is being sent until it has left; gloo tells so only to a thread that waits."""

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox
        self._queue: SimpleQueue[tuple[Any, Tensor] | None] = SimpleQueue()
        self._held = 0
        self._gone = 0

    @property
    def under_way(self) -> bool:
        return self._gone < self._held

    def hold(self, work: Any, tensor: Tensor) -> None:
        self._held += 1
        self._queue.put((work, tensor))

    def end(self) -> None:
        self._queue.put(None)

    def run(self) -> None:
        while (item := self._queue.get()) is not None:
            with suppress(RuntimeError):  # the connection closed; whoever waits for that process will notice
                item[0].wait()
            del item
            self._gone += 1
            if not self.under_way:
                self._inbox.nudge()


class _Receiver:
    """Receives the messages of one channel in the order in which they are sent."""

    def __init__(self, source: int, device: torch.device, control: Group, data: Group, inbox: Inbox) -> None:
        self._source = source
        self._device = device
        self._control = control
        self._data = data
        self._inbox = inbox

    def run(self) -> None:
        try:
            while (header := self._header()) is not None:
                payload = header.payload(self._pieces(header))
                self._inbox.deliver((header.round, header.message), payload)
        except (RuntimeError, ValueError):  # the connection closed, or the user has ended torch.distributed
            pass
        self._inbox.lost(self._source)

    def _header(self) -> Header | None:
        first = torch.empty(_HEADER, dtype=torch.uint8)
        dist.recv(first, self._source, group=self._control)
        data = first.numpy().tobytes()
        (length,) = _LENGTH.unpack_from(data)
        if length == _GOODBYE:
            return None
        body = data[_LENGTH.size : _LENGTH.size + length]
        if length > len(body):
            rest = torch.empty(length - len(body), dtype=torch.uint8)
            dist.recv(rest, self._source, group=self._control)
            body += rest.numpy().tobytes()
        return read_header(body)

    def _pieces(self, header: Header) -> list[Tensor]:
        pieces = header.empty(self._device)
        for piece in pieces:
            if piece.numel():
                dist.recv(piece, self._source, group=self._data)
        if self._device.type == "cuda":
            # NCCL's receives are queued on this thread's stream; the stages compute on another one
            torch.cuda.current_stream(self._device).synchronize()
        return pieces


def _header_parts(header: bytes) -> list[Tensor]:
    fits = _HEADER - _LENGTH.size
    parts = [_header_tensor(len(header), header[:fits])]
    if len(header) > fits:
        parts.append(torch.frombuffer(bytearray(header[fits:]), dtype=torch.uint8))
    return parts


def _header_tensor(length: int, body: bytes) -> Tensor:
    return torch.frombuffer(bytearray((_LENGTH.pack(length) + body).ljust(_HEADER, b"\0")), dtype=torch.uint8)
