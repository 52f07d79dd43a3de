"""Measure each layer of a chain on its true input: the numbers that a cut and a prediction are made from.

One round runs the whole chain, layer by layer, and ends each layer's graph before the next begins:

    sample ─copy─▶ ┊ layer 0: F, B ┊ ─▶ ┊ layer 1: F, B ┊ ─▶ … ─▶ ┊ loss: F, B ┊
                   start of a graph    start of a graph

So a layer sees what the layer before it really hands over, only one layer's graph is alive at a time, and repeats are
interleaved: when the machine slows down for a while, all layers feel it alike. The first rounds (start-up costs,
compilation, cold caches) don't count; of the others the median does, which a few disturbed rounds cannot move.

Rounds with a whole backward take turns with rounds in which it is split into I and W; a last one counts bytes.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate
from math import inf
from statistics import median, quantiles
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from headrace.costs import Bytes, Seconds
from headrace.profiling.as_found import left_as_found
from headrace.profiling.bytes_held import Held, bytes_of
from headrace.profiling.layer_profile import LayerProfile
from headrace.profiling.probe import How, Probe, copy_of
from headrace.runtime.model.chain import layers_of
from headrace.runtime.model.tied import first_held
from headrace.runtime.stage.boundary import Value, take_apart
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
    probes = [Probe(f"layer {name!r} ({type(layer).__name__})", layer, layer) for name, layer in layers.items()]
    if loss_fn is not None:
        holder = loss_fn if isinstance(loss_fn, nn.Module) else None
        probes.append(Probe("loss_fn", lambda output: loss_fn(output, own_target), holder))
    modules = [probe.module for probe in probes if probe.module is not None]
    devices = _accelerators(probes, sample)

    with torch.inference_mode(False), torch.enable_grad(), left_as_found(modules, devices):
        parcel = copy_of(target, "target")
        own_target = parcel.value
        probes[-1].given = parcel.tensors
        timed: list[tuple[How, bool]] = [
            (how, round_ >= warm_up) for round_ in range(warm_up + repeats) for how in ("whole", "split")
        ]
        try:
            _run(probes, sample, devices, timed)
            _run(probes, sample, devices, [("count", False)])
        finally:
            torch.clear_autocast_cache()  # it may hold casts of weights that are about to be put back

    of_layers, loss = probes[: len(layers)], probes[len(layers) :]
    tensors = first_held(layers.values())
    shared, held = _apart([probe.held for probe in probes if probe.held is not None])
    return LayerProfile(
        names=tuple(layers),
        forward=tuple(median(probe.forward) for probe in of_layers),
        backward=tuple(median(probe.backward) for probe in of_layers),
        spread=tuple(_spread(probe) for probe in of_layers),
        parameters=tuple(sum(p.numel() for p in layer.parameters()) for layer in layers.values()),
        loss_forward=sum(median(probe.forward) for probe in loss),
        loss_backward=sum(median(probe.backward) for probe in loss),
        backward_input=tuple(median(probe.backward_input) for probe in of_layers),
        backward_weight=tuple(median(probe.backward_weight) for probe in of_layers),
        parameter_bytes=tuple(bytes_of(own) for own in tensors),
        trained_bytes=tuple(bytes_of([t for t in own if t.requires_grad]) for own in tensors),
        held=tuple(held[: len(layers)]),
        shared=tuple(shared[: len(layers)]),
        loss_activations=sum(h.activations for h in held[len(layers) :]),
        loss_transient=sum(h.transient for h in held[len(layers) :]),
    )


def _run(
    probes: Sequence[Probe], sample: Value, devices: Sequence[torch.device], rounds: Sequence[tuple[How, bool]]
) -> None:
    """The whole chain, round after round."""
    for how, counts in rounds:
        parcel = copy_of(sample, "sample")
        for probe in probes:
            parcel = probe.run(parcel, devices, how, counts=counts)


def _accelerators(probes: Sequence[Probe], sample: Value) -> list[torch.device]:
    """The devices, besides the CPU, that clocks must wait for.

    Raises:
        ValueError: a layer has parameters or buffers that don't exist yet, so there is nothing to measure.
    """
    devices = {tensor.device for tensor in take_apart(sample, "sample")[0]}
    if any(device.type == "meta" for device in devices):
        raise ValueError("sample is on the meta device: give it memory and values before the model is profiled")
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


def _spread(probe: Probe) -> Seconds:
    both = [forward + backward for forward, backward in zip(probe.forward, probe.backward, strict=True)]
    if len(both) == 1:
        return 0.0
    first, _, third = quantiles(both, n=4, method="inclusive")
    return third - first


def _apart(held: Sequence[Held]) -> tuple[list[Bytes], list[Held]]:
    """What each layer receives that is kept on both sides, before it and from it on; and the layers' own bytes.

        ReLU ──x──▶ Flatten ──x──▶ Linear        x counts with the ReLU, and is shared where the others begin
         │ keeps x   passes x      │ keeps x

    What the first layer receives, and those to which it is passed, is the batch, which is there anyway.
    """
    before: list[Bytes] = [inf]
    for h in held[:-1]:
        before.append(h.keeps_output + min(h.passed, before[-1]))
    behind: list[Bytes] = [0]
    for h in reversed(held):
        behind.insert(0, h.keeps_input + min(h.passed, behind[0]))
    shared = [min(kept, more) for kept, more in zip(before, behind, strict=False)]
    own = [replace(h, activations=h.activations - min(h.keeps_input, k)) for h, k in zip(held, before, strict=True)]
    batch = accumulate((h.passed for h in held[:-1]), min, initial=inf)
    of_batch = [min(h.input_for_weight, there) for h, there in zip(held, batch, strict=True)]
    return shared, [replace(h, for_weight=h.for_weight - size) for h, size in zip(own, of_batch, strict=True)]
