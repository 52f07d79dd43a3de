"""Between devices of one process: a message is copied beside the compute of both ends.

    stream of rank a   ─ F0 ─┬─ F1 ─────────
                             │ event
    copy stream of b         └─ copy 0 ─┐
                                        │ event
    stream of rank b                    └─ F0 ─

On one device nothing is copied at all.
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from headrace.runtime.stage.boundary import Parcel


class Carrier:
    """Moves payloads between the devices of ranks."""

    def __init__(self, devices: Sequence[torch.device]) -> None:
        self._devices = list(devices)
        self._copy_streams: list[Any] = [
            torch.cuda.Stream(device) if device.type == "cuda" else None for device in self._devices
        ]

    @contextmanager
    def computing_on(self, rank: int) -> Iterator[None]:
        """Within it, the device of `rank` is the current one."""
        device = self._devices[rank]
        if device.type == "cuda":
            with torch.cuda.device(device):
                yield
        else:
            yield

    def load(self, payload: Any, source: int, destination: int) -> Any:
        """What to hand over: the payload, with an event if its data is still being computed."""
        here, there = self._devices[source], self._devices[destination]
        if here == there:
            return payload
        ready = None
        if here.type == "cuda":
            ready = torch.cuda.Event()
            ready.record(torch.cuda.current_stream(here))
        return _Loaded(payload, ready)

    def unload(self, loaded: Any, rank: int) -> Any:
        """The payload on the device of `rank`, in whose thread this is called."""
        if not isinstance(loaded, _Loaded):
            return loaded
        device = self._devices[rank]
        stream = self._copy_streams[rank]
        if stream is None:
            if loaded.ready is not None:
                loaded.ready.synchronize()
            return moved(loaded.payload, lambda t: t.to(device))
        compute = torch.cuda.current_stream(device)

        def copy(tensor: Tensor) -> Tensor:
            result = tensor.to(device, non_blocking=True)
            result.record_stream(compute)
            if tensor.is_cuda:
                tensor.record_stream(stream)
            return result

        with torch.cuda.stream(stream):
            if loaded.ready is not None:
                stream.wait_event(loaded.ready)
            payload = moved(loaded.payload, copy)
        compute.wait_stream(stream)
        return payload


@dataclasses.dataclass(frozen=True)
class _Loaded:
    payload: Any
    ready: Any


def moved(payload: Any, move: Callable[[Tensor], Tensor]) -> Any:
    """The payload, a parcel or gradients, with each tensor moved."""
    if isinstance(payload, Parcel):
        return dataclasses.replace(payload, tensors=tuple(map(move, payload.tensors)))
    return tuple(None if t is None else move(t) for t in payload)
