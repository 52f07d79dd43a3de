"""How many rows a second a plan makes when it is run here."""

import time
from typing import TYPE_CHECKING

from torch import nn

from headrace.runtime.batch.loss import LossFn
from headrace.runtime.pipeline import Pipeline
from headrace.runtime.stage.boundary import Value
from headrace.train.clock import StepClock

if TYPE_CHECKING:
    from headrace.planner import Plan


def rows_per_second(
    model: nn.Sequential, loss_fn: LossFn, batch: tuple[Value, Value], plan: "Plan", steps: int = 8
) -> float:
    """Rows of the batch ÷ the median seconds of a step: forward, loss and backward, without an optimizer.

    Args:
        model: what the plan is for; its gradients are gone afterwards.
        loss_fn, batch: as the plan was made with.
        plan: what it says is run, every rank a thread.
        steps: how many; the first three do not count, if there are more.

    Raises:
        ValueError, PipelineFailure: as for `Pipeline.step`.
    """
    clock = StepClock()
    with Pipeline(
        model, loss_fn, ranks=plan.ranks, micro_batches=plan.micro_batches, schedule=plan.schedule, cut=plan.cut,
        recompute=plan.recomputed_layers,
    ) as pipe:  # fmt: skip
        for _ in range(steps):
            model.zero_grad()
            start = time.perf_counter()
            pipe.step(*batch)
            clock.add(time.perf_counter() - start, pipe.timeline())
    model.zero_grad()
    return plan.batch / clock.step_seconds
