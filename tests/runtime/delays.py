"""Asynchronous training in one thread: every version of each stage's weights is kept, and picked by a formula.

    for each micro-batch k, in order:
        output = the layers, each stage's with the weights after version(stage, k) updates
        loss.backward(weight of k in its group)
        if k ends a group, for each stage: an optimizer step with the group's gradients, and one more version

Nothing of the runtime is in here but the definition of the streams of random numbers.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from runtime.cases import Case
from runtime.reference import Unsplit, flat_layers, sum_of
from runtime.reference import cut as in_micro_batches

MakeOptimizer = Callable[[list[tuple[str, nn.Parameter]]], Optimizer]
Version = Callable[[int, int], int]
"""From (stage, micro-batch) to the number of updates that its weights have had."""

OPTIMIZERS: dict[str, MakeOptimizer] = {
    "sgd": lambda named: torch.optim.SGD(named, lr=0.05, momentum=0.9),
    "adamw": lambda named: torch.optim.AdamW(named, lr=0.05),
}


def newest(ranks: int) -> Version:
    """PipeDream: rank r runs p−1−r forwards before its first backward, and from then on one of each in turn."""
    return lambda rank, k: max(0, k - (ranks - 1 - rank))


def one_group_behind(accumulate: int) -> Version:
    """PipeDream-2BW: W(t+1) = W(t) − η∇f(W(t−1)) on every rank."""
    return lambda _, k: max(0, k // accumulate - 1)


@dataclass
class _StageState:
    """A stage's parameters, all versions of their values in this step, and the optimizer."""

    parameters: list[nn.Parameter]
    optimizer: Optimizer | None
    versions: list[list[Tensor]] = field(default_factory=list)

    def keep(self) -> None:
        self.versions.append([p.detach().clone() for p in self.parameters])

    def update(self) -> None:
        if self.optimizer is not None:
            self.optimizer.step()
            self.optimizer.zero_grad()
        self.keep()


class Emulation:
    """A case's model in stages whose gradients come late.

    Args:
        case: with a model of its own.
        cut: how many layers each stage has.
        version: which weights a micro-batch reads.
        accumulate: how many micro-batches one update uses; the last one of a step those that are left.
        make_optimizer: as for Pipeline.
        seed: as torch.initial_seed() is for the pipeline.
    """

    def __init__(
        self,
        case: Case,
        cut: tuple[int, ...],
        version: Version,
        accumulate: int,
        make_optimizer: MakeOptimizer,
        seed: int,
    ) -> None:
        self._case = case
        self._plain = Unsplit(case, seed)
        self._version = version
        self._accumulate = accumulate
        names = {id(p): name for name, p in case.model.named_parameters()}
        self._stages = []
        layers = iter(flat_layers(case.model))
        for count in cut:
            here = [next(layers) for _ in range(count)]
            mine = {id(p): p for layer in here for p in layer.parameters()}
            optimizer = make_optimizer([(names[key], p) for key, p in mine.items()]) if mine else None
            self._stages.append(_StageState([*mine.values()], optimizer))

    def step(self, batch: tuple[Any, Any], micro_batches: int) -> Tensor:
        """One step; its loss, of all micro-batches by what they count for."""
        xs, ys = in_micro_batches(batch[0], micro_batches), in_micro_batches(batch[1], micro_batches)
        shares = self._plain.weights(ys)
        losses = []
        for state in self._stages:
            state.versions.clear()
            state.keep()
        for k, (x, y, share) in enumerate(zip(xs, ys, shares, strict=True)):
            leaves = self._weights_for(k)
            with self._standing_in(leaves):
                losses.append(self._plain.loss(self._plain.forward(x, k), y, share))
                if losses[k].requires_grad:
                    losses[k].backward(torch.tensor(self._weight(k, shares), dtype=losses[k].dtype))
            for state, of_stage in zip(self._stages, leaves, strict=True):
                for parameter, leaf in zip(state.parameters, of_stage, strict=True):
                    if leaf.grad is not None:
                        parameter.grad = leaf.grad if parameter.grad is None else parameter.grad + leaf.grad
                if k % self._accumulate == self._accumulate - 1 or k == micro_batches - 1:
                    state.update()
        self._plain.steps += 1
        return sum_of(losses, shares)

    def _weights_for(self, k: int) -> list[list[Tensor]]:
        """By stage, the weights that micro-batch k reads, as leaves of its own."""
        return [
            [
                value.clone().requires_grad_(parameter.requires_grad)
                for value, parameter in zip(state.versions[self._version(stage, k)], state.parameters, strict=True)
            ]
            for stage, state in enumerate(self._stages)
        ]

    @contextmanager
    def _standing_in(self, leaves: list[list[Tensor]]) -> Iterator[None]:
        """Within it, the model has these weights; also when a layer runs again in its backward."""
        leaf_of = {
            parameter: leaf
            for state, of_stage in zip(self._stages, leaves, strict=True)
            for parameter, leaf in zip(state.parameters, of_stage, strict=True)
        }
        places = [m._parameters for m in self._case.model.modules()]
        before = [dict(place) for place in places]
        for place in places:
            place.update({name: leaf_of[p] for name, p in place.items() if p is not None})
        try:
            yield
        finally:
            for place, parameters in zip(places, before, strict=True):
                place.update(parameters)

    def _weight(self, k: int, shares: list[float]) -> float:
        """What the gradient of micro-batch k counts for in its group: an update takes the group's mean, or its sum."""
        if self._case.options.get("loss_weight") == "sum":
            return 1.0
        first = k - k % self._accumulate
        return shares[k] / sum(shares[first : first + self._accumulate]) if shares[k] else 0.0
