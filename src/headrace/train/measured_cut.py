"""Measure the layers as a rank will run them, and cut them so that the slowest stage is as fast as it can be."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from headrace.partition import partition
from headrace.profiling import LayerProfile, profile
from headrace.runtime.loss import LossFn
from headrace.runtime.processes import from_first, is_distributed, process_rank


def measured_cut(
    model: nn.Sequential, x: Any, y: Any, loss_fn: LossFn, stages: int
) -> tuple[LayerProfile, tuple[int, ...]]:
    """A profile of the layers on one micro-batch, and the best cut by it; the first process measures for all.

    Args:
        model: a chain of layers.
        x, y: one micro-batch and its target.
        loss_fn: counted in the last stage.
        stages: how many stages to cut into.

    Raises:
        ValueError: there are fewer layers than stages.
    """
    measured = None
    if process_rank() == 0:
        with threads_of_a_rank(stages):
            measured = profile(model, x, loss_fn=loss_fn, target=y)
    agreed = from_first(measured)
    if agreed is None:
        raise RuntimeError("the first process sent no measurement")
    return agreed, partition(agreed.costs, stages)


@contextmanager
def threads_of_a_rank(ranks: int) -> Iterator[None]:
    """Within it, this thread computes with as many intra-op threads as each of `ranks` threads of a pipeline would.

    Under torchrun a process is a rank already, and nothing changes.
    """
    mine = torch.get_num_threads()
    if not is_distributed():
        torch.set_num_threads(max(1, mine // ranks))
    try:
        yield
    finally:
        torch.set_num_threads(mine)
