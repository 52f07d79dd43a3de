"""From the arguments of a pipeline to what it will run: a proven schedule, a cut model, a device per rank."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from headrace.runtime.batch.loss import LossFn
from headrace.runtime.batch.microbatch import LossWeight
from headrace.runtime.model.cut import CutModel
from headrace.runtime.model.devices import Devices, devices_of_ranks
from headrace.runtime.model.recompute import Recompute, of_stages, recomputed_layers
from headrace.runtime.model.replica import refuse_running_statistics
from headrace.schedule.catalogue import build
from headrace.schedule.check import Proof, check
from headrace.schedule.numbers import at_least
from headrace.schedule.schedule import Schedule


@dataclass(frozen=True)
class Prepared:
    """What a pipeline will run.

    Attributes:
        schedule: proven.
        proof: its proof.
        model: the layers of each stage.
        devices: of each rank.
        recomputes: the layers that recompute one by one.
    """

    schedule: Schedule
    proof: Proof
    model: CutModel
    devices: list[torch.device]
    recomputes: tuple[str, ...]


def prepare(
    model: nn.Sequential,
    loss_fn: LossFn,
    ranks: int,
    micro_batches: int,
    schedule: str | Schedule,
    recompute: Recompute,
    cut: Sequence[int] | None,
    devices: Devices,
    loss_weight: LossWeight,
    optimizer: object,
) -> Prepared:
    """Check the arguments, which are those of `Pipeline`, and prepare.

    Raises:
        TypeError, ValueError: an argument does not fit.
        InvalidSchedule: the schedule is refuted.
    """
    if not callable(loss_fn):
        raise TypeError(f"loss_fn={loss_fn!r} must be a function of (output, target)")
    if isinstance(loss_fn, nn.Module) and any(parameter.requires_grad for parameter in loss_fn.parameters()):
        raise ValueError(
            "loss_fn has parameters of its own, which belong to no stage and would not be trained: "
            "move them into the last layer of the model"
        )
    if not callable(loss_weight) and loss_weight not in ("rows", "sum"):
        raise ValueError(f'loss_weight={loss_weight!r} must be "rows", "sum" or a function of the target')
    order = _schedule(schedule, ranks, micro_batches, recompute)
    if order.asynchronous and not callable(optimizer):
        raise ValueError(
            f"schedule {order.name!r} updates weights within a step, so it needs to know how: pass optimizer=, a "
            "function from a stage's named parameters to its optimizer, such as lambda p: torch.optim.SGD(p, lr=0.1)"
        )
    if optimizer is not None and not order.asynchronous:
        raise ValueError(
            f"optimizer= goes with asynchronous schedules, but {order.name!r} is synchronous: make an optimizer of "
            "pipe.named_parameters() and call its step() after pipe.step()"
        )
    proof = check(order)
    cut_model = CutModel(model, order.stages, cut)
    if len(order.placement.lanes) > 1:
        refuse_running_statistics(cut_model.layers, order.name)
    layers = [cut_model.layers_on(order.placement.stages_of(rank)) for rank in range(ranks)]
    again = recomputed_layers(recompute, cut_model.stage_layers, order)
    return Prepared(order, proof, cut_model, devices_of_ranks(devices, layers), again)


def _schedule(schedule: str | Schedule, ranks: int, micro_batches: int, recompute: Recompute) -> Schedule:
    if isinstance(schedule, str):
        return build(schedule, ranks=ranks, micro_batches=micro_batches, recompute=of_stages(recompute))
    if not isinstance(schedule, Schedule):
        raise TypeError(f"schedule={schedule!r} must be a name of the catalogue or a headrace Schedule")
    at_least(1, ranks=ranks, micro_batches=micro_batches)
    of_schedule = schedule.micro_batches // schedule.segments
    if (schedule.ranks, of_schedule) != (ranks, micro_batches):
        raise ValueError(
            f"schedule {schedule.name!r} is for ranks={schedule.ranks} and micro_batches={of_schedule}, "
            f"not for ranks={ranks} and micro_batches={micro_batches}"
        )
    if of_stages(recompute) != "never":
        raise ValueError(
            f"recompute={recompute!r} goes with a schedule's name; a Schedule has its own R actions: name only layers"
        )
    return schedule
