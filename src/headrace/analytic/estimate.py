"""What the layers of a model cost on hardware that is not here, from shapes alone.

    with torch.device("meta"):
        model = transformer_6b()
        sample = torch.empty(4, 256, dtype=torch.long), torch.empty(4, 256, dtype=torch.long)
    costs = estimate(model, sample, load_hardware("v100-16g"))

The work of a layer is counted exactly, the seconds are a model of the hardware (see `hardware`): right for comparing
cuts, schedules and sizes, not to the millisecond.
"""

from collections.abc import Callable, Iterable
from typing import Any, Final

import torch
from torch import Tensor, nn

from headrace.analytic.chain import Traced, trace_chain
from headrace.analytic.hardware import Hardware
from headrace.costs import Bytes
from headrace.layer_costs import LayerCosts
from headrace.runtime.model.tied import first_held
from headrace.runtime.stage.boundary import Value, take_apart

OPTIMIZERS: Final = {"sgd": 0, "momentum": 4, "rmsprop": 4, "adam": 8}
"""Bytes that an optimizer keeps per parameter, in float32; RMSProp without momentum."""


def estimate(
    model: nn.Sequential,
    sample: Value,
    hardware: Hardware,
    *,
    loss_fn: Callable[[Any, Any], Any] | None = None,
    target: Value = None,
    optimizer: str | float = "adam",
    dtype: torch.dtype | None = None,
    master_weights: bool = False,
    compiled: bool = False,
) -> LayerCosts:
    """The costs of the layers of `model` for one micro-batch, without running it.

    Nothing is allocated and no tensor of the model is touched, so it may be on the meta device. Layers run in the mode
    (train or eval) that they are in. Input gradients are counted where the layer before hands on something that needs
    one. What layers keep outside autograd's saved tensors is not seen.

    Args:
        model: a chain of layers.
        sample: one micro-batch as the first layer takes it, a tensor or a nest of them; only shapes and dtypes count.
        hardware: of each rank.
        loss_fn: counted as loss_fn(output, target) in the last layer, if given.
        target: what the loss function compares with; only shapes and dtypes count.
        optimizer: one of OPTIMIZERS, or the bytes that it keeps per parameter.
        dtype: floats of the model and the sample count as this; None to take them as they are.
        master_weights: whether there is a float32 copy of the weights besides, as mixed precision has it.
        compiled: whether a compiler fuses what it can: a layer then moves its weights, what it gets and hands on, and
            what it keeps, once in each part, and nothing else. Otherwise each operation reads and writes by itself.

    Raises:
        TypeError: the model is no nn.Sequential, or a layer hands on what cannot pass from stage to stage.
        ValueError: the model is empty, an argument is impossible, or the hardware has no peak for the dtype.
        Exception: what a layer raises, with a note that names the layer.
    """
    if loss_fn is None and target is not None:
        raise ValueError("target is given without loss_fn: give both, or neither")
    state = _state(optimizer) + (4 if master_weights else 0)
    traced = trace_chain(model, sample, loss_fn=loss_fn, target=target, dtype=dtype)
    loss = traced.pop() if loss_fn is not None else None
    seconds = [_seconds(one, hardware, _dtype(one.layer, dtype), compiled) for one in traced]
    kept = [(one.kept, one.for_weight) for one in traced]
    transient = [one.trace.transient for one in traced]
    if loss is not None:
        of_loss = _seconds(loss, hardware, _dtype(traced[-1].layer, dtype), compiled)
        seconds[-1] = [layer + more for layer, more in zip(seconds[-1], of_loss, strict=True)]
        kept[-1] = (kept[-1][0] + loss.kept, kept[-1][1] + loss.for_weight)
        transient[-1] = max(transient[-1], loss.trace.transient)
    forward, backward_input, backward_weight = zip(*seconds, strict=True)
    activations, for_weight = zip(*kept, strict=True)
    sizes = [_parameters(held, dtype, state) for held in first_held(one.layer for one in traced)]
    return LayerCosts(
        names=tuple(one.name for one in traced),
        rows=_rows(sample),
        forward=forward,
        backward_input=backward_input,
        backward_weight=backward_weight,
        parameters=tuple(size for size, _ in sizes),
        trained=tuple(trained for _, trained in sizes),
        activations=activations,
        for_weight=for_weight,
        output=tuple(sum(shape.bytes for shape in one.trace.outputs) for one in traced),
        transient=tuple(transient),
        shared=tuple(one.shared for one in traced),
    )


def _seconds(one: Traced, hardware: Hardware, dtype: str, compiled: bool) -> list[float]:
    parts = (one.trace.forward, one.trace.backward_input, one.trace.backward_weight)
    moved = _fused(one) if compiled else [work.moved for work in parts]
    return [hardware.seconds(work.flops, size, dtype) for work, size in zip(parts, moved, strict=True)]


def _fused(one: Traced) -> list[Bytes]:
    """What F, I and W cannot avoid to move; gradients are as large as what they are of."""
    trace = one.trace
    weights = sum(shape.bytes for shape in trace.own)
    learnt = sum(shape.bytes for shape in trace.own if shape.needs_grad)
    given = sum(shape.bytes for shape in trace.inputs)
    handed_on = sum(shape.bytes for shape in trace.outputs if shape.same_as is None)
    back = sum(shape.bytes for shape in trace.inputs if shape.needs_grad)
    return [
        weights + given + handed_on + trace.kept,
        weights + one.kept + handed_on + back if back else 0,
        one.kept_for_weight + handed_on + learnt if learnt else 0,
    ]


def _parameters(held: Iterable[Tensor], dtype: torch.dtype | None, state: Bytes) -> tuple[Bytes, Bytes]:
    """Bytes of weights and buffers, and of gradients and optimizer state."""
    own = trained = 0.0
    for tensor in held:
        size = (dtype if dtype is not None and tensor.is_floating_point() else tensor.dtype).itemsize
        own += tensor.numel() * size
        if isinstance(tensor, nn.Parameter) and tensor.requires_grad:
            trained += tensor.numel() * (size + state)
    return own, trained


def _dtype(layer: nn.Module, dtype: torch.dtype | None) -> str:
    """What a layer computes with: its parameters' dtype; float32 where it has none."""
    found = dtype or next((p.dtype for p in layer.parameters() if p.is_floating_point()), torch.float32)
    return str(found).removeprefix("torch.")


def _state(optimizer: str | float) -> float:
    if isinstance(optimizer, str):
        if optimizer not in OPTIMIZERS:
            names = ", ".join(OPTIMIZERS)
            raise ValueError(f"optimizer={optimizer!r} is none of {names}, nor the bytes that it keeps per parameter")
        return OPTIMIZERS[optimizer]
    if not isinstance(optimizer, (int, float)):
        raise TypeError(f"optimizer={optimizer!r} must be a name or the bytes that it keeps per parameter")
    if optimizer < 0:
        raise ValueError(f"optimizer={optimizer!r} must be 0 bytes per parameter or more")
    return optimizer


def _rows(sample: Value) -> int:
    tensors, _ = take_apart(sample, "sample")
    if not tensors or not tensors[0].dim():
        raise ValueError("sample must have a tensor with a first dimension, whose length is the rows of a micro-batch")
    return int(tensors[0].shape[0])
