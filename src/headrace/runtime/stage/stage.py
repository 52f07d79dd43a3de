"""One stage: its layers, and what it holds for each micro-batch between F and the end of its backward.

                     ┌ keeps: edges of the outputs, Source ─────────────┐
    F   parcel ──▶ layers ──▶ parcel                     B   gradients ─▶ gradients
                     └ or, to recompute: the parcel that came in ─▶ R ──┘

Where the backward is split, I takes B's place and leaves W what `runtime.split` describes.

A stage knows nothing of ranks, schedules and transports.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge

from headrace.runtime.split.halves import Halves
from headrace.runtime.split.layers import split_layer
from headrace.runtime.stage.boundary import Parcel, Skeleton, Value, take_apart
from headrace.runtime.stage.buffers import BufferState, ChangingBuffers, standing_in
from headrace.runtime.stage.carry import Carrier, Key
from headrace.runtime.stage.gradients import Gradients, Source, backward, edges, nothing_saved
from headrace.runtime.stage.randomness import Draws, stream

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


class Stage:
    """Stage `index` of a model.

    Args:
        index: its number.
        layers: its layers in order, by their names in the unsplit model.
        first_layer: the number of its first layer in the unsplit model.
        device: where it computes.
        draws: where its layers take random numbers from.
    """

    def __init__(
        self, index: int, layers: Mapping[str, nn.Module], first_layer: int, device: torch.device, draws: Draws
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
        self._writes_input: dict[int, bool] = {}
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
        if recompute and torch.is_grad_enabled():
            buffers = self._buffers.before_forward(self._mode)
            with nothing_saved():
                tensors, skeleton = self._run(k, parcel, source, seed, tail, carrier)
            changed = self._buffers.after_forward(self._mode, buffers)
            self._reruns[k] = _Rerun(parcel, tail, seed, changed, carried, split)
        else:
            tensors, skeleton = self._run(k, parcel, source, seed, tail, carrier, halves)
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
            tensors, _ = self._run(k, rerun.parcel, source, rerun.seed, rerun.tail, carrier, halves)
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
        self,
        k: int,
        parcel: Parcel,
        source: Source,
        seed: int,
        tail: Tail | None,
        carrier: Carrier,
        halves: Halves | None = None,
    ) -> tuple[tuple[Tensor, ...], Skeleton]:
        tensors, written = self._guard(parcel.tensors)
        value = parcel.skeleton.build(source.open(tensors, parcel.needs_grad))
        with self._draws.action(), carrier if self._segments > 1 else nullcontext():
            for place, layer in enumerate(self._modules):
                with self._draws.layer(layer, self._mode, stream(seed, self._first_layer + place, k)):
                    try:
                        with split_layer(halves, layer, self._names[place]):
                            value = layer(value)
                    except Exception as error:
                        error.add_note(f"raised by layer {self._names[place]} ({type(layer).__name__})")
                        raise
            if tail is not None:
                after_last = stream(seed, self._first_layer + len(self._modules), k)
                with self._draws.layer(self._tail_place, self._mode, after_last):
                    value = tail(value)
        written()
        return take_apart(value, f"the output of stage {self.index}")

    def _guard(self, tensors: tuple[Tensor, ...]) -> tuple[tuple[Tensor, ...], Callable[[], None]]:
        """Tensors that the layers may write to in place, and a check to run afterwards.

        What came in belongs to others as well: to the user's batch, to the graph of the stage before, to a recompute.
        Whether the layers write to it is learned from their first run, on copies; later only stages that do get copies.
        """
        if torch.is_inference_mode_enabled() or any(t.is_inference() for t in tensors):
            return tuple(map(_twin, tensors)), _nothing
        if self._writes_input.get(self._mode, True):
            copies = tuple(map(_twin, tensors))
            fresh = [t._version for t in copies]

            def learn() -> None:
                wrote = fresh != [t._version for t in copies]
                if wrote and _overlap(tensors):
                    raise RuntimeError(
                        f"stage {self.index} writes in place to its input, whose tensors share memory: unsplit, the "
                        "write would show in both, but after a cut it does not. Take inplace=True away from its first "
                        "layers, or hand on copies"
                    )
                self._writes_input[self._mode] = self._writes_input.get(self._mode, False) or wrote

            return copies, learn
        versions = [t._version for t in tensors]

        def verify() -> None:
            if versions != [t._version for t in tensors]:
                self._writes_input[self._mode] = True
                raise RuntimeError(
                    f"stage {self.index} wrote to its input in place, which it had not done in its first forward, "
                    "so the input was not copied: repeat the step (it is copied from now on), "
                    "or take inplace=True away from its first layers"
                )

        return tensors, verify

    def _parcel(self, tensors: tuple[Tensor, ...], skeleton: Skeleton) -> Parcel:
        # a buffer that is handed on may move before the next stage has read it
        outputs = tuple(
            t.detach().clone() if self._own_memory and _address(t) in self._own_memory else t.detach() for t in tensors
        )
        return Parcel(outputs, tuple(t.requires_grad for t in tensors), skeleton)


_ALIGNMENT: Final = 64  # bytes: torch allocates at multiples of it


def _twin(tensor: Tensor) -> Tensor:
    """A copy with the strides and the alignment of the original, on which kernels round alike."""
    if tensor.layout is not torch.strided or not tensor.numel():
        return tensor.clone()
    lead = tensor.data_ptr() % _ALIGNMENT // tensor.element_size()
    extent = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    memory = tensor.new_empty(lead + extent)
    memory[lead:].copy_(tensor.as_strided((extent,), (1,)))
    return memory.as_strided(tensor.shape, tensor.stride(), lead)


def _address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr() if tensor.layout is torch.strided else 0


def _overlap(tensors: tuple[Tensor, ...]) -> bool:
    """Whether two of them may share memory."""
    addresses = [_address(t) for t in tensors if t.numel()]
    return len(set(addresses)) < len(addresses)


def _nothing() -> None:
    return None
