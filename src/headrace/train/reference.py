"""The unsplit model, trained in one thread: what every pipeline is compared with.

It takes micro-batches one by one, forwards in their order (which layers with running statistics notice) and backwards
in the order of a schedule, in which gradients accumulate: that order is all that a pipeline may choose. Nothing of the
runtime's interpreter or stages is used here, so it is evidence.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from headrace.runtime.batch.loss import LossFn
from headrace.runtime.batch.microbatch import LossWeight, count_rows, split, weights
from headrace.runtime.model.chain import layers_of
from headrace.runtime.stage.boundary import Value
from headrace.runtime.stage.randomness import stream
from headrace.schedule.actions import BACKWARD
from headrace.schedule.schedule import Schedule


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

    def step(self, x: Value, y: Value, order: Sequence[int]) -> Tensor:
        """The gradients of one mini-batch, micro-batches in `order`; returns its loss."""
        m = len(order)
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
        for k in order:
            if shares[k]:
                losses[k].backward(torch.tensor(shares[k], dtype=losses[k].dtype))
        self._steps += 1
        stacked = torch.stack([loss.detach() for loss in losses])
        return (stacked * torch.tensor(shares, dtype=stacked.dtype)).sum()


def backward_order(schedule: Schedule) -> list[int]:
    """The order of the last stage's backwards, which is that of every stage in gpipe and 1f1b."""
    last = schedule.stages - 1
    row = schedule.rows[schedule.placement.rank_of[last]]
    return [k for stage, kind, k in row if stage == last and kind == BACKWARD]
