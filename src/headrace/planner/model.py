"""Plan for a real model: measure its layers and the links here, then choose."""

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from headrace.analytic import load_hardware
from headrace.analytic.estimate import estimate
from headrace.costs import Bytes, PerRank, Seconds
from headrace.layer_costs import LayerCosts
from headrace.partition.problem import Allowed
from headrace.planner.build_plan import make_plan
from headrace.planner.candidates import usual_numbers
from headrace.planner.plan import Plan
from headrace.planner.request import Request
from headrace.profiling import profile_by_rank
from headrace.profiling.links import measure_links
from headrace.profiling.rehearsal import rehearsed
from headrace.runtime.batch.loss import LossFn, scalar
from headrace.runtime.batch.microbatch import count_rows
from headrace.runtime.model.chain import layers_of
from headrace.runtime.model.cut import CutModel
from headrace.runtime.model.tied import tied_layers
from headrace.runtime.process.processes import from_first, process_count
from headrace.runtime.stage.boundary import Value
from headrace.schedule.numbers import at_least

_SIZES = 3  # of micro-batches that are measured; those between are interpolated


def plan(
    model: nn.Sequential,
    batch: tuple[Value, Value],
    loss_fn: LossFn,
    *,
    ranks: int,
    memory: Bytes | Sequence[Bytes] | None = None,
    schedules: Sequence[str] | None = None,
    micro_batches: Sequence[int] | None = None,
    recompute: Allowed = "layer",
    optimizer_bytes: float = 2,
    search: bool = False,
    keep_together: Sequence[Collection[int]] = (),
    pin_rank: Mapping[int, int] | None = None,
) -> Plan:
    """Measure `model` here and choose the fastest step that fits; under torchrun every process gets the same plan.

    Args:
        model: a chain of layers, on the device where it will run.
        batch: input and target of one mini-batch.
        loss_fn: `loss_fn(output, target)`.
        ranks: p.
        memory: bytes that each rank can hold; None for no limit.
        schedules, micro_batches, recompute, search, keep_together, pin_rank: what to choose from, see `Request`.
            Layers with tied weights are kept together in any case.
        optimizer_bytes: the optimizer's state in bytes per byte of what learns: 2 for Adam, 0 for plain SGD.

    Raises:
        NoPlanFits: nothing fits; it says what would.
        TypeError, ValueError: the model or the batch cannot be measured, or an argument is out of its range.
        PipelineFailure: a step could not be rehearsed, as it could not be trained: the loss is no number, say.
    """
    found = measured(model, batch, loss_fn, ranks, micro_batches, optimizer_bytes=optimizer_bytes)
    request = replace(
        found.request(ranks, memory),
        schedules=schedules,
        micro_batches=micro_batches,
        recompute=recompute,
        search=search,
        keep_together=(*found.tied, *keep_together),
        pin_rank=pin_rank or {},
    )
    made: Plan = from_first(make_plan(request, fingerprint=fingerprint(model), devices=(found.device,) * ranks))
    return made


@dataclass(frozen=True)
class Findings:
    """What is known of a model and of the ranks that it is to run on.

    Attributes:
        sizes: the layers' costs for some sizes of micro-batches.
        rows: of the mini-batch.
        latency, bandwidth: of links.
        memory: bytes of a rank; None if that is not known.
        device: of the first rank.
        slowness: what the sizes' seconds are multiplied by on each rank: 2 for a device half as fast.
        tied: the first and the last layer of each group with tied weights, which share a stage.
    """

    sizes: tuple[LayerCosts, ...]
    rows: int
    latency: Seconds
    bandwidth: float | None
    memory: Bytes | None
    device: str
    tied: tuple[tuple[int, int], ...] = ()
    slowness: PerRank = 1

    def request(self, ranks: int, memory: Bytes | Sequence[Bytes] | None = None) -> Request:
        """To plan for these ranks, choosing from all that there is.

        Args:
            ranks: p.
            memory: bytes that each rank can hold; None for all that it has, as far as that is known.

        Raises:
            ValueError: there is no rank, or no row.
        """
        return Request(
            sizes=self.sizes,
            batch=self.rows,
            ranks=ranks,
            memory=self.memory if memory is None else memory,
            latency=self.latency,
            bandwidth=self.bandwidth,
            slowness=self.slowness,
            keep_together=self.tied,
        )


