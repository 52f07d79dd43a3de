"""Exchanges between all processes, over the switchboard; they end when one of the processes fails.

torch's own would neither end then nor let go of their threads.
"""

import io
import pickle
from typing import Any, TypeVar

import torch
from torch import Tensor

from headrace.runtime.failure import PipelineFailure
from headrace.runtime.transport.distributed.alarm import Alarm
from headrace.runtime.transport.distributed.inbox import Inbox

T = TypeVar("T")


class Collective:
    """Gathers values.

    Args:
        alarm: with the line to the switchboard.
        inbox: where to wait.
    """

    def __init__(self, alarm: Alarm, inbox: Inbox) -> None:
        self._alarm = alarm
        self._inbox = inbox
        alarm.on_news = inbox.nudge

    def gather(self, value: T) -> list[T]:
        """The `value` of every process, by rank; tensors arrive on the CPU.

        Raises:
            PipelineFailure: a process has failed. One that failed only afterwards, having heard all values, does not
                count: so a step has succeeded either for all processes or for none.
        """
        self._alarm.contribute(_pickled(value))
        while (parts := self._alarm.gathered()) is None:
            try:
                self._inbox.wait()
            except PipelineFailure:
                parts = self._alarm.gathered()
                if parts is None:
                    raise
                break
        return [pickle.loads(part) for part in parts]


def _pickled(value: Any) -> bytes:
    buffer = io.BytesIO()
    _Pickler(buffer, pickle.HIGHEST_PROTOCOL).dump(value)
    return buffer.getvalue()


class _Pickler(pickle.Pickler):
    """Pickles plain tensors as their bytes: torch would make a file of each."""

    def reducer_override(self, obj: Any) -> Any:
        if type(obj) is not Tensor or obj.layout is not torch.strided or obj.is_quantized:
            return NotImplemented
        plain = obj.detach().cpu().resolve_conj().resolve_neg().contiguous()
        flat = plain.as_strided((plain.numel(),), (1,)).view(torch.uint8)
        return _tensor, (bytearray(flat.numpy()), plain.dtype, tuple(plain.shape))


def _tensor(data: bytearray, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    if not data:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(data, dtype=dtype).reshape(shape)
