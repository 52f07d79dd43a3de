"""What one segment of a sequence leaves on a stage for the next: the keys and values of attention, say.

Schedules with segments (Seq1F1B) cut the sequences of a causal model. A layer that looks back says so itself:

    class Attention(nn.Module):
        def forward(self, x):
            q, k, v = self.qkv(x).chunk(3, -1)
            past = carry.take(self)                  # of the segments before this one; None in the first
            if past is not None:
                k, v = torch.cat([past[0], k], 1), torch.cat([past[1], v], 1)
            carry.put(self, (k, v))                  # for the segments after this one
            ...

Where sequences are whole, `take` gives None and `put` does nothing, so the same layer works everywhere.

    F  segment 0 ──(k, v)──▶ segment 1 ──(k, v)──▶ segment 2      each with a graph of its own, cut off there
    B  segment 0 ◀──grads── segment 1 ◀──grads── segment 2        so backwards run in reverse order
"""

import threading
from collections.abc import Mapping
from types import TracebackType
from typing import cast

from torch import Tensor, nn
from torch.autograd.graph import GradientEdge

from headrace.runtime.stage.boundary import Parcel, Skeleton, Value, take_apart
from headrace.runtime.stage.gradients import Gradients, Source, edges

_CURRENT = threading.local()

Key = tuple[nn.Module, int]
"""A layer, and which of its calls within one forward this is about."""


def take(layer: nn.Module) -> Value | None:
    """What `layer` put for the next segment when it ran on the segment before.

    A layer that is called several times in one forward gets back what it put in the same call.

    Returns:
        The same nest, its tensors starts of a graph of their own; None in the first segment, and where sequences are
        whole.
    """
    carrier = cast("Carrier | None", getattr(_CURRENT, "carrier", None))
    return None if carrier is None else carrier.take(layer)


def put(layer: nn.Module, value: Value) -> None:
    """Leave `value`, any nest with tensors, for the next segment; it must not be written to afterwards.

    Raises:
        TypeError: it contains something that cannot pass a boundary.
    """
    carrier = cast("Carrier | None", getattr(_CURRENT, "carrier", None))
    if carrier is not None:
        carrier.put(layer, value)


class Carrier:
    """What is carried into and out of one forward of a stage on one segment; a context around that forward.

    Args:
        incoming: what the segment before left.
    """

    def __init__(self, incoming: Mapping[Key, Parcel]) -> None:
        self.incoming = incoming
        self._sources: list[Source] = []
        self._opened: dict[Key, Value] = {}
        self._outgoing: dict[Key, tuple[tuple[Tensor, ...], Skeleton]] = {}
        self._calls: dict[nn.Module, int] = {}
        for key, parcel in incoming.items():
            source = Source()
            self._sources.append(source)
            self._opened[key] = parcel.skeleton.build(source.open(parcel.tensors, parcel.needs_grad))

    def again(self) -> "Carrier":
        """One for a layer that will run now and once more later: it gives what this one gives from here on."""
        carrier = Carrier({})
        carrier._opened, carrier._calls = self._opened, dict(self._calls)
        return carrier

    def __enter__(self) -> "Carrier":
        _CURRENT.carrier = self
        return self

    def __exit__(self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None) -> None:
        _CURRENT.carrier = None

    def take(self, layer: nn.Module) -> Value | None:
        return self._opened.get((layer, self._calls.get(layer, 0)))

    def put(self, layer: nn.Module, value: Value) -> None:
        call = self._calls.get(layer, 0)
        self._calls[layer] = call + 1
        self._outgoing[layer, call] = take_apart(value, f"what {type(layer).__name__} carries to the next segment")

    def outgoing(self) -> dict[Key, Parcel]:
        """What the next segment takes, cut off from this one's graph."""
        return {
            key: Parcel(tuple(t.detach() for t in tensors), tuple(t.requires_grad for t in tensors), skeleton)
            for key, (tensors, skeleton) in self._outgoing.items()
        }

    def roots(self) -> tuple[GradientEdge | None, ...]:
        """The edges at which gradients from the next segment enter."""
        return edges([t for tensors, _ in self._outgoing.values() for t in tensors])

    @property
    def count(self) -> int:
        """How many `roots` there are."""
        return sum(len(tensors) for tensors, _ in self._outgoing.values())

    def gradients(self) -> Gradients:
        """After the backward: what enters at the `roots` of the segment before."""
        return tuple(gradient for source in self._sources for gradient in source.gradients())
