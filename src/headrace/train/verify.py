"""The proof by numbers: the same model, trained under each schedule and unsplit, compared bit for bit."""

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from math import inf, isfinite
from typing import Any, Final

import torch
from torch import Tensor, nn

from headrace.runtime.batch.loss import LossFn
from headrace.runtime.batch.microbatch import LossWeight
from headrace.runtime.pipeline import Pipeline
from headrace.runtime.process.processes import from_all
from headrace.runtime.process.shares import computing_as_a_rank
from headrace.runtime.stage.boundary import Value
from headrace.schedule.catalogue import build
from headrace.schedule.numbers import at_least
from headrace.train.reference import Order, Unsplit, accumulation_orders, refuse_other_mathematics

_ROUNDING: Final = 1e-4
"""Losses in float32 that differ by less, relatively, may differ by the order of sums alone."""

MakeOptimizer = Callable[[Iterable[tuple[str, nn.Parameter]]], torch.optim.Optimizer]


_OF_ANOTHER_BATCH: Final = (
    "but the loss of the batch in one piece differs by {:.1e}: dropout, batch statistics and low precision do that, "
    "and so does a loss that is no mean over rows and lacks its loss_weight="
)


@dataclass(frozen=True)
class Difference:
    """How two sets of named tensors differ.

    Attributes:
        first: the name of the first that is not bitwise equal; None if all are.
        largest: the largest |a − b| ÷ the largest |b| of its tensor; 0 if all are equal.
    """

    first: str | None
    largest: float

    @property
    def bitwise_equal(self) -> bool:
        """Whether no bit differs."""
        return self.first is None

    def __str__(self) -> str:
        return "bitwise equal" if self.first is None else f"differ by {self.largest:.1e}: {self.first}"


@dataclass(frozen=True)
class Comparison:
    """One pipeline against the unsplit model.

    Attributes:
        ranks, micro_batches, schedule, recompute: which pipeline.
        losses: of every step.
        gradients: of every step, before the update.
        parameters: after the last step, buffers included.
        whole_batch: gradients of the first step against those of the unsplit model with the batch in one piece: equal
            up to rounding where layers treat rows independently.
        whole_batch_loss: likewise, the loss of the first step.
    """

    ranks: int
    micro_batches: int
    schedule: str
    recompute: str
    losses: Difference
    gradients: Difference
    parameters: Difference
    whole_batch: Difference
    whole_batch_loss: Difference

    @property
    def bitwise_equal(self) -> bool:
        """Whether losses, gradients and parameters all are."""
        return all(d.bitwise_equal for d in (self.losses, self.gradients, self.parameters))


@dataclass(frozen=True)
class Verification:
    """What `verify` found; true if every comparison is bitwise equal."""

    comparisons: tuple[Comparison, ...]

    def __bool__(self) -> bool:
        return all(comparison.bitwise_equal for comparison in self.comparisons)

    def __str__(self) -> str:
        lines = []
        for c in self.comparisons:
            name = f"{c.schedule}, {c.ranks} ranks, {c.micro_batches} micro-batches, recompute {c.recompute}"
            lines.append(f"{name}: losses {c.losses}; gradients {c.gradients}; parameters {c.parameters}")
        apart = max((c.whole_batch_loss.largest for c in self.comparisons), default=0.0)
        if apart > _ROUNDING:
            lines.append(_OF_ANOTHER_BATCH.format(apart))
        return "\n".join(lines)


@dataclass
class _Trace:
    losses: dict[str, Tensor]
    gradients: dict[str, Tensor]
    parameters: dict[str, Tensor]


