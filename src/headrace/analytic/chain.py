"""Trace the layers of a chain one after the other, each on what the one before hands on.

A tensor between layers may be kept by both: the layer that made it needs its own result, say, and the next one its
input. It is there once, so it counts once: with the first layer that keeps it. After a cut it is there twice, so each
layer also says what it receives that is kept before it, and from it on. The batch is there anyway.

    … ─ relu ──x──▶ linear ──y──▶ …        x counts with the relu, and is shared where the linear layer begins
         │ keeps x    │ keeps x
"""

from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from headrace.analytic.likeness import likeness
from headrace.analytic.trace import Shape, Trace, trace
from headrace.costs import Bytes
from headrace.runtime.model.chain import layers_of
from headrace.runtime.stage.boundary import Skeleton, Value, take_apart


@dataclass(frozen=True)
class Traced:
    """A layer with its trace.

    Attributes:
        name: of the layer; "loss_fn" for the loss.
        layer: itself.
        trace: of it.
        kept: bytes that F keeps, what is shared with other layers counted once in all, the batch not at all.
        kept_for_weight: those of them that W needs.
        for_weight: bytes that are alive between I and W, gradients included.
        shared: bytes that it receives, that are kept by layers before it, and by itself or those after it.
    """

    name: str
    layer: nn.Module
    trace: Trace
    kept: Bytes
    kept_for_weight: Bytes
    for_weight: Bytes
    shared: Bytes


def trace_chain(
    model: nn.Sequential,
    sample: Value,
    *,
    loss_fn: Callable[[Any, Any], Any] | None = None,
    target: Value = None,
    dtype: torch.dtype | None = None,
) -> list[Traced]:
    """The layers of `model` in order, the loss behind them if it is given.

    Raises:
        TypeError, ValueError: the model is not a chain of layers, or a layer hands on what cannot pass.
        Exception: what a layer raises, with a note that names the layer.
    """
    layers = [(name, layer) for name, layer in layers_of(model).items()]
    if loss_fn is not None:
        layers.append(("loss_fn", _Loss(loss_fn)))
    tensors, skeleton = take_apart(sample, "sample")
    shapes = tuple(Shape.of(tensor, dtype) for tensor in tensors)
    identities: list[int] = list(range(len(shapes)))  # of the tensors between layers
    steps: list[_Step] = []
    traces: dict[Hashable, Trace] = {}
    batch = set(identities)
    fresh = len(shapes)
    for name, layer in layers:
        if isinstance(layer, _Loss):
            shapes, skeleton, identities = _with_target(shapes, skeleton, identities, target, dtype)
            batch.update(one for one in identities if one < 0)
        key = (likeness(layer), shapes, skeleton, _sharing(identities))
        if key not in traces:
            try:
                traces[key] = trace(layer, shapes, skeleton, dtype)
            except Exception as error:
                error.add_note(
                    f"raised while layer {name!r} ({type(layer).__name__}) was traced on tensors without data: "
                    "a layer that looks at numbers can only be measured, with profile"
                )
                raise
        found = traces[key]
        results = []
        for shape in found.outputs:
            results.append(fresh if shape.same_as is None else identities[shape.same_as])
            fresh += shape.same_as is None
        steps.append(_Step(name, layer, found, shapes, tuple(identities), tuple(results)))
        shapes = tuple(shape._replace(same_as=None) for shape in found.outputs)
        skeleton, identities = found.skeleton, results
    return _counted_once(steps, batch)


@dataclass(frozen=True)
class _Step:
    name: str
    layer: nn.Module
    trace: Trace
    shapes: tuple[Shape, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


def _counted_once(steps: Sequence[_Step], batch: Collection[int]) -> list[Traced]:
    """Whether W needs a tensor between layers is what the layer says that it counts with."""
    keeps = [
        {
            **{step.outputs[i]: (step.trace.outputs[i].bytes, needs) for i, needs in step.trace.kept_outputs.items()},
            **{step.inputs[i]: (step.shapes[i].bytes, needs) for i, needs in step.trace.kept_inputs.items()},
        }
        for step in steps
    ]
    last = {identity: place for place, of_step in enumerate(keeps) for identity in of_step}
    counted, needed = set(batch), set(batch)
    found = []
    for place, (step, of_step) in enumerate(zip(steps, keeps, strict=True)):
        received = {identity: shape.bytes for identity, shape in zip(step.inputs, step.shapes, strict=True)}
        again = [size for one, size in received.items() if one in counted and last.get(one, -1) >= place]
        own = sum(size for one, (size, _) in of_step.items() if one not in counted)
        reads = {one: size for one, (size, needs) in of_step.items() if needs and one not in needed}
        counted.update(of_step)
        needed.update(reads)
        waiting, of_input = step.trace.waiting
        of_batch = sum(size for identity, size in received.items() if identity in batch)
        found.append(
            Traced(
                step.name,
                step.layer,
                step.trace,
                step.trace.kept + own,
                step.trace.kept_for_weight + sum(reads.values()),
                waiting + max(0, of_input - of_batch),
                sum(again),
            )
        )
    return found


class _Loss(nn.Module):
    """The loss as one more layer, of (output, target)."""

    def __init__(self, loss_fn: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        self.loss_fn = loss_fn

    def forward(self, both: tuple[Any, Any]) -> Any:
        output, target = both
        return self.loss_fn(output, target)


def _with_target(
    shapes: Sequence[Shape], skeleton: Skeleton, identities: Sequence[int], target: Value, dtype: torch.dtype | None
) -> tuple[tuple[Shape, ...], Skeleton, list[int]]:
    """The pair of the last layer's output and the target."""
    tensors, of_target = take_apart(target, "target")
    output = skeleton.build(tuple(torch.empty(0) for _ in shapes))
    _, both = take_apart((output, of_target.build(tensors)), "the output and the target")
    new = [-1 - place for place in range(len(tensors))]
    return (*shapes, *(Shape.of(tensor, dtype) for tensor in tensors)), both, [*identities, *new]


def _sharing(identities: Sequence[int]) -> tuple[int, ...]:
    """Which of a layer's inputs are the same memory."""
    return tuple(identities.index(identity) for identity in identities)
