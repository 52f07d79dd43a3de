"""Exchanges between all processes that end when one of them fails, as torch's own would not.

Values are pickled. Most fit into one all-gather of a fixed size; larger ones take a second.
"""

import pickle
import struct
import threading
from typing import Any, Final

import torch
import torch.distributed as dist

from headrace.runtime.transport.alarm import Alarm
from headrace.runtime.transport.inbox import Inbox

_FIXED: Final = 1024
_LENGTH: Final = struct.Struct("<q")


class Collective:
    """All-gathers over one gloo group.

    Args:
        group: a gloo group of all ranks.
        rank: of this process.
        inbox: woken by failures while we wait.
        alarm: asked for the cause when an exchange breaks.
    """

    def __init__(self, group: Any, rank: int, inbox: Inbox, alarm: Alarm) -> None:
        self._group = group
        self._rank = rank
        self._inbox = inbox
        self._alarm = alarm

    def gather(self, value: Any) -> list[Any]:
        """The `value` of every process, by rank.

        Raises:
            PipelineFailure: a process has failed.
        """
        mine = pickle.dumps(value)
        first = (_LENGTH.pack(len(mine)) + mine[: _FIXED - _LENGTH.size]).ljust(_FIXED, b"\0")
        blocks = self._all_gather(first, _FIXED)
        lengths = [_LENGTH.unpack_from(block)[0] for block in blocks]
        fits = _FIXED - _LENGTH.size
        bodies = [block[_LENGTH.size : _LENGTH.size + length] for block, length in zip(blocks, lengths, strict=True)]
        longest = max(lengths)
        if longest > fits:
            rests = self._all_gather(mine[fits:].ljust(longest - fits, b"\0"), longest - fits)
            bodies = [
                body + rest[: max(0, length - fits)] for body, rest, length in zip(bodies, rests, lengths, strict=True)
            ]
        return [pickle.loads(body) for body in bodies]

    def _all_gather(self, data: bytes, size: int) -> list[bytes]:
        mine = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        everywhere = [torch.empty(size, dtype=torch.uint8) for _ in range(dist.get_world_size(self._group))]
        work = dist.all_gather(everywhere, mine, group=self._group, async_op=True)
        done = threading.Event()

        def finished(_: Any) -> None:
            done.set()
            self._inbox.nudge()

        work.get_future().add_done_callback(finished)
        while not done.is_set():
            self._inbox.wait()
        try:
            work.wait()
        except RuntimeError as error:
            raise self._alarm.broken(self._rank, f"an exchange between all processes broke: {error}") from error
        return [tensor.numpy().tobytes() for tensor in everywhere]
