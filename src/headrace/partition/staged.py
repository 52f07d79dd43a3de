"""Between schedules and cuts: what a schedule asks of a cut, and what a cut costs a schedule.

make_schedule(ranks) ──▶ placement, micro-batches in flight ──▶ Problem ──▶ Cut ──▶ Costs ──▶ simulate
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from headrace.costs import Costs
from headrace.layer_costs import LayerCosts
from headrace.partition.problem import Problem
from headrace.partition.result import Cut
from headrace.schedule.actions import BACKWARD_INPUT, BACKWARD_WEIGHT, ENDS_BACKWARD, FORWARD
from headrace.schedule.schedule import Schedule


def peaks(schedule: Schedule) -> tuple[int, ...]:
    """Per stage, the most micro-batches whose F has begun and whose last backward part has not ended.

    They follow from the rows alone. A rank's stages may have their peaks at different moments, so that together they
    hold less than the sum, which a `Problem` counts: it never promises too much.
    """
    now = [0] * schedule.stages
    most = [0] * schedule.stages
    for row in schedule.rows:
        for stage, kind, _ in row:
            if kind == FORWARD:
                now[stage] += 1
                most[stage] = max(most[stage], now[stage])
            elif kind in ENDS_BACKWARD:
                now[stage] -= 1
    return tuple(most)


def waiting(schedule: Schedule) -> tuple[int, ...]:
    """Per stage, the most micro-batches whose I has ended and whose W has not when its rank begins another I.

    They still hold operands of their weight gradients, which recompute cannot drop.
    """
    now = [0] * schedule.stages
    most = [0] * schedule.stages
    for rank, row in enumerate(schedule.rows):
        beside = schedule.placement.stages_of(rank)
        for stage, kind, _ in row:
            if kind == BACKWARD_INPUT:
                for each in beside:
                    most[each] = max(most[each], now[each])
                now[stage] += 1
            elif kind == BACKWARD_WEIGHT:
                now[stage] -= 1
    return tuple(most)


def problem_for(costs: LayerCosts, make_schedule: Callable[[int], Schedule], ranks: int, **rest: Any) -> Problem:
    """The problem of cutting layers for a schedule.

    Args:
        costs: of the layers.
        make_schedule: the schedule for a number of ranks.
        ranks: how many there are.
        rest: other attributes of `Problem`. If those are single numbers, a refusal says how many ranks would do.

    Raises:
        TypeError, ValueError: as `Problem` does.
    """

    def build(count: int) -> Problem:
        schedule = make_schedule(count)
        in_flight, late = peaks(schedule), waiting(schedule)
        return Problem(costs, schedule.placement, schedule.micro_batches, in_flight, late, **rest)

    per_rank = ("memory", "slowness", "latency", "pin_stage", "pin_rank")
    fixed = any(hasattr(rest.get(name), "__len__") and rest[name] for name in per_rank)
    return replace(build(ranks), with_ranks=None if fixed else build)


def stage_costs(problem: Problem, cut: Cut) -> Costs:
    """What the stages of a cut cost on their ranks, with latency and bandwidth, for `simulate`.

    Layers that are recomputed one by one count into the backward, where the runtime does it; a stage that is
    recomputed as a whole needs an R in the schedule.
    """
    plain = problem.costs.stage_costs(cut.layers, one_by_one(cut))
    factors = [problem.slowness_of[rank] for rank in problem.placement.rank_of]
    seconds = plain.per_stage(problem.stages)
    return replace(
        plain,
        forward=[f * factor for f, factor in zip(seconds["F"], factors, strict=True)],
        backward_input=[i * factor for i, factor in zip(seconds["I"], factors, strict=True)],
        backward_weight=[w * factor for w, factor in zip(seconds["W"], factors, strict=True)],
        backward=[b * factor for b, factor in zip(seconds["B"], factors, strict=True)],
        transfer=problem.latency,
        bandwidth=problem.bandwidth,
    )


def recomputing(cut: Cut) -> set[int]:
    """The stages that recompute as a whole, as `build(…, recompute=…)` takes them."""
    return {stage for stage, recomputes in enumerate(cut.recomputes) if recomputes == "everything"}


def one_by_one(cut: Cut) -> tuple[int, ...]:
    """The layers that recompute one by one."""
    return tuple(layer for recomputes in cut.recomputes if isinstance(recomputes, tuple) for layer in recomputes)
