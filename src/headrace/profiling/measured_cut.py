"""Measure the layers as a rank will run them, once for all processes, and cut them by what was measured."""

from typing import Any

from torch import nn

from headrace.partition import partition
from headrace.profiling.layer_profile import LayerProfile
from headrace.profiling.measure import profile
from headrace.runtime.batch.loss import LossFn
from headrace.runtime.model.chain import layers_of
from headrace.runtime.model.tied import tied_layers
from headrace.runtime.process.processes import from_first, process_rank
from headrace.runtime.process.shares import computing_as_a_rank
from headrace.runtime.stage.boundary import Value
from headrace.schedule.numbers import at_least


def profile_as_rank(
    model: nn.Sequential, sample: Value, ranks: int, *, loss_fn: LossFn | None = None, target: Value = None
) -> LayerProfile:
    """`profile`, with the intra-op threads that each of `ranks` ranks will have.

    What ranks that compute at once cost each other, only `rehearsed` knows.

    Under torchrun the first process measures and the others get its numbers, so every process must call it.

    Raises:
        TypeError, ValueError: as `profile`, in every process.
    """
    at_least(1, ranks=ranks)
    found: Any = None
    if process_rank() == 0:
        try:
            with computing_as_a_rank(ranks):
                found = profile(model, sample, loss_fn=loss_fn, target=target)
        except Exception as error:
            from_first(error)
            raise
    found = from_first(found)
    if isinstance(found, Exception):
        raise found
    measured: LayerProfile = found
    return measured


def measured_cut(
    model: nn.Sequential, sample: Value, ranks: int, *, loss_fn: LossFn | None = None, target: Value = None
) -> tuple[int, ...]:
    """How many layers each of `ranks` stages gets so that the slowest is as fast as possible, by measurement.

    Layers with tied weights stay together. Under torchrun the first process measures, and every process must call it.

    Args:
        model: a chain of layers.
        sample: the input of one micro-batch.
        ranks: how many stages to cut into.
        loss_fn, target: if given, the loss counts in the last stage.

    Raises:
        TypeError, ValueError: the model or the sample cannot be measured, or there are fewer layers than stages.
    """
    costs = profile_as_rank(model, sample, ranks, loss_fn=loss_fn, target=target).costs
    return partition(costs, ranks, tied_layers(layers_of(model)))
