"""Rehearse a few real steps, as layers that are measured one by one know nothing of their company.

    one by one    F0 B0 F1 B1 F2 B2 …            what a forward kept is still in the cache, and nobody else computes
    in a step     rank 0   F0 F1 ··B0 F2 B1      it comes back from memory, while another rank uses that as well
                  rank 1   ···F0 B0 F1 B1 …

So each layer's seconds are scaled to what its stage takes in real steps: F and B to those of 1F1B; I and W, and what a
forward costs more if its backward will be split, to those of ZB-H1. What goes on between actions is spread over them.

On accelerators ranks are out of each other's way, and need not have room for more than one layer while a plan is made:
there the layers' own measurement stands.
"""

import copy
import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import torch
from torch import nn
from torch.utils import _pytree as pytree

from headrace.costs import PerRank, Seconds, spread
from headrace.layer_costs import LayerCosts
from headrace.partition import partition
from headrace.profiling.as_found import left_as_found
from headrace.runtime.batch.loss import LossFn
from headrace.runtime.batch.microbatch import count_rows
from headrace.runtime.model.chain import layers_of
from headrace.runtime.model.tied import tied_layers
from headrace.runtime.pipeline import Pipeline
from headrace.runtime.process.processes import from_first, process_count
from headrace.runtime.stage.boundary import Value
from headrace.schedule import build
from headrace.schedule.joined import joined
from headrace.schedule.schedule import Schedule
from headrace.simulate import simulate
from headrace.simulate.corrected import corrected
from headrace.timeline import Timeline

_WARM_UP: Final = 2
_STEPS: Final = 5
_MOST: Final = 4  # micro-batches per rank: more would not tell more


def rehearsed(
    model: nn.Sequential,
    batch: tuple[Value, Value],
    loss_fn: LossFn,
    layers: LayerCosts,
    ranks: int,
    slowness: PerRank = 1,
) -> LayerCosts:
    """`layers` with the seconds that they take in steps of a pipeline; bytes stay as they are.

    Runs on a copy of the model, so nothing of it changes; under torchrun every process must call it. Where there is
    nothing to rehearse with (accelerators, another number of processes, a model that cannot be copied) `layers` are
    returned as they are; of the last, the user is told. Tied layers stay in one stage, and where grad is switched off
    it is on for the steps.

    Args:
        model: a chain of layers.
        batch: input and target of a mini-batch; so much of it is used as a few micro-batches take.
        loss_fn: `loss_fn(output, target)`.
        layers: as measured one by one, for micro-batches of `layers.rows` rows.
        ranks: p.
        slowness: what seconds are multiplied by on each rank; those given and returned are of a device with 1.

    Raises:
        PipelineFailure: a layer failed.
    """
    on_cpu = all(tensor.device.type == "cpu" for tensor in (*model.parameters(), *model.buffers()))
    if not on_cpu or process_count() not in (1, ranks):
        return layers
    try:
        cut = partition(layers.seconds, ranks, tied_layers(layers_of(model)))
    except ValueError:  # too few layers, or pieces of tied ones
        return layers
    with torch.inference_mode(False), torch.enable_grad():
        return _rehearsed(model, batch, loss_fn, layers, cut, slowness)


def _rehearsed(
    model: nn.Sequential,
    batch: tuple[Value, Value],
    loss_fn: LossFn,
    layers: LayerCosts,
    cut: Sequence[int],
    slowness: PerRank,
) -> LayerCosts:
    try:
        own = copy.deepcopy(model)
    except Exception as error:
        warnings.warn(
            f"the model cannot be copied ({error}), so no step is rehearsed: predictions are made from layers measured "
            "one by one",
            stacklevel=3,
        )
        return layers
    ranks = len(cut)
    x, y = batch
    m = min(-(-count_rows("x", x) // layers.rows), _MOST * ranks)
    part = _rows(x, m * layers.rows), _rows(y, m * layers.rows)
    with left_as_found([], []), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what there is to say of the model is said when it is trained
        whole, step = _steps(own, part, loss_fn, build("1f1b", ranks=ranks, micro_batches=m), cut)
        found = _as_in(step, layers, whole, cut, slowness)
        if ranks > 1:
            halves, step = _steps(own, part, loss_fn, build("zb-h1", ranks=ranks, micro_batches=m), cut)
            found = _with_halves(found, _as_in(step, layers, halves, cut, slowness))
    shared: LayerCosts = from_first(found)
    return shared


def _steps(
    model: nn.Sequential, batch: tuple[Value, Value], loss_fn: LossFn, schedule: Schedule, cut: Sequence[int]
) -> tuple[Schedule, Timeline]:
    """The step of median makespan, out of a few."""
    timelines: list[Timeline] = []
    ranks, m = schedule.ranks, schedule.micro_batches
    with Pipeline(model, loss_fn, ranks=ranks, micro_batches=m, schedule=schedule, cut=cut) as pipe:
        for _ in range(_WARM_UP + _STEPS):
            pipe.step(*batch)
            timelines.append(pipe.timeline())
            for parameter in pipe.parameters():
                parameter.grad = None
    counted = sorted(timelines[_WARM_UP:], key=lambda timeline: timeline.makespan)
    return schedule, counted[len(counted) // 2]


def _as_in(step: Timeline, layers: LayerCosts, schedule: Schedule, cut: Sequence[int], slowness: PerRank) -> LayerCosts:
    """What `layers` took in `step`; what that took beyond its actions is spread over these."""
    layers = corrected(layers, schedule, cut, step, slowness)
    slow = spread("slowness", slowness, schedule.ranks, "ranks")
    costs = layers.stage_costs(cut).slowed([slow[rank] for rank in schedule.placement.rank_of])
    simulated = simulate(joined(schedule), costs).makespan
    share = max(1.0, step.makespan / simulated) if simulated else 1.0
    names = ("forward", "backward", "backward_input", "backward_weight")
    more: dict[str, Any] = {name: tuple(share * seconds for seconds in getattr(layers, name)) for name in names}
    return replace(layers, **more)


def _with_halves(whole: LayerCosts, split: LayerCosts) -> LayerCosts:
    """F and B of the one, I and W of the other, whose dearer F is counted in I."""
    more = [max(0.0, f - plain) for f, plain in zip(split.forward, whole.forward, strict=True)]
    inputs: tuple[Seconds, ...] = tuple(i + extra for i, extra in zip(split.backward_input, more, strict=True))
    return replace(whole, backward_input=inputs, backward_weight=split.backward_weight)


def _rows(value: Any, rows: int) -> Any:
    """Copies, as autograd takes no tensors that were made in inference mode."""
    return pytree.tree_map(lambda leaf: leaf[:rows].clone() if isinstance(leaf, torch.Tensor) else leaf, value)
