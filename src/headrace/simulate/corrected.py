"""What the layers of a running pipeline take, rather than what they took when they were measured one by one.

A profile runs layer after layer on a quiet machine; in a step, ranks share caches, memory bandwidth and cores. How much
that slows a layer down nobody measures, but how much it slows down its stage is in the timeline:

    layers     embedding  block0  block1  head         each layer's seconds × measured ÷ predicted of its stage and kind
               ╰─ stage 0: × 1.1 ─╯╰ 1: × 1.6 ╯

A layer keeps its ratio wherever a new cut puts it: one step cannot tell slow layers from a slow rank.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from headrace.costs import PerRank, Seconds, spread
from headrace.layer_costs import LayerCosts
from headrace.schedule.actions import BACKWARD, BACKWARD_INPUT, BACKWARD_WEIGHT, FORWARD, Kind
from headrace.schedule.schedule import Schedule
from headrace.simulate.measured import as_it_ran, seconds_of
from headrace.timeline import Timeline


def corrected(
    layers: LayerCosts,
    schedule: Schedule,
    cut: Sequence[int],
    measured: Timeline,
    slowness: PerRank = 1,
    again: Collection[int] = (),
) -> LayerCosts:
    """`layers` with the seconds that they take in the pipeline that `measured` is a step of.

    A backward that ran whole stands for its halves as well, and halves for the whole. What was predicted to take no
    time stays so.

    Args:
        layers: as profiled, for a whole micro-batch.
        schedule, cut: of the run.
        measured: one of its steps.
        slowness: what seconds are multiplied by on each rank, as `layers` are of a device with 1.
        again: the layers that it recomputes one by one, in its backwards.

    Raises:
        ValueError: the cut does not fit the layers or the schedule.
    """
    if len(cut) != schedule.stages:
        raise ValueError(f"cut={tuple(cut)} has {len(cut)} stages, but {schedule.name} has {schedule.stages}")
    found = seconds_of(as_it_ran(schedule, measured)[1])
    slow = spread("slowness", slowness, schedule.ranks, "ranks")
    costs = layers.stage_costs(cut, again).slowed([slow[rank] for rank in schedule.placement.rank_of])
    whole = costs.per_stage(schedule.stages)
    predicted = {kind: [seconds / schedule.segments for seconds in each] for kind, each in whole.items()}
    stage_of = [stage for stage, count in enumerate(cut) for _ in range(count)]

    def scaled(seconds: Sequence[Seconds], *kinds: Kind) -> tuple[Seconds, ...]:
        ratios = [_ratio(stage, kinds, predicted, found) for stage in range(schedule.stages)]
        return tuple(each * ratios[stage] for each, stage in zip(seconds, stage_of, strict=True))

    return replace(
        layers,
        forward=scaled(layers.forward, FORWARD),
        backward=scaled(layers.backward, BACKWARD, BACKWARD_INPUT),
        backward_input=scaled(layers.backward_input, BACKWARD_INPUT, BACKWARD),
        backward_weight=scaled(layers.backward_weight, BACKWARD_WEIGHT, BACKWARD),
    )


def _ratio(
    stage: int,
    kinds: Sequence[Kind],
    predicted: Mapping[Kind, Sequence[Seconds]],
    found: Mapping[tuple[int, Kind], Seconds],
) -> float:
    """Measured ÷ predicted of the first of `kinds` that the stage has run; 1 if that says nothing."""
    kind = next((kind for kind in kinds if (stage, kind) in found), None)
    if kind is None or not predicted[kind][stage]:
        return 1.0
    return found[stage, kind] / predicted[kind][stage]
