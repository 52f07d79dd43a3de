"""One stage: its layers, and what it holds for each micro-batch between F and the end of its backward.

                     ┌ keeps: edges of the outputs, Source ─────────────┐
    F   parcel ──▶ layers ──▶ parcel                     B   gradients ─▶ gradients
                     └ or, to recompute: the parcel that came in ─▶ R ──┘

Where the backward is split, I takes B's place and leaves W what `runtime.split` describes. Layers may also recompute
one by one, within B or I: see `dropping`.

A stage knows nothing of ranks, schedules and transports.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge

from headrace.runtime.split.halves import Halves
from headrace.runtime.split.layers import split_layer
from headrace.runtime.stage.boundary import Parcel, Skeleton, Value, take_apart
from headrace.runtime.stage.buffers import BufferState, ChangingBuffers, standing_in
from headrace.runtime.stage.carry import Carrier, Key
from headrace.runtime.stage.dropping import DroppedLayers
from headrace.runtime.stage.gradients import Gradients, Source, backward, edges, nothing_saved
from headrace.runtime.stage.inputs import StageInput, address
from headrace.runtime.stage.randomness import Draws, stream
from headrace.runtime.stage.slots import Slots

Tail = Callable[[Value], Tensor]
"""What follows the last layer of the last stage: the loss of one micro-batch."""

Backward = Callable[[Sequence[GradientEdge | None], Gradients], None]
"""From the edges of outputs and their gradients: a whole backward, or its first half."""


@dataclass(frozen=True)
class _Graph:
    """Ready for the backward."""

    source: Source
    roots: tuple[GradientEdge | None, ...]
    carrier: Carrier
    halves: Halves | None = None


@dataclass(frozen=True)
class _Rerun:
    """Enough to run the forward again."""

    parcel: Parcel
    tail: Tail | None
    seed: int
    buffers: BufferState
    carried: Mapping[Key, Parcel]
    split: bool


@dataclass(frozen=True)
class _Passage:
    """One run of the layers on one micro-batch."""

    micro_batch: int
    seed: int
    tail: Tail | None
    carrier: Carrier
    halves: Halves | None


class Stage:
    """Stage `index` of a model.

    Args:
        index: its number.
        layers: its layers in order, by their names in the unsplit model.
        first_layer: the number of its first layer in the unsplit model.
        device: where it computes.
        draws: where its layers take random numbers from.
        recomputes: names of those of its layers that drop what they keep for the backward, each by itself.
    """

    def __init__(
        self,
        index: int,
        layers: Mapping[str, nn.Module],
        first_layer: int,
        device: torch.device,
        draws: Draws,
        recomputes: Collection[str] = (),
    ) -> None:
        self.index = index
        self.layers = dict(layers)
        self.device = device
        self._names = list(layers)
        self._tail_place = nn.Identity()
        self._own_memory: frozenset[int] = frozenset()
        self._modules = list(layers.values())
        self._first_layer = first_layer
        self._draws = draws
        self._buffers = ChangingBuffers(self._modules)
        self._mode = 0
        self._modes: dict[tuple[bool, ...], int] = {}
        self._input = StageInput(index)
        places = {place: name for place, name in enumerate(layers) if name in recomputes}
        self._dropped = DroppedLayers({place: self._modules[place] for place in places}, places, device)
        self._graphs: dict[int, _Graph] = {}
        self._reruns: dict[int, _Rerun] = {}
        self._halves: dict[int, Halves] = {}
        self.carries = False
        """Whether a layer has left something for the next segment of a sequence."""
        self._segments = 1
        self._carried: dict[int, Mapping[Key, Parcel]] = {}
        self._carried_gradients: dict[int, Gradients] = {}

    def prepare(self, segments: int) -> None:
        """Before the actions of a step, in which micro-batches come in `segments` pieces each.

        Sees which modules are in training mode, as what is learned depends on it.
        """
        self._segments = segments
        flags = tuple(module.training for layer in self._modules for module in layer.modules())
        self._mode = self._modes.setdefault(flags, len(self._modes))
        self._own_memory = frozenset(b.untyped_storage().data_ptr() for layer in self._modules for b in layer.buffers())

    def forward(
        self, k: int, parcel: Parcel, *, seed: int, tail: Tail | None, recompute: bool, split: bool = False
    ) -> Parcel:
        """F of micro-batch k: the parcel for the next stage, its tensors cut off from the graph.

        Keeps what the backward needs, in two halves if `split`, or what R needs if `recompute`; nothing where grad
        mode is off.
        """
        carried = self._carried.pop(k, {})
        carrier, source, halves = Carrier(carried), Source(), Halves() if split and not recompute else None
        passage = _Passage(k, seed, tail, carrier, halves)
        if recompute and torch.is_grad_enabled():
            buffers = self._buffers.before_forward(self._mode)
            with nothing_saved():
                tensors, skeleton = self._run(parcel, source, passage, dropping=False)
            changed = self._buffers.after_forward(self._mode, buffers)
            self._reruns[k] = _Rerun(parcel, tail, seed, changed, carried, split)
        else:
            dropping = bool(self._dropped) and torch.is_grad_enabled()
            tensors, skeleton = self._run(parcel, source, passage, dropping=dropping)
            if torch.is_grad_enabled():
                self._graphs[k] = _Graph(source, (*edges(tensors), *carrier.roots()), carrier, halves)
        if (k + 1) % self._segments:
            self._carried[k + 1] = carrier.outgoing()
            self.carries = self.carries or bool(self._carried[k + 1])
        return self._parcel(tensors, skeleton)

    def recompute(self, k: int) -> None:
        """R: run F again with the same random numbers and buffers, this time keeping what the backward needs."""
        rerun = self._reruns.pop(k)
        carrier, source, halves = Carrier(rerun.carried), Source(), Halves() if rerun.split else None
        with standing_in(rerun.buffers):
            passage = _Passage(k, rerun.seed, rerun.tail, carrier, halves)
            tensors, _ = self._run(rerun.parcel, source, passage, dropping=False)
        self._graphs[k] = _Graph(source, (*edges(tensors), *carrier.roots()), carrier, halves)

    def backward(self, k: int, gradients: Gradients) -> Gradients:
        """B: from gradients of the outputs to gradients of the inputs; parameters accumulate into `.grad`."""
        return self._back(k, gradients, backward)

    def backward_input(self, k: int, gradients: Gradients) -> Gradients:
        """I: what `backward` gives, leaving to W what can wait; all of `backward` if the forward was not split."""
        halves = self._graphs[k].halves
        if halves is None:
            return self.backward(k, gradients)
        self._halves[k] = halves
        return self._back(k, gradients, halves.input_gradients)

    def backward_weight(self, k: int) -> None:
        """W: parameters accumulate into `.grad`; nothing is left to do if the forward was not split."""
        halves = self._halves.pop(k, None)
        if halves is not None:
            with self._draws.backward(self._modules, self._mode):
                halves.weight_gradients()

    def forget(self) -> None:
        """Drop whatever is held, after a failure."""
        self._graphs.clear()
        self._reruns.clear()
        self._halves.clear()
        self._carried.clear()
        self._carried_gradients.clear()

    def _back(self, k: int, gradients: Gradients, run: Backward) -> Gradients:
        """Through the graph of micro-batch k with `run`, which is B or I."""
        graph = self._graphs.pop(k)
        with self._draws.backward(self._modules, self._mode):
            run(graph.roots, self._with_carried(k, graph, gradients))
        self._carried_gradients[k - 1] = graph.carrier.gradients()
        return graph.source.gradients()

    def _with_carried(self, k: int, graph: _Graph, gradients: Gradients) -> Gradients:
        """`gradients` of the outputs, and behind them those of what was carried to the next segment."""
        carried = self._carried_gradients.pop(k, ())
        outputs = len(graph.roots) - graph.carrier.count
        if not carried:
            return (*gradients, *(None,) * graph.carrier.count) if gradients else ()
        return (*(gradients or (None,) * outputs), *carried)

    def _run(
        self, parcel: Parcel, source: Source, passage: _Passage, *, dropping: bool
    ) -> tuple[tuple[Tensor, ...], Skeleton]:
        """Through all layers; if `dropping`, those that recompute one by one keep nothing but their inputs."""
        tensors, written = self._input.safe(parcel.tensors, self._mode)
        value = parcel.skeleton.build(source.open(tensors, parcel.needs_grad))
        dropped = self._dropped.forward(self._mode, self._own_memory) if dropping else nullcontext()
        with self._draws.action(), passage.carrier if self._segments > 1 else nullcontext(), dropped:
            for place in range(len(self._modules)):
                if dropping and place in self._dropped:
                    value = self._dropped_layer(place, value, passage)
                else:
                    value = self._layer(place, value, passage)
        written()
        return take_apart(value, f"the output of stage {self.index}")

    def _layer(self, place: int, value: Value, passage: _Passage, slots: Slots | None = None) -> Value:
        """The layer at `place`, and behind the last one the tail; `slots` take what it saves for its backward."""
        layer, name = self._modules[place], self._names[place]
        seed, k, tail = passage.seed, passage.micro_batch, passage.tail
        with self._draws.layer(layer, self._mode, stream(seed, self._first_layer + place, k)):
            try:
                with split_layer(passage.halves, layer, name, None if slots is None else slots.pack):
                    value = layer(value)
            except Exception as error:
                error.add_note(f"raised by layer {name} ({type(layer).__name__})")
                raise
        if tail is None or place + 1 < len(self._modules):
            return value
        after_last = stream(seed, self._first_layer + len(self._modules), k)
        with self._draws.layer(self._tail_place, self._mode, after_last):
            return tail(value)

    def _dropped_layer(self, place: int, value: Value, passage: _Passage) -> Value:
        """The same, but it will run again in the backward."""
        # a product saves the same, split or not, and only what it saves is of interest in the second run
        again = replace(passage, carrier=passage.carrier.again(), halves=None)

        def second(value: Value, slots: Slots) -> Value:
            with self._draws.rerun(), again.carrier if self._segments > 1 else nullcontext():
                return self._layer(place, value, again, slots)

        return self._dropped.run(place, value, lambda value, slots: self._layer(place, value, passage, slots), second)

    def _parcel(self, tensors: tuple[Tensor, ...], skeleton: Skeleton) -> Parcel:
        # a buffer that is handed on may move before the next stage has read it
        outputs = tuple(
            t.detach().clone() if self._own_memory and address(t) in self._own_memory else t.detach() for t in tensors
        )
        return Parcel(outputs, tuple(t.requires_grad for t in tensors), skeleton)
