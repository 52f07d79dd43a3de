"""Measure the layers as a rank will run them, and cut them by what was measured."""

from torch import nn

from headrace.partition import Problem, best_cuts
from headrace.profiling.by_rank import profile_by_rank
from headrace.runtime.batch.loss import LossFn
from headrace.runtime.model.chain import layers_of
from headrace.runtime.model.tied import tied_layers
from headrace.runtime.stage.boundary import Value
from headrace.schedule.placement import Placement


def measured_cut(
    model: nn.Sequential, sample: Value, ranks: int, *, loss_fn: LossFn | None = None, target: Value = None
) -> tuple[int, ...]:
    """How many layers each of `ranks` stages gets so that the slowest is as fast as possible, by measurement.

    Layers with tied weights stay together, and slower devices get less. Under torchrun every process must call it.

    Args:
        model: a chain of layers.
        sample: the input of one micro-batch.
        ranks: how many stages to cut into.
        loss_fn, target: if given, the loss counts in the last stage.

    Raises:
        TypeError, ValueError: the model or the sample cannot be measured, or there are fewer layers than stages.
    """
    found = profile_by_rank(model, sample, ranks, loss_fn=loss_fn, target=target)
    problem = Problem(
        costs=found.first.layer_costs(rows=1),
        placement=Placement(tuple(range(ranks))),
        micro_batches=1,
        slowness=found.slowness,
        keep_together=tied_layers(layers_of(model)),
    )
    return best_cuts(problem, "slowest").cuts[0].layers
