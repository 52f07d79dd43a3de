"""Rehearse a few real steps, as layers that are measured one by one know nothing of their company.

    one by one    F0 B0 F1 B1 F2 B2 …            what a forward kept is still in the cache, and nobody else computes
    in a step     rank 0   F0 F1 ··B0 F2 B1      it comes back from memory, while another rank uses that as well
                  rank 1   ···F0 B0 F1 B1 …

So each layer's seconds are scaled to what its stage takes in real steps: F and B to those of 1F1B; I and W, and what a
forward costs more if its backward will be split, to those of ZB-H1. What goes on between actions is spread over them.

Sizes of micro-batches and schedules take turns, round after round: when the machine slows down for a while, all of them
feel it alike, and the step of median makespan none.

On accelerators ranks are out of each other's way, and need not have room for more than one layer while a plan is made:
there the layers' own measurement stands.
"""

import copy
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
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

_WARM_UP: Final = 1
_STEPS: Final = 3
_ROUNDS: Final = 3
_ENOUGH: Final = 10.0
"""Seconds after which no other round begins."""
_MOST: Final = 4  # micro-batches per rank: more would not tell more


def rehearsed(
    model: nn.Sequential,
    batch: tuple[Value, Value],
    loss_fn: LossFn,
    sizes: Sequence[LayerCosts],
    ranks: int,
    slowness: PerRank = 1,
) -> tuple[LayerCosts, ...]:
    """`sizes` with the seconds that their layers take in steps of a pipeline; bytes stay as they are.

    Runs on a copy of the model, so nothing of it changes; under torchrun every process must call it. Where there is
    nothing to rehearse with (accelerators, another number of processes, a model that cannot be copied) `sizes` are
    returned as they are; of the last, the user is told. Tied layers stay in one stage, and where grad is switched off
    it is on for the steps.

    Args:
        model: a chain of layers.
        batch: input and target of a mini-batch; so much of it is used as a few micro-batches take.
        loss_fn: `loss_fn(output, target)`.
        sizes: the layers as measured one by one, for micro-batches of their `rows` rows.
        ranks: p.
        slowness: what seconds are multiplied by on each rank; those given and returned are of a device with 1.

    Raises:
        PipelineFailure: a layer failed.
    """
    as_measured = tuple(sizes)
    on_cpu = all(tensor.device.type == "cpu" for tensor in (*model.parameters(), *model.buffers()))
    if not on_cpu or process_count() not in (1, ranks):
        return as_measured
    tied = tied_layers(layers_of(model))
    try:
        cuts = [partition(layers.seconds, ranks, tied) for layers in sizes]
    except ValueError:  # too few layers, or pieces of tied ones
        return as_measured
    with torch.inference_mode(False), torch.enable_grad():
        try:
            own = copy.deepcopy(model)
        except Exception as error:
            warnings.warn(
                f"the model cannot be copied ({error}), so no step is rehearsed: predictions are made from layers "
                "measured one by one",
                stacklevel=2,
            )
            return as_measured
        plays = [_plays(layers, cut, batch) for layers, cut in zip(sizes, cuts, strict=True)]
        with left_as_found([], []), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what there is to say of the model is said when it is trained
            steps = iter(_taking_turns(own, loss_fn, list(chain.from_iterable(plays))))
    found = []
    for of_size in plays:
        whole, *halves = (_as_in(play, next(steps), slowness) for play in of_size)
        found.append(_with_halves(whole, halves[0]) if halves else whole)
    shared: tuple[LayerCosts, ...] = from_first(tuple(found))
    return shared


@dataclass(frozen=True)
class _Play:
    """What is rehearsed.

    Attributes:
        layers: as measured one by one.
        cut: by which they run.
        schedule: in this order.
        batch: with these rows.
    """

    layers: LayerCosts
    cut: Sequence[int]
    schedule: Schedule
    batch: tuple[Any, Any]


def _plays(layers: LayerCosts, cut: Sequence[int], batch: tuple[Value, Value]) -> list[_Play]:
    """Backwards whole, and where they may be split, in halves."""
    x, y = batch
    ranks = len(cut)
    m = min(-(-count_rows("x", x) // layers.rows), _MOST * ranks)
    part = _rows(x, m * layers.rows), _rows(y, m * layers.rows)
    names = ("1f1b",) if ranks == 1 else ("1f1b", "zb-h1")
    return [_Play(layers, cut, build(name, ranks=ranks, micro_batches=m), part) for name in names]


def _taking_turns(model: nn.Sequential, loss_fn: LossFn, plays: Sequence[_Play]) -> list[Timeline]:
    """Of each play the step of median makespan, out of a few rounds."""
    timelines: list[list[Timeline]] = [[] for _ in plays]
    begin = time.perf_counter()
    for _ in range(_ROUNDS):
        for play, of_play in zip(plays, timelines, strict=True):
            of_play.extend(_steps(model, play.batch, loss_fn, play.schedule, play.cut))
        if from_first(time.perf_counter() - begin) > _ENOUGH:
            break
    return [sorted(found, key=lambda step: step.makespan)[len(found) // 2] for found in timelines]


def _steps(
    model: nn.Sequential, batch: tuple[Value, Value], loss_fn: LossFn, schedule: Schedule, cut: Sequence[int]
) -> list[Timeline]:
    """A few steps, after one that does not count."""
    timelines: list[Timeline] = []
    ranks, m = schedule.ranks, schedule.micro_batches
    with Pipeline(model, loss_fn, ranks=ranks, micro_batches=m, schedule=schedule, cut=cut) as pipe:
        for _ in range(_WARM_UP + _STEPS):
            pipe.step(*batch)
            timelines.append(pipe.timeline())
            for parameter in pipe.parameters():
                parameter.grad = None
    return timelines[_WARM_UP:]


def _as_in(play: _Play, step: Timeline, slowness: PerRank) -> LayerCosts:
    """What the layers took in `step`; what that took beyond its actions is spread over these."""
    schedule, cut = play.schedule, play.cut
    layers = corrected(play.layers, schedule, cut, step, slowness)
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
