"""The unsplit model, trained in one thread: what every pipeline is compared with.

It takes micro-batches one by one, forwards in their order (which layers with running statistics notice), and adds up
their gradients layer by layer in the order of a schedule, lane by lane: that order is all that a pipeline may choose.
Nothing of the runtime's interpreter or stages is used here, so it is evidence.
"""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from headrace.runtime.batch.loss import LossFn
from headrace.runtime.batch.microbatch import LossWeight, count_rows, split, weights
from headrace.runtime.model.chain import layers_of
from headrace.runtime.stage.boundary import Value
from headrace.runtime.stage.randomness import stream
from headrace.schedule.actions import ENDS_BACKWARD
from headrace.schedule.schedule import Schedule

Order = Sequence[Sequence[int]]
"""For each lane, micro-batches in the order in which their gradients are added."""


class Unsplit:
    """Steps of the whole model in this thread.

    Args:
        model: a chain of layers; trained in place.
        loss_fn, loss_weight: as for `Pipeline`.
    """

    def __init__(self, model: nn.Sequential, loss_fn: LossFn, loss_weight: LossWeight = "rows") -> None:
        self._layers = list(layers_of(model).values())
        self._loss_fn = loss_fn
        self._loss_weight = loss_weight
        self._steps = 0

    def step(self, x: Value, y: Value, orders: Sequence[Order]) -> Tensor:
        """The gradients of one mini-batch, those of each layer added up in its order; returns the loss."""
        m = sum(map(len, orders[0]))
        inputs, targets = split("x", x, m), split("y", y, m)
        shares = weights(count_rows("y", y), targets, self._loss_weight)
        seed = stream(torch.initial_seed(), self._steps, 0)
        losses: list[Tensor] = []
        for k in range(m):
            value = inputs[k]
            with torch.random.fork_rng(devices=[]):
                for number, layer in enumerate(self._layers):
                    torch.default_generator.manual_seed(stream(seed, number, k))
                    value = layer(value)
                torch.default_generator.manual_seed(stream(seed, len(self._layers), k))
                losses.append(self._loss_fn(value, targets[k]) if shares[k] else value.new_zeros(()))
        self._accumulate([loss if share else None for loss, share in zip(losses, shares, strict=True)], shares, orders)
        self._steps += 1
        stacked = torch.stack([loss.detach() for loss in losses])
        return (stacked * torch.tensor(shares, dtype=stacked.dtype)).sum()

    def _accumulate(self, losses: Sequence[Tensor | None], shares: Sequence[float], orders: Sequence[Order]) -> None:
        order_of = {p: o for layer, o in zip(self._layers, orders, strict=True) for p in layer.parameters()}
        parameters = [p for p in order_of if p.requires_grad]
        of_micro_batch = [
            None
            if loss is None
            else torch.autograd.grad(loss, parameters, torch.tensor(share, dtype=loss.dtype), allow_unused=True)
            for loss, share in zip(losses, shares, strict=True)
        ]
        for i, parameter in enumerate(parameters):
            lanes = [
                _sum(part[i] for k in lane if (part := of_micro_batch[k]) is not None) for lane in order_of[parameter]
            ]
            total = _sum(lanes)
            if total is not None:
                parameter.grad = total.clone() if parameter.grad is None else parameter.grad + total


def _sum(parts: Iterable[Tensor | None]) -> Tensor | None:
    """Of those that are there, one after the other."""
    total: Tensor | None = None
    for part in parts:
        if part is not None:
            total = part if total is None else total + part
    return total


def refuse_other_mathematics(schedule: Schedule) -> None:
    """Refuse what the unsplit model cannot be compared with bit by bit.

    Raises:
        ValueError: the schedule updates weights within a step, or cuts sequences.
    """
    if schedule.asynchronous or schedule.segments > 1:
        raise ValueError(
            f"schedule {schedule.name!r} cannot be compared bit by bit with the unsplit model: "
            + ("it learns with delayed weights" if schedule.asynchronous else "it cuts sequences into segments")
        )


def accumulation_orders(schedule: Schedule, cut: Sequence[int]) -> list[Order]:
    """For each layer of a cut model, the order in which its stage ends the backwards of micro-batches, lane by lane."""
    orders: list[Order] = []
    for stage, layers in enumerate(cut):
        lanes: list[list[int]] = []
        for lane, rank in enumerate(schedule.placement.lanes):
            row = schedule.rows[rank[stage]]
            ended = [k for s, kind, k in row if s == stage and kind in ENDS_BACKWARD]
            lanes.append([k for k in ended if schedule.placement.lane(k) == lane])
        orders += [lanes] * layers
    return orders
