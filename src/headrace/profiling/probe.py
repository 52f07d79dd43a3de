"""One layer, or the loss, under measurement: its seconds with a whole backward and with a split one, and its bytes."""

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from headrace.costs import Seconds
from headrace.profiling.bytes_held import Held, LiveBytes, alive, bytes_of, watched
from headrace.runtime.split.engine import gradients_of
from headrace.runtime.split.halves import Halves
from headrace.runtime.split.interception import Interception
from headrace.runtime.stage.boundary import Parcel, Value, take_apart
from headrace.runtime.stage.gradients import Source, edges
from headrace.runtime.stage.randomness import is_compiled

How = Literal["whole", "split", "count"]
"""A whole backward, one in two halves, or a split one whose bytes are counted."""


@dataclass
class Probe:
    """What is run, and what was found.

    Attributes:
        name: what it is called in errors.
        call: the layer, or the loss.
        module: what has parameters; None if nothing has.
        given: tensors that it uses beside its input, and whose bytes are not its own.
        forward, backward, backward_input, backward_weight: seconds of its runs.
        held: bytes, once they were counted.
    """

    name: str
    call: Callable[[Any], Any]
    module: nn.Module | None
    given: tuple[Tensor, ...] = ()
    forward: list[Seconds] = field(default_factory=list)
    backward: list[Seconds] = field(default_factory=list)
    backward_input: list[Seconds] = field(default_factory=list)
    backward_weight: list[Seconds] = field(default_factory=list)
    held: Held | None = None

    def run(self, parcel: Parcel, devices: Sequence[torch.device], how: How, *, counts: bool) -> Parcel:
        """Forward and backward once; the result is cut off from the graph, whose memory is then free.

        Args:
            parcel: what it receives.
            devices: what clocks wait for.
            how: which kind of backward.
            counts: whether the seconds are kept.
        """
        try:
            if how == "count":
                return self._count(parcel)
            return self._whole(parcel, devices, counts) if how == "whole" else self._split(parcel, devices, counts)
        except Exception as error:
            error.add_note(f"raised while {self.name} was profiled")
            raise

    def _whole(self, parcel: Parcel, devices: Sequence[torch.device], counts: bool) -> Parcel:
        started = Source().open(parcel.tensors, parcel.needs_grad)
        into: list[Any] = [edge for edge in edges(started) if edge is not None]
        if self.module is not None:
            into += [p for p in self.module.parameters() if p.requires_grad]
        value = parcel.skeleton.build(started)
        del started, parcel  # a layer's own input is the only one that is kept

        begin = _now(devices)
        result = self.call(value)
        forward = _now(devices) - begin
        del value

        tensors, skeleton = take_apart(result, f"the output of {self.name}")
        outputs = [t for t in tensors if t.requires_grad]
        backward = 0.0
        if outputs and into:
            gradients = [torch.ones_like(t) for t in outputs]
            begin = _now(devices)
            torch.autograd.grad(outputs, into, gradients, allow_unused=True)
            backward = _now(devices) - begin
        if counts:
            self.forward.append(forward)
            self.backward.append(backward)
        return Parcel(tuple(t.detach() for t in tensors), tuple(t.requires_grad for t in tensors), skeleton)

    def _split(self, parcel: Parcel, devices: Sequence[torch.device], counts: bool) -> Parcel:
        halves = Halves()
        value = parcel.skeleton.build(Source().open(parcel.tensors, parcel.needs_grad))
        del parcel
        with self._caught(halves):
            result = self.call(value)
        del value
        tensors, skeleton = take_apart(result, f"the output of {self.name}")
        del result
        roots, gradients = edges(tensors), [torch.ones_like(t) if t.requires_grad else None for t in tensors]

        begin = _now(devices)
        halves.input_gradients(roots, gradients)
        middle = _now(devices)
        _weights(halves)
        end = _now(devices)
        if counts:
            self.backward_input.append(middle - begin)
            self.backward_weight.append(end - middle)
        return Parcel(tuple(t.detach() for t in tensors), tuple(t.requires_grad for t in tensors), skeleton)

    def _count(self, parcel: Parcel) -> Parcel:
        own = list(self.given)
        if self.module is not None:
            own += [*self.module.parameters(), *self.module.buffers()]
        halves = Halves()
        with LiveBytes() as count:
            count.ignore([*own, *parcel.tensors])
            received = [t.clone() for t in parcel.tensors]
            came = watched(received)
            source = Source()
            value = parcel.skeleton.build(source.open(received, parcel.needs_grad))
            del received
            with self._caught(halves):
                result = self.call(value)
            del value
            tensors, skeleton = take_apart(result, f"the output of {self.name}")
            del result
            needs_grad, roots = tuple(t.requires_grad for t in tensors), edges(tensors)
            outputs = tuple(t.detach().clone() for t in tensors)
            count.ignore(list(outputs))
            output, went = bytes_of(list(tensors)), watched(list(tensors))
            through = [reference for reference in went if reference in came]
            del tensors
            activations, keeps_input, keeps_output = count.live, alive(came), alive(went)
            passed = sum(size for _, size in through) - alive(through)
            gradients = [torch.ones_like(t) if needs else None for t, needs in zip(outputs, needs_grad, strict=True)]
            halves.input_gradients(roots, gradients)
            del gradients, roots
            back = watched([t for t in source.gradients() if t is not None])
            del source
            for_weight, input_for_weight = count.live, alive(came)
            # in a whole backward, what goes back is there while gradients of weights are computed
            beside, most = sum(size for _, size in back) - alive(back), count.restart()
            _weights(halves)
            most = max(most, count.peak + beside)
        transient = max(0, most - activations - output)
        self.held = Held(
            activations, for_weight, output, transient, keeps_input, keeps_output, input_for_weight, passed
        )
        return Parcel(outputs, needs_grad, skeleton)

    def _caught(self, halves: Halves) -> Any:
        """A context in which products with weights are split, if they can be."""
        if self.module is None or is_compiled(self.module) or not isinstance(self.call, nn.Module):
            return nullcontext()
        return Interception(halves)


def copy_of(value: Value, where: str) -> Parcel:
    """A copy that a layer may write to."""
    tensors, skeleton = take_apart(value, where)
    return Parcel(tuple(t.detach().clone() for t in tensors), tuple(t.requires_grad for t in tensors), skeleton)


def _weights(halves: Halves) -> None:
    """W, whose gradients are dropped instead of accumulated."""
    for leaves, roots, arrived in halves.take():
        gradients_of(leaves, roots, arrived)


def _now(devices: Sequence[torch.device]) -> Seconds:
    """The time when all that was asked of the devices is done."""
    for device in devices:
        torch.accelerator.synchronize(device)
    return time.perf_counter()
