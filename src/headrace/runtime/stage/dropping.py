"""The layers of a stage that drop what they keep for the backward, each by itself, and run again in the backward.

    F      ─▶ layer ─▶ DROPPED ─▶ layer ─▶         kept of it: its input, and the buffers as they were before it
    B, I   ◀─ layer ◀─ ran again, at the moment at which its part of the backward begins

A second run sees what the first one saw: the input, the buffers, random numbers, precision, what a segment carries.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import torch
from torch import nn

from headrace.runtime.process.context import CallerContext
from headrace.runtime.stage.boundary import Value
from headrace.runtime.stage.buffers import BufferState, ChangingBuffers, standing_in
from headrace.runtime.stage.inputs import KeptInput, LayerInput
from headrace.runtime.stage.slots import Slots

Run = Callable[[Value, Slots], Value]
"""From a layer's input to its output."""

_NO_MEMORY: Final[frozenset[int]] = frozenset()


@dataclass
class _Dropped:
    """One layer after its first run."""

    place: int
    kept: KeptInput
    buffers: BufferState


class DroppedLayers:
    """Those of one stage.

    Args:
        layers: by their place in the stage.
        names: of the same, in the unsplit model.
        device: where the stage computes.
    """

    def __init__(self, layers: Mapping[int, nn.Module], names: Mapping[int, str], device: torch.device) -> None:
        self._layers, self._names, self._device = layers, names, device
        self._inputs = {place: LayerInput(name) for place, name in names.items()}
        self._buffers = ChangingBuffers(list(layers.values()))
        self._now: list[_Dropped] = []
        self._mode = 0
        self._context = CallerContext(())
        self._own_memory = _NO_MEMORY

    def __bool__(self) -> bool:
        return bool(self._layers)

    def __contains__(self, place: object) -> bool:
        return place in self._layers

    @contextmanager
    def forward(self, mode: int, own_memory: frozenset[int]) -> Iterator[None]:
        """Around a forward of the stage; `own_memory` are the addresses of its buffers."""
        self._now, self._mode, self._own_memory = [], mode, own_memory
        self._context = CallerContext((self._device.type,))
        before = self._buffers.before_layers(mode)
        try:
            yield
            self._buffers.after_forward(mode, before)
            for each in self._now:
                each.buffers = self._buffers.changing(mode, each.buffers)
                self._inputs[each.place].settle(each.kept, mode)
        finally:
            self._now = []

    def run(self, place: int, value: Value, first: Run, second: Run) -> Value:
        """The output of the layer at `place` for `value`, and nothing kept but what `second` will need."""
        inputs, mode, context = self._inputs[place], self._mode, self._context
        dropped = _Dropped(
            place,
            inputs.keep(value, mode, self._own_memory),
            self._buffers.before_layer(mode, self._layers[place]),
        )
        slots = Slots(self._names[place])
        with slots.first_run():
            result = first(value, slots)
        dropped.kept.wrote = dropped.kept.written
        self._now.append(dropped)

        def again(slots: Slots) -> None:
            inputs.verify(dropped.kept, mode)
            with standing_in(dropped.buffers):
                context.run(lambda: second(dropped.kept.value(), slots))

        slots.then(again)
        return result
