"""Sequences in segments, in one thread: a plain loop over segments, what they carry cut off between their graphs.

    for each micro-batch, forwards from its first segment, backwards from its last:

        F  segment 0 ──(k, v)──▶ segment 1      detached, and leaves of the next segment's graph
        B  segment 0 ◀──grads─── segment 1      given to what was carried, beside the loss's gradient

Which layers carry something, and what, is read from the layers through the same two functions that they call.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import headrace as hr
from headrace.models import gpt
from headrace.runtime.executor import Overlap
from headrace.runtime.stage import carry
from headrace.runtime.stage.randomness import stream
from headrace.schedule import Schedule
from runtime.cases import Case
from runtime.parity import stages_of_parameters
from runtime.pipes import SEED
from runtime.reference import (
    TRAINING,
    accumulate,
    backward_ends,
    cut,
    differing,
    everything,
    flat_layers,
    gradients,
    same,
    seed_cpu,
    sum_of,
)

VOCABULARY: Final = 11
STEPS: Final = 3


def tiny_gpt(rows: int, length: int, *, layers: int = 2, dropout: float = 0.0) -> Case:
    """A GPT with a batch of tokens, the same each time."""
    with torch.random.fork_rng(devices=[]):
        seed_cpu(rows * 100 + length)
        model = gpt(layers=layers, dim=8, heads=2, sequence=length, vocabulary=VOCABULARY, dropout=dropout)
        for parameter in model.parameters():
            nn.init.normal_(parameter, std=0.3)  # so that attention looks somewhere
        x, y = torch.randint(VOCABULARY, (2, rows, length)).unbind()
        return Case(model, x, y, token_loss)


def token_loss(logits: Tensor, target: Tensor) -> Tensor:
    """The mean over tokens."""
    return nn.functional.cross_entropy(logits.flatten(0, 1), target.flatten())


@dataclass
class _Segment:
    """One forward: what it took, as leaves of its graph, and what it put."""

    taken: dict[nn.Module, list[Tensor]] = field(default_factory=dict)
    left: dict[nn.Module, Any] = field(default_factory=dict)
    loss: Tensor = field(default_factory=lambda: torch.zeros(()))

    def take(self, layer: nn.Module, before: "_Segment | None") -> Any:
        """What `before` left, its tensors detached and ready to be given a gradient."""
        if before is None or layer not in before.left:
            return None
        leaves, structure = pytree.tree_flatten(before.left[layer])
        opened = [t.detach().requires_grad_(t.requires_grad) if isinstance(t, Tensor) else t for t in leaves]
        self.taken[layer] = [t for t in opened if isinstance(t, Tensor)]
        return pytree.tree_unflatten(opened, structure)

    def backward(self, weight: float, after: "_Segment | None") -> None:
        """Begin at the loss, and at whatever the segment behind has a gradient for."""
        roots, gradients = [self.loss], [torch.tensor(weight, dtype=self.loss.dtype)]
        for layer, leaves in after.taken.items() if after is not None else ():
            left = [t for t in pytree.tree_leaves(self.left[layer]) if isinstance(t, Tensor)]
            for root, leaf in zip(left, leaves, strict=True):
                if leaf.grad is not None:
                    roots.append(root)
                    gradients.append(leaf.grad)
        torch.autograd.backward(roots, gradients)


@dataclass
class InSegments:
    """A causal case's model, trained by a plain loop over segments; attributes as of `Unsplit`."""

    case: Case
    seed: int
    steps: int = 0

    def step(self, batch: tuple[Any, Any], schedule: Schedule, stage_of: Mapping[str, int]) -> Tensor:
        """One step; gradients of segments are added to `.grad` in the order of their stage."""
        s = schedule.segments
        m = schedule.micro_batches // s
        xs, ys = (
            [piece for part in cut(value, m) for piece in part.tensor_split(s, 1)] for value in (batch[0], batch[1])
        )
        segments: list[_Segment] = []
        for k, (x, y) in enumerate(zip(xs, ys, strict=True)):
            segments.append(_Segment())
            with _carrying(segments[k], segments[k - 1] if k % s else None):
                segments[k].loss = self.case.loss_fn(self._forward(x, k), y)
        weights = [y.numel() / batch[1].numel() for y in ys]
        parts: dict[int, dict[str, Tensor | None]] = {}
        for k in reversed(range(m * s)):
            with _no_gradients(self.case.model):
                segments[k].backward(weights[k], segments[k + 1] if (k + 1) % s else None)
                parts[k] = {name: parameter.grad for name, parameter in self.case.model.named_parameters()}
        for name, parameter in self.case.model.named_parameters():
            accumulate(parameter, [parts[k][name] for k in range(m * s)], backward_ends(schedule, stage_of[name]))
        self.steps += 1
        return sum_of([segment.loss for segment in segments], weights)

    def _forward(self, x: Tensor, k: int) -> Any:
        value: Any = x
        with torch.random.fork_rng(devices=[]):
            for number, layer in enumerate(flat_layers(self.case.model)):
                seed_cpu(stream(stream(self.seed, self.steps, TRAINING), number, k))
                value = layer(value)
        return value


@contextmanager
def _no_gradients(model: nn.Module) -> Iterator[None]:
    """Within it, the model has no gradients yet."""
    before = [parameter.grad for parameter in model.parameters()]
    model.zero_grad()
    try:
        yield
    finally:
        for parameter, gradient in zip(model.parameters(), before, strict=True):
            parameter.grad = gradient


@contextmanager
def _carrying(segment: _Segment, before: _Segment | None) -> Iterator[None]:
    """Within it, layers carry from `before` to `segment`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(carry, "take", lambda layer: segment.take(layer, before))
        patch.setattr(carry, "put", segment.left.__setitem__)
        yield


def pipe_of(case: Case, schedule: Schedule, **options: Any) -> hr.Pipeline:
    torch.manual_seed(SEED)
    m = schedule.micro_batches // schedule.segments
    return hr.Pipeline(
        case.model, case.loss_fn, ranks=schedule.ranks, micro_batches=m, schedule=schedule, **case.options, **options
    )


def assert_loop_parity(case: Case, twin: Case, schedule: Schedule, *, overlap: Overlap | None = None) -> None:
    """Train a causal case through the pipeline, and its twin by the plain loop."""
    loop = InSegments(twin, SEED)
    ours = torch.optim.AdamW(case.model.parameters(), lr=0.01)
    theirs = torch.optim.AdamW(twin.model.parameters(), lr=0.01)
    with pipe_of(case, schedule, overlap=overlap) as pipe:
        stage_of = stages_of_parameters(case.model, pipe.cut)
        for step in range(STEPS):
            loss = pipe.step(*case.batch(step))
            expected = loop.step(twin.batch(step), schedule, stage_of)
            assert same(loss, expected), f"loss of step {step}: {loss} is not {expected}"
            assert differing(gradients(case.model), gradients(twin.model)) == [], f"gradients of step {step}"
            for optimizer in (ours, theirs):
                optimizer.step()
                optimizer.zero_grad()
    assert differing(everything(case.model), everything(twin.model)) == []


def whole(case: Case, batch: tuple[Any, Any]) -> Tensor:
    """The loss of the whole batch at once, its sequences uncut; gradients are added to `.grad`."""
    loss = case.loss_fn(case.model(batch[0]), batch[1])
    loss.backward()
    return loss.detach()
