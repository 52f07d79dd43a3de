"""When did an action start and end, on the host or on a GPU that runs behind it?

On CUDA the host only queues kernels, so marks are events on the stream, read once the step is over.
"""

import time
from collections.abc import Sequence
from typing import Any, Protocol

import torch


class Clock(Protocol):
    """Marks moments of one rank; `seconds` turns marks into seconds of `time.perf_counter`."""

    def start(self) -> None:
        """Before the first mark of a step."""

    def mark(self) -> Any:
        """Now."""

    def seconds(self, marks: Sequence[Any]) -> list[float]:
        """The marks as seconds, after the step."""


class HostClock:
    """For devices that compute while the host waits: the CPU."""

    mark = staticmethod(time.perf_counter)

    def start(self) -> None:
        """Nothing to prepare."""

    def seconds(self, marks: Sequence[float]) -> list[float]:
        return list(marks)


class CudaClock:
    """For one CUDA device: events on its current stream, related to the host's clock once per step."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._origin: tuple[float, Any] | None = None

    def start(self) -> None:
        torch.cuda.synchronize(self._device)
        self._origin = (time.perf_counter(), self.mark())

    def mark(self) -> Any:
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event

    def seconds(self, marks: Sequence[Any]) -> list[float]:
        if self._origin is None:
            return []
        torch.cuda.synchronize(self._device)
        host, origin = self._origin
        return [host + origin.elapsed_time(mark) / 1e3 for mark in marks]


def clock_for(device: torch.device) -> Clock:
    """The clock that tells the truth about `device`."""
    return CudaClock(device) if device.type == "cuda" else HostClock()