def measured(
    model: nn.Sequential,
    batch: tuple[Value, Value],
    loss_fn: LossFn,
    ranks: int,
    micro_batches: Sequence[int] | None = None,
    *,
    optimizer_bytes: float = 2,
) -> Findings:
    """What the layers take here, as one of `ranks` ranks runs them, and the links between these."""
    x, y = batch
    rows = _rows(batch, ranks, micro_batches, optimizer_bytes)
    one_by_one: list[LayerCosts] = []
    slowness: PerRank = 1
    for some in _row_sizes(rows, ranks, micro_batches):
        try:
            found = profile_by_rank(model, _first(x, some), ranks, loss_fn=loss_fn, target=_first(y, some))
        except Exception as error:
            if some < rows:
                error.add_note(
                    f"with micro-batches of {some} of the {rows} rows: micro_batches= says how many there may be"
                )
            raise
        slowness = found.slowness  # of the largest size, which overheads count least in
        one_by_one.append(found.first.layer_costs(some, optimizer_bytes))
    sizes = rehearsed(model, batch, loss_fn, one_by_one, ranks, slowness)
    device = next((str(p.device) for p in model.parameters()), "cpu")
    tied = tied_layers(layers_of(model))
    if ranks == 1 or process_count() not in (1, ranks):
        return Findings(sizes, rows, 0, None, None, device, tied, slowness)
    link = measure_links(ranks)
    return Findings(sizes, rows, link.latency, link.bandwidth, None, device, tied, slowness)


def described(
    model: nn.Sequential,
    batch: tuple[Value, Value],
    loss_fn: LossFn,
    ranks: int,
    micro_batches: Sequence[int] | None,
    hardware: str,
    optimizer_bytes: float = 2,
) -> Findings:
    """What they would take on hardware that is not here: a name of `hardware_names()`, or a TOML file."""
    x, y = batch
    rows = _rows(batch, ranks, micro_batches, optimizer_bytes)
    device = load_hardware(hardware)
    width = next((p.element_size() for p in model.parameters()), 4)
    sizes = tuple(
        estimate(
            model,
            _first(x, some),
            device,
            loss_fn=lambda output, target: scalar("loss_fn", loss_fn(output, target)),
            target=_first(y, some),
            optimizer=optimizer_bytes * width,
        )
        for some in _row_sizes(rows, ranks, micro_batches)
    )
    tied = tied_layers(layers_of(model))
    return Findings(sizes, rows, device.link_latency, device.link_bandwidth, device.memory, device.name, tied)


def fingerprint(model: nn.Sequential) -> str:
    """A hash of the names, shapes and dtypes of all that `model` learns or keeps."""
    signature = CutModel(model, 1).signature()
    return hashlib.sha256(repr(signature).encode()).hexdigest()[:32]


def refuse_stale(plan: Plan, model: nn.Sequential, rows: int | None = None) -> None:
    """Refuse a plan that was made for something else.

    Raises:
        ValueError: the model, the batch or torch differ from the plan's; the message names what.
    """
    mine = fingerprint(model)
    if plan.fingerprint and plan.fingerprint != mine:
        raise ValueError(
            f"the plan is for another model: its fingerprint is {plan.fingerprint[:8]}…, this model's {mine[:8]}…. "
            "Plan again for this one, or make the other: layers and sizes must be the same"
        )
    if not plan.fingerprint and plan.layers != tuple(CutModel(model, 1).layers):
        raise ValueError(f"the plan is for the layers {', '.join(plan.layers)}, which this model does not have")
    version = torch.__version__.split("+")[0]
    if plan.torch and plan.torch.split("+")[0] != version:
        raise ValueError(f"the plan was measured with torch {plan.torch}, but this is {version}: plan again")
    if plan.replicas > 1:
        raise ValueError(
            f"the plan has {plan.replicas} replicas, which a pipeline does not make: give it replicas=(1,)"
        )
    if rows is not None and rows != plan.batch:
        raise ValueError(f"the plan is for batches of {plan.batch} rows, not of {rows}: plan again for these")


def _rows(batch: tuple[Value, Value], ranks: int, micro_batches: Sequence[int] | None, optimizer_bytes: float) -> int:
    """Of the mini-batch, once all that was given with it can be.

    Raises:
        TypeError, ValueError: an argument is out of its range.
    """
    at_least(1, ranks=ranks)
    x, y = batch
    rows, targets = count_rows("x", x), count_rows("y", y)
    if not rows or rows != targets:
        raise ValueError(f"x has {rows} rows and y {targets}: they must be rows of the same batch, one or more")
    for m in micro_batches or ():
        at_least(1, micro_batches=m)
    if micro_batches and min(micro_batches) > rows:
        raise ValueError(f"micro_batches={list(micro_batches)} are more than the batch has rows, which is {rows}")
    if not 0 <= optimizer_bytes < inf:
        raise ValueError(f"optimizer_bytes={optimizer_bytes!r} must be finite and at least 0")
    return rows


def _row_sizes(rows: int, ranks: int, micro_batches: Sequence[int] | None) -> list[int]:
    """The smallest, the largest and a middle one of the sizes that micro-batches may have."""
    numbers = micro_batches or usual_numbers(ranks, rows)
    sizes = sorted({-(-rows // m) for m in numbers if m <= rows} or {1})
    return sorted({sizes[0], sizes[len(sizes) // 2], sizes[-1]})[:_SIZES]


def _first(value: Any, rows: int) -> Any:
    return pytree.tree_map(lambda leaf: leaf[:rows] if isinstance(leaf, torch.Tensor) else leaf, value)