def verify(
    model: nn.Sequential,
    loss_fn: LossFn,
    batch: tuple[Value, Value],
    *,
    ranks: Sequence[int] = (1, 2),
    micro_batches: Sequence[int] = (4,),
    schedules: Sequence[str] = ("gpipe", "1f1b"),
    recompute: Sequence[str] = ("never", "always", "layer"),
    steps: int = 3,
    optimizer: MakeOptimizer | None = None,
    cut: Sequence[int] | None = None,
    loss_weight: LossWeight = "rows",
) -> Verification:
    """Train copies of `model` a few steps under each combination, and unsplit, and compare.

    Args:
        model: a chain of layers on the CPU; it is not changed.
        loss_fn: `loss_fn(output, target)`.
        batch: input and target; each step trains on it again.
        ranks, micro_batches, schedules, recompute: every combination of these is tried. Under torchrun, `ranks` must
            be the number of processes.
        steps: optimizer steps.
        optimizer: makes one from named parameters; SGD with momentum if None.
        cut, loss_weight: as for `Pipeline`.

    Raises:
        TypeError, ValueError: the model, the batch or a combination is impossible.
    """
    at_least(1, steps=steps)
    for argument, values in (
        ("ranks", ranks), ("micro_batches", micro_batches), ("schedules", schedules), ("recompute", recompute),
    ):  # fmt: skip
        if isinstance(values, (str, int)):
            raise TypeError(f"{argument}={values!r} must be a sequence, such as [{values!r}]")
        if not values:
            raise ValueError(f"{argument} is empty, so nothing would be compared: name some, or leave it out")
    x, y = batch
    make = optimizer or _momentum
    whole: dict[int, _Trace] = {}
    comparisons = []
    for p, m, name, again in product(ranks, micro_batches, schedules, recompute):
        order = build(name, ranks=p, micro_batches=m, recompute="never" if again == "layer" else again)
        refuse_other_mathematics(order)
        own = copy.deepcopy(model)
        with Pipeline(
            own, loss_fn, ranks=p, micro_batches=m, schedule=order, cut=cut, loss_weight=loss_weight,
            recompute="layer" if again == "layer" else "never",
        ) as pipe:  # fmt: skip
            got = _trace(lambda: pipe.step(x, y), pipe.named_parameters, pipe.named_buffers, make, steps)
            orders = accumulation_orders(order, pipe.cut)
        with computing_as_a_rank(p):
            expected = _unsplit(model, loss_fn, loss_weight, x, y, orders, make, steps)
            if p not in whole:
                whole[p] = _unsplit(model, loss_fn, loss_weight, x, y, [[[0]]] * len(orders), make, 1)
        first = {key: tensor for key, tensor in got.gradients.items() if key.startswith("step 1: ")}
        comparisons.append(
            Comparison(
                p,
                m,
                name,
                again,
                _everywhere(got.losses, expected.losses),
                _everywhere(got.gradients, expected.gradients),
                _everywhere(got.parameters, expected.parameters),
                _everywhere(first, whole[p].gradients),
                _everywhere({"step 1": got.losses["step 1"]}, whole[p].losses),
            )
        )
    return Verification(tuple(comparisons))


def _unsplit(
    model: nn.Sequential,
    loss_fn: LossFn,
    loss_weight: LossWeight,
    x: Value,
    y: Value,
    orders: Sequence[Order],
    make: MakeOptimizer,
    steps: int,
) -> _Trace:
    own = copy.deepcopy(model)
    unsplit = Unsplit(own, loss_fn, loss_weight)
    return _trace(lambda: unsplit.step(x, y, orders), own.named_parameters, own.named_buffers, make, steps)


def _trace(
    step: Callable[[], Tensor],
    parameters: Callable[[], Iterable[tuple[str, nn.Parameter]]],
    buffers: Callable[[], Iterable[tuple[str, Tensor]]],
    make: MakeOptimizer,
    steps: int,
) -> _Trace:
    trace = _Trace({}, {}, {})
    trained = make(parameters())
    for number in range(1, steps + 1):
        trace.losses[f"step {number}"] = step()
        for name, parameter in parameters():
            if parameter.grad is not None:
                trace.gradients[f"step {number}: {name}"] = parameter.grad.clone()
        trained.step()
        trained.zero_grad()
    for name, tensor in (*parameters(), *buffers()):
        trace.parameters[name] = tensor.detach().clone()
    return trace


def _everywhere(got: dict[str, Tensor], expected: dict[str, Tensor]) -> Difference:
    """The difference over all processes, each of which has its own part of `got` and all of `expected`."""
    found = from_all((_difference(got, expected), set(got)))
    differences = [difference for difference, _ in found]
    there = set().union(*(names for _, names in found))
    differences += [Difference(name, float("inf")) for name in expected if name not in there]
    first = next((d.first for d in differences if d.first is not None), None)
    return Difference(first, max(d.largest for d in differences))


def _difference(got: dict[str, Tensor], expected: dict[str, Tensor]) -> Difference:
    first, largest = None, 0.0
    for name, tensor in got.items():
        other = expected.get(name)
        if other is not None and _equal(tensor, other):
            continue
        first = first or name
        if other is None:
            return Difference(first, float("inf"))
        scale = float(other.abs().max().double()) or 1.0
        apart = float((tensor.double() - other.double()).abs().max()) / scale
        largest = max(largest, apart if isfinite(apart) else inf)
    return Difference(first, largest)


def _equal(a: Tensor, b: Tensor) -> bool:
    """Whether no bit differs, but for those of NaN: a model that diverges does so alike."""
    return torch.equal(a, b) or (a.shape == b.shape and bool(((a == b) | (a.isnan() & b.isnan())).all()))


def _momentum(parameters: Iterable[tuple[str, nn.Parameter]]) -> torch.optim.Optimizer:
    arguments: Any = parameters
    return torch.optim.SGD(arguments, lr=0.1, momentum=0.9)
