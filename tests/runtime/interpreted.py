"""Any asynchronous schedule in one thread: action by action, each forward with whatever weights its stage has then.

    F   the stage's layers with copies of its weights, cut off from the stage before
    B   (or I) through that graph; the gradients of the copies wait for the end of the backward
    W   (or B) they are added to the stage's own
    U   an optimizer step

Boundaries are single tensors, and losses are sums, so that nothing depends on which micro-batches share an update.
"""

from dataclasses import dataclass, field, replace
from typing import Any

import naive
import torch
from torch import Tensor, nn
from torch.func import functional_call

from headrace.runtime.stage.randomness import stream
from headrace.schedule import Action, Schedule
from runtime.cases import Case
from runtime.delays import MakeOptimizer
from runtime.reference import TRAINING, cut, flat_layers, seed_cpu, sum_of


def summed(case: Case) -> Case:
    """The case with the sum of squares as its loss."""
    return replace(case, loss_fn=lambda output, y: (output - y).square().sum(), options={"loss_weight": "sum"})


@dataclass
class _Graph:
    """One forward of a stage: what came in, the weights it read, and what came out."""

    source: Tensor
    weights: dict[nn.Parameter, Tensor]
    output: Tensor


@dataclass
class _Step:
    """What is under way, by (stage, micro-batch)."""

    xs: list[Any]
    ys: list[Any]
    graphs: dict[tuple[int, int], _Graph] = field(default_factory=dict)


class Interpreted:
    """A case's model, trained by an asynchronous schedule.

    Args:
        case: with a model of its own.
        layers: how many layers each stage has.
        schedule: without delay.
        make_optimizer: as for Pipeline.
        seed: as torch.initial_seed() is for the pipeline.
    """

    def __init__(
        self, case: Case, layers: tuple[int, ...], schedule: Schedule, make_optimizer: MakeOptimizer, seed: int
    ) -> None:
        self._case, self._schedule, self._seed, self._steps = case, schedule, seed, 0
        self._numbered: list[list[tuple[int, nn.Module]]] = []  # of each stage
        self._optimizers: list[torch.optim.Optimizer | None] = []
        rest = iter(enumerate(flat_layers(case.model)))
        for count in layers:
            self._numbered.append([next(rest) for _ in range(count)])
            named = [(f"{n}.{name}", p) for n, layer in self._numbered[-1] for name, p in layer.named_parameters()]
            self._optimizers.append(make_optimizer(named) if named else None)

    def step(self, batch: tuple[Any, Any]) -> Tensor:
        """One step; its loss."""
        m = self._schedule.micro_batches
        step = _Step(cut(batch[0], m), cut(batch[1], m))
        wanted, done = naive.needs(self._schedule), set[Action]()
        left = [list(row) for row in self._schedule.rows]
        while any(left):
            row = next(row for row in left if row and all(d in done for d in wanted[row[0]]))
            done.add(row[0])
            self._perform(row.pop(0), step)
        self._steps += 1
        return sum_of([step.graphs[self._schedule.stages - 1, k].output for k in range(m)], [1.0] * m)

    def _perform(self, action: Action, step: _Step) -> None:
        stage, kind, k = action
        if kind == "F":
            step.graphs[stage, k] = self._forward(stage, k, step)
        elif kind in "BI":
            after = step.graphs.get((stage + 1, k))
            step.graphs[stage, k].output.backward(None if after is None else after.source.grad)
        if kind in "BW":
            for parameter, copy in step.graphs[stage, k].weights.items():
                if copy.grad is not None:
                    parameter.grad = copy.grad if parameter.grad is None else parameter.grad + copy.grad
        optimizer = self._optimizers[stage]
        if kind == "U" and optimizer is not None:
            optimizer.step()
            optimizer.zero_grad()

    def _forward(self, stage: int, k: int, step: _Step) -> _Graph:
        before = step.xs[k] if stage == 0 else step.graphs[stage - 1, k].output
        source = before.detach().requires_grad_(stage > 0)
        weights = {
            p: p.detach().clone().requires_grad_() for _, layer in self._numbered[stage] for p in layer.parameters()
        }
        value = source
        with torch.random.fork_rng(devices=[]):
            for number, layer in self._numbered[stage]:
                seed_cpu(stream(stream(self._seed, self._steps, TRAINING), number, k))
                value = functional_call(layer, {n: weights[p] for n, p in layer.named_parameters()}, (value,))
        if stage == self._schedule.stages - 1:
            value = self._case.loss_fn(value, step.ys[k])
        return _Graph(source, weights, value)
