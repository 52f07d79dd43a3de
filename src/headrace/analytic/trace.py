"""Run one layer forward and backward on tensors without data, and note what that takes and keeps.

Nothing is allocated: parameters, inputs and all results are fake tensors, which have shapes and storages but no memory.
They pretend to be on the CPU, so that the layer takes the way that it would take there (fused attention, say).

The backward runs twice, once with everything and once with frozen parameters. The second one is I; what the first does
besides is W. What the forward keeps only where parameters learn is what W needs:

    parameters learn   F keeps x, relu, mask        B = I + W
    frozen             F keeps    relu, mask        I              ──▶  W needs x

What waits for W in the runtime is less here (norms are done in I) and more there (gradients wait with their products).
So in one more run it splits the backward itself, and what is alive then is counted.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.graph import saved_tensors_hooks
from torch.func import functional_call

from headrace.analytic.ledger import Birth, Ledger, Work
from headrace.costs import Bytes
from headrace.profiling.bytes_held import LiveBytes, alive, watched
from headrace.runtime.split.halves import Halves
from headrace.runtime.split.interception import Interception
from headrace.runtime.stage.boundary import Skeleton, take_apart
from headrace.runtime.stage.gradients import Source, edges
from headrace.runtime.stage.randomness import is_compiled


class Shape(NamedTuple):
    """A tensor without its numbers.

    Attributes:
        size, stride, dtype: as torch has them.
        needs_grad: whether its gradient is wanted.
        same_as: of a layer's output: the input whose memory it is, if it is one's.
    """

    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    needs_grad: bool
    same_as: int | None = None

    @classmethod
    def of(cls, tensor: Tensor, dtype: torch.dtype | None = None) -> "Shape":
        """The shape of `tensor`; with `dtype`, floats become that."""
        as_dtype = dtype if dtype is not None and tensor.is_floating_point() else tensor.dtype
        return cls(tuple(tensor.shape), tensor.stride(), as_dtype, tensor.requires_grad)

    @property
    def bytes(self) -> int:
        """Of its numbers."""
        numbers = 1
        for side in self.size:
            numbers *= side
        return numbers * self.dtype.itemsize

    def fake(self, needs_grad: bool | None = None) -> Tensor:
        """A tensor like it; fake within a FakeTensorMode."""
        made = torch.empty_strided(self.size, self.stride, dtype=self.dtype)
        return made.requires_grad_(self.needs_grad if needs_grad is None else needs_grad)


@dataclass(frozen=True)
class Trace:
    """What one micro-batch takes in one layer.

    Attributes:
        forward, backward_input, backward_weight: the work of F, I and W.
        kept: bytes that F keeps for the backward, inputs and outputs not counted.
        kept_for_weight: those of them that W needs.
        waiting: bytes that I leaves to W, gradients included: without what was received, and of that.
        kept_inputs: which inputs it keeps, and whether W needs them.
        kept_outputs: which outputs it keeps, and whether W needs them.
        own: its parameters and buffers.
        inputs: what it gets.
        outputs: what it hands on.
        skeleton: and in which nest.
        transient: the most bytes that F or I holds beyond what it began with, keeps or hands on.
    """

    forward: Work
    backward_input: Work
    backward_weight: Work
    kept: Bytes
    kept_for_weight: Bytes
    waiting: tuple[Bytes, Bytes]
    kept_inputs: Mapping[int, bool]
    kept_outputs: Mapping[int, bool]
    own: tuple[Shape, ...]
    inputs: tuple[Shape, ...]
    outputs: tuple[Shape, ...]
    skeleton: Skeleton
    transient: Bytes


def trace(layer: nn.Module, inputs: Sequence[Shape], skeleton: Skeleton, dtype: torch.dtype | None = None) -> Trace:
    """What `layer` takes for inputs of these shapes, in the nest that `skeleton` is.

    Args:
        layer: on any device, the meta device too; none of its tensors is touched.
        inputs: shapes of the tensors that it gets.
        skeleton: how they are put together.
        dtype: parameters and buffers that are floats become this; None to leave them.

    Raises:
        Exception: what the layer raises, also because there are no numbers that it could look at.
    """
    own = {name: Shape.of(tensor, dtype) for name, tensor in (*layer.named_parameters(), *layer.named_buffers())}
    whole = _run(layer, own, inputs, skeleton, frozen=False)
    learns = any(shape.needs_grad for shape in own.values())
    frozen = _run(layer, own, inputs, skeleton, frozen=True) if learns else whole

    extra = whole.kept - frozen.kept  # counted by how often each is kept: what I needs too may be kept twice
    outputs = {birth: place for place, birth in reversed(list(enumerate(whole.births)))}
    inside = {birth: size for birth, size in whole.sizes.items() if birth[0] == "op" and birth not in outputs}
    return Trace(
        forward=whole.forward,
        backward_input=frozen.backward,
        backward_weight=whole.backward.minus(frozen.backward) if learns else Work(),
        kept=sum(inside.values()),
        kept_for_weight=sum(size for birth, size in inside.items() if birth in extra),
        waiting=_waiting(layer, own, inputs, skeleton) if learns else (0, 0),
        kept_inputs={birth[1]: birth in extra for birth in whole.kept if birth[0] == "input"},
        kept_outputs={outputs[b]: b in extra for b in whole.kept if b in outputs and b[0] == "op"},
        own=tuple(own.values()),
        inputs=tuple(inputs),
        outputs=whole.outputs,
        skeleton=whole.skeleton,
        transient=max(whole.forward_excess, frozen.backward_excess),
    )


@dataclass(frozen=True)
class _Run:
    forward: Work
    backward: Work
    kept: "Counter[Birth]"
    sizes: Mapping[Birth, Bytes]
    births: tuple[Birth, ...]
    outputs: tuple[Shape, ...]
    skeleton: Skeleton
    forward_excess: Bytes
    backward_excess: Bytes


def _run(
    layer: nn.Module, own: Mapping[str, Shape], inputs: Sequence[Shape], skeleton: Skeleton, *, frozen: bool
) -> _Run:
    """One forward and backward; with `frozen`, no parameter learns."""
    ledger = Ledger()
    kept: Counter[Birth] = Counter()
    sizes: dict[Birth, Bytes] = {}

    def keep(tensor: Tensor) -> Tensor:
        birth = ledger.birth(tensor)
        kept[birth] += 1
        sizes[birth] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.inference_mode(False), torch.enable_grad(), FakeTensorMode(allow_non_fake_inputs=True):
        tensors = {name: shape.fake(shape.needs_grad and not frozen) for name, shape in own.items()}
        given = tuple(shape.fake() for shape in inputs)
        ledger.name(tensors.values(), "own")
        # in a pipeline, too, what needs a gradient is no leaf, so that a layer may write to it
        passed = tuple(tensor.clone() if tensor.requires_grad else tensor for tensor in given)
        ledger.name(passed, "input")
        with ledger, saved_tensors_hooks(keep, _as_it_is):
            result = functional_call(layer, tensors, (skeleton.build(passed),))
        found, shape_of_result = take_apart(result, "the output")
        del result, passed
        births = tuple(map(ledger.birth, found))
        forward_excess = ledger.peak - ledger.live
        forward = ledger.restart()
        leaves = [t for t in (*given, *tensors.values()) if t.requires_grad]
        ends = [tensor for tensor in found if tensor.requires_grad]
        outputs = tuple(
            Shape.of(tensor)._replace(same_as=birth[1] if birth[0] == "input" else None)
            for tensor, birth in zip(found, births, strict=True)
        )
        del found
        backward_excess: Bytes = 0
        if ends and leaves:
            started = ledger.live
            gradients = [torch.ones_like(tensor) for tensor in ends]
            with ledger:
                torch.autograd.grad(ends, leaves, gradients, allow_unused=True)
            backward_excess = ledger.peak - started
        return _Run(
            forward, ledger.restart(), kept, sizes, births, outputs, shape_of_result, forward_excess, backward_excess
        )


def _waiting(
    layer: nn.Module, own: Mapping[str, Shape], inputs: Sequence[Shape], skeleton: Skeleton
) -> tuple[Bytes, Bytes]:
    """Bytes that are alive between I and W, where the runtime splits the backward; those that were received apart."""
    halves = Halves()
    split: Any = nullcontext() if is_compiled(layer) else Interception(halves)
    with torch.inference_mode(False), torch.enable_grad(), FakeTensorMode(allow_non_fake_inputs=True):
        tensors = {name: shape.fake() for name, shape in own.items()}
        with LiveBytes() as count:
            count.ignore(list(tensors.values()))
            given = [shape.fake(False) for shape in inputs]
            received = watched(given)
            value = skeleton.build(Source().open(given, [shape.needs_grad for shape in inputs]))
            del given
            with split:
                result = functional_call(layer, tensors, (value,))
            found, _ = take_apart(result, "the output")
            roots, gradients = edges(found), [torch.ones_like(t) if t.requires_grad else None for t in found]
            del value, result, found
            halves.input_gradients(roots, gradients)
            del roots, gradients
            of_input = alive(received)
            return count.live - of_input, of_input


def _as_it_is(tensor: Tensor) -> Tensor:
    return tensor
