"""Measure each layer of a chain on its true input: the numbers that a cut and a prediction are made from.

One round runs the whole chain, layer by layer, and ends each layer's graph before the next begins:

    sample ─copy─▶ ┊ layer 0: F, B ┊ ─▶ ┊ layer 1: F, B ┊ ─▶ … ─▶ ┊ loss: F, B ┊
                   start of a graph    start of a graph

So a layer sees what the layer before it really hands over, only one layer's graph is alive at a time, and repeats are
interleaved: when the machine slows down for a while, all layers feel it alike. The first rounds (start-up costs,
compilation, cold caches) don't count; of the others the median does, which a few disturbed rounds cannot move.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median, quantiles
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from headrace.costs import Seconds
from headrace.profiling.as_found import left_as_found
from headrace.profiling.layer_profile import LayerProfile
from headrace.runtime.model.chain import layers_of
from headrace.runtime.stage.boundary import Parcel, Value, take_apart
from headrace.runtime.stage.gradients import Source, edges
from headrace.schedule.numbers import at_least


def profile(
    model: nn.Sequential,
    sample: Value,
    *,
    loss_fn: Callable[[Any, Any], Any] | None = None,
    target: Value = None,
    repeats: int = 5,
    warm_up: int = 2,
) -> LayerProfile:
    """What the forward and the backward of each layer take, for one micro-batch.

    Measures in the mode (train or eval), under the autocast and with the number of threads that it is called with:
    call it as a rank will run. Layers run as they are, with their forward hooks; gradients are computed, but not
    accumulated, so `.grad` and the hooks on accumulation see nothing. Afterwards parameters, buffers, gradients,
    training mode, random generators and the sample are, bit for bit, what they were, also if a layer fails. Meanwhile
    it needs memory for a second copy of parameters and buffers.

    Args:
        model: a chain of layers.
        sample: one micro-batch as the first layer takes it: a tensor, or a nest of them.
        loss_fn: measured as loss_fn(output, target), if given; it counts in the last layer's cost.
        target: what the loss function compares with, for this micro-batch.
        repeats: rounds that count.
        warm_up: rounds before them that don't.

    Raises:
        TypeError: the model is not an nn.Sequential, or a layer hands on what cannot pass from stage to stage.
        ValueError: the model is empty, lazy (not yet initialised) or on the meta device, or an argument is impossible.
        Exception: what a layer raises, with a note that names the layer.
    """
    at_least(1, repeats=repeats)
    at_least(0, warm_up=warm_up)
    if loss_fn is None and target is not None:
        raise ValueError("target is given without loss_fn: give both, or neither")
    layers = layers_of(model)
    probes = [_Probe(f"layer {name!r} ({type(layer).__name__})", layer, layer) for name, layer in layers.items()]
    if loss_fn is not None:
        holder = loss_fn if isinstance(loss_fn, nn.Module) else None
        probes.append(_Probe("loss_fn", lambda output: loss_fn(output, own_target), holder))
    modules = [probe.module for probe in probes if probe.module is not None]
    devices = _accelerators(probes, sample)

    with torch.inference_mode(False), torch.enable_grad(), left_as_found(modules, devices):
        own_target = _copy(target, "target").value
        try:
            for round_ in range(warm_up + repeats):
                parcel = _copy(sample, "sample")
                for probe in probes:
                    parcel = probe.run(parcel, devices, counts=round_ >= warm_up)
        finally:
            torch.clear_autocast_cache()  # it may hold casts of weights that are about to be put back

    of_layers = probes[: len(layers)]
    loss = probes[len(layers) :]
    return LayerProfile(
        names=tuple(layers),
        forward=tuple(median(probe.forward) for probe in of_layers),
        backward=tuple(median(probe.backward) for probe in of_layers),
        spread=tuple(_spread(probe) for probe in of_layers),
        parameters=tuple(sum(p.numel() for p in layer.parameters()) for layer in layers.values()),
        loss_forward=sum(median(probe.forward) for probe in loss),
        loss_backward=sum(median(probe.backward) for probe in loss),
    )


@dataclass
class _Probe:
    """A layer, or the loss, and the seconds of its runs."""

    name: str
    call: Callable[[Any], Any]
    module: nn.Module | None
    forward: list[Seconds] = field(default_factory=list)
    backward: list[Seconds] = field(default_factory=list)

    def run(self, parcel: Parcel, devices: Sequence[torch.device], counts: bool) -> Parcel:
        """Forward and backward once; the result is cut off from the graph, whose memory is then free."""
        try:
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
            needs_grad = tuple(t.requires_grad for t in tensors)
            outputs = [t for t in tensors if t.requires_grad]
            backward = 0.0
            if outputs and into:
                gradients = [torch.ones_like(t) for t in outputs]
                begin = _now(devices)
                torch.autograd.grad(outputs, into, gradients, allow_unused=True)
                backward = _now(devices) - begin
        except Exception as error:
            error.add_note(f"raised while {self.name} was profiled")
            raise
        if counts:
            self.forward.append(forward)
            self.backward.append(backward)
        return Parcel(tuple(t.detach() for t in tensors), needs_grad, skeleton)


def _copy(value: Value, where: str) -> Parcel:
    """A copy that a layer may write to."""
    tensors, skeleton = take_apart(value, where)
    return Parcel(tuple(t.detach().clone() for t in tensors), tuple(t.requires_grad for t in tensors), skeleton)


def _accelerators(probes: Sequence[_Probe], sample: Value) -> list[torch.device]:
    """The devices, besides the CPU, that clocks must wait for.

    Raises:
        ValueError: a layer has parameters or buffers that don't exist yet, so there is nothing to measure.
    """
    devices = {tensor.device for tensor in take_apart(sample, "sample")[0]}
    for probe in probes:
        if probe.module is None:
            continue
        for name, tensor in (*probe.module.named_parameters(), *probe.module.named_buffers()):
            if is_lazy(tensor) or tensor.is_meta:
                raise ValueError(
                    f"{name!r} of {probe.name} is {'on the meta device' if tensor.is_meta else 'not yet initialised'}: "
                    "give it memory and values before the model is profiled"
                )
            devices.add(tensor.device)
    return sorted((device for device in devices if device.type != "cpu"), key=str)


def _now(devices: Sequence[torch.device]) -> Seconds:
    """The time when all that was asked of the devices is done."""
    for device in devices:
        torch.accelerator.synchronize(device)
    return time.perf_counter()


def _spread(probe: _Probe) -> Seconds:
    both = [forward + backward for forward, backward in zip(probe.forward, probe.backward, strict=True)]
    if len(both) == 1:
        return 0.0
    first, _, third = quantiles(both, n=4, method="inclusive")
    return third - first
