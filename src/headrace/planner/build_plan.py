"""From a choice to a plan: with the model's names, versions, and the reasons."""

from importlib.metadata import PackageNotFoundError, version

from headrace.costs import spread
from headrace.layer_costs import at_rows, stage_sums
from headrace.planner.choose import Choice, choose
from headrace.planner.plan import Alternative, Plan, Predicted
from headrace.planner.reasons import why_not
from headrace.planner.request import Request
from headrace.schedule.actions import Kind

_ALTERNATIVES = 8


def make_plan(request: Request, *, fingerprint: str = "", devices: tuple[str, ...] = ()) -> Plan:
    """The best plan for `request`.

    Args:
        request: what is asked.
        fingerprint: of the model, by which a run knows it again.
        devices: of the ranks of one pipeline.

    Raises:
        NoPlanFits: nothing fits; it says what would.
        ValueError: no schedule exists for these numbers.
    """
    return as_plan(request, choose(request), fingerprint, devices)


def as_plan(request: Request, choice: Choice, fingerprint: str, devices: tuple[str, ...]) -> Plan:
    """`choice` as data."""
    best = choice.best
    stages = best.schedule.stages
    of_kind = best.costs.per_stage(stages)
    kinds: dict[str, Kind] = {"forward": "F", "backward": "B", "backward_input": "I", "backward_weight": "W"}
    seconds = {name: tuple(of_kind[kind]) for name, kind in kinds.items()}
    layers = at_rows(request.sizes, best.candidate.rows).of_segment(best.schedule.segments)
    seconds["spread"] = tuple(stage_sums(layers.spread, best.cut))
    slower = [
        Alternative(
            str(other.candidate),
            other.candidate.micro_batches,
            other.candidate.replicas,
            other.seconds,
            max(other.peak),
            why_not(other, best),
        )
        for other in choice.others
    ]
    refused = [Alternative(str(c), c.micro_batches, c.replicas, None, None, reason) for c, reason in choice.refused]
    return Plan(
        layers=request.sizes[0].names,
        fingerprint=fingerprint,
        headrace=version_of("headrace"),
        torch=version_of("torch"),
        devices=devices or ("cpu",) * best.schedule.ranks,
        batch=request.batch,
        replicas=best.candidate.replicas,
        memory=None
        if request.memory is None
        else tuple(spread("memory", request.memory, best.schedule.ranks, "ranks")),
        schedule=best.schedule,
        cut=best.cut,
        recomputes=best.recomputes,
        recomputed_layers=tuple(request.sizes[0].names[layer] for layer in best.one_by_one),
        predicted=Predicted(
            step_seconds=best.seconds,
            lower_bound=choice.lower_bound,
            bubble_fraction=best.timeline.bubble_fraction,
            peak_bytes=best.peak,
            **seconds,
        ),
        alternatives=tuple([*slower, *refused][:_ALTERNATIVES]),
    )


def version_of(package: str) -> str:
    """Its installed version; empty if it is not there."""
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
