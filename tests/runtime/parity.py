"""The race that every synchronous schedule must draw: a pipeline against the unsplit model, both trained alike."""

from dataclasses import replace
from typing import Final

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import headrace as hr
from headrace.runtime.executor import Overlap
from headrace.schedule import Schedule
from runtime.cases import ROWS, Case
from runtime.pipes import SEED
from runtime.reference import Unsplit, backward_ends, differing, everything, flat_layers, gradients, same

STEPS: Final = 3


def assert_parity(
    case: Case,
    twin: Case,
    schedule: Schedule,
    cut: tuple[int, ...] | None,
    *,
    overlap: Overlap | None = None,
    accumulate: int = 1,
) -> None:
    """Train `case` through a pipeline and `twin` unsplit, and compare everything after each step.

    Gradients of `accumulate` steps are added up for each step of the optimizers.
    """
    torch.manual_seed(SEED)
    unsplit = Unsplit(twin, SEED)
    with hr.Pipeline(
        case.model,
        case.loss_fn,
        ranks=schedule.ranks,
        micro_batches=schedule.micro_batches,
        schedule=schedule,
        cut=cut,
        overlap=overlap,
        **case.options,
    ) as pipe:
        orders = [backward_ends(schedule, stage) for stage in range(schedule.stages)]
        stage_of = stages_of_parameters(case.model, pipe.cut)
        ours = torch.optim.AdamW(case.model.parameters(), lr=0.05)
        theirs = torch.optim.AdamW(twin.model.parameters(), lr=0.05)
        for step in range(STEPS):
            loss = pipe.step(*case.batch(step))
            if len(orders[0]) == 1 and all(order == orders[0] for order in orders):
                expected = unsplit.step(twin.batch(step), orders[0][0])
            else:
                expected = unsplit.step_by_stages(twin.batch(step), schedule, stage_of)
            assert same(loss, expected), f"loss of step {step}: {loss} is not {expected}"
            assert differing(gradients(case.model), gradients(twin.model)) == [], f"gradients of step {step}"
            if step % accumulate == accumulate - 1:
                for optimizer in (ours, theirs):
                    optimizer.step()
                    optimizer.zero_grad()
    assert differing(everything(case.model), everything(twin.model)) == []


def stages_of_parameters(model: nn.Sequential, cut: tuple[int, ...]) -> dict[str, int]:
    """Each parameter's stage, by the names of the unsplit model."""
    stages = [stage for stage, count in enumerate(cut) for _ in range(count)]
    owner = {id(p): stage for layer, stage in zip(flat_layers(model), stages, strict=True) for p in layer.parameters()}
    return {name: owner[id(p)] for name, p in model.named_parameters()}


def cut_of(case: Case, stages: int) -> tuple[int, ...] | None:
    """A cut into so many stages that leaves tied layers together; None if there are too few layers."""
    blocks = unbreakable(case.model)
    if stages in case.cuts or len(blocks) < stages:
        return case.cut(stages)
    few, more = divmod(len(blocks), stages)
    rest = iter(blocks)
    return tuple(sum(next(rest) for _ in range(few + (stage < more))) for stage in range(stages))


def unbreakable(model: nn.Sequential) -> list[int]:
    """How many layers each run has that must stay in one stage, as they share a tensor."""
    tensors = [{id(t) for t in (*layer.parameters(), *layer.buffers())} for layer in flat_layers(model)]
    last = {tensor: i for i, of_layer in enumerate(tensors) for tensor in of_layer}
    runs, start, end = [], 0, 0
    for i, of_layer in enumerate(tensors):
        end = max([end, i, *(last[tensor] for tensor in of_layer)])
        if i == end:
            runs.append(i + 1 - start)
            start = i + 1
    return runs


def with_rows_for(case: Case, micro_batches: int) -> Case:
    """The case with enough rows for so many micro-batches, not the same number for each."""

    def repeated(value: object) -> object:
        if not isinstance(value, Tensor):
            return value
        needed = micro_batches * (len(value) // ROWS)
        return value if needed <= len(value) else value[torch.arange(needed + 1) % len(value)]

    return replace(case, x=pytree.tree_map(repeated, case.x), y=pytree.tree_map(repeated, case.y))
