"""The layers of a stage that drop what they keep for the backward, each by itself, and run again in the backward.

    F      ─▶ layer ─▶ DROPPED ─▶ layer ─▶         kept of it: its input, and the buffers as they were before it
    B, I   ◀─ layer ◀─ ran again, at the moment at which its part of the backward begins

A second run sees what the first one saw: the input, the buffers, random numbers, precision, what a segment carries.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final

import torch
from torch import nn

from headrace.runtime.process.context import CallerContext
from headrace.runtime.stage.boundary import Value
from headrace.runtime.stage.buffers import ChangingBuffers, standing_in
from headrace.runtime.stage.inputs import KeptInput, LayerInput
from headrace.runtime.stage.slots import Slots

Run = Callable[[Value, Slots], Value]
"""From a layer's input to its output."""

_NO_MEMORY: Final[frozenset[int]] = frozenset()


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
        self._now: list[tuple[int, KeptInput]] = []
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
            for place, kept in self._now:
                self._inputs[place].settle(kept, mode)
        finally:
            self._now = []

    def run(self, place: int, value: Value, first: Run, second: Run) -> Value:
        """The output of the layer at `place` for `value`, and nothing kept but what `second` will need."""
        inputs, mode, context = self._inputs[place], self._mode, self._context
        kept = inputs.keep(value, mode, self._own_memory)
        buffers = self._buffers.before_layer(mode, self._layers[place])
        slots = Slots(self._names[place])
        with slots.first_run():
            result = first(value, slots)
        kept.wrote = kept.written
        self._now.append((place, kept))

        def again(slots: Slots) -> None:
            inputs.verify(kept, mode)
            with standing_in(buffers):
                context.run(lambda: second(kept.value(), slots))

        slots.then(again)
        return result
