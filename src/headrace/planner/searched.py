"""An order of actions for a plan's own cut, where the catalogue has none that suits its stages.

catalogue × cuts ──▶ the best few ──▶ for each, search with its costs, placement and memory ──▶ "searched"
"""

from dataclasses import replace
from typing import Final

from headrace.planner.appraised import Appraised, limits_of
from headrace.planner.request import Request
from headrace.schedule.joined import joined
from headrace.search import Bytes, search
from headrace.simulate import simulate
from headrace.simulate.memory import peaks_by_rank

NAME: Final = "searched"
_FEW: Final = 3  # a search takes about a second
_MOST_ACTIONS: Final = 20_000  # of a schedule; beyond, one pass of the search takes too long


def searched(fitting: list[Appraised], request: Request) -> list[Appraised]:
    """What is found for the fastest of `fitting`, as far as it is faster than all of them and fits.

    Nothing is searched for what recomputes or runs pairs, runs two ways, or has very many actions.
    """
    ranked = sorted(fitting, key=lambda each: each.seconds)
    found = [_searched(each, request) for each in ranked[:_FEW] if _can_be(each)]
    return [each for each in found if each.fits(request) and each.seconds < ranked[0].seconds]


def _can_be(found: Appraised) -> bool:
    schedule = found.schedule
    if found.recomputes or found.one_by_one:
        return False
    plain = not schedule.pairs and not schedule.placement.other_lanes and schedule.segments == 1
    return plain and schedule.ranks > 1 and schedule.actions <= _MOST_ACTIONS


def _searched(base: Appraised, request: Request) -> Appraised:
    schedule, costs = base.schedule, base.costs
    held = {name: costs.memory.per_stage(name, schedule.stages) for name in ("activations", "for_weight")}
    # A search takes it that nothing grows with I.
    safe = replace(costs.memory, activations=list(map(max, held["activations"], held["for_weight"])))
    limit = None if request.memory is None else Bytes([each or 0 for each in limits_of(request, schedule.ranks)])
    try:
        order = search(
            replace(costs, memory=safe), schedule.placement, micro_batches=schedule.micro_batches, memory=limit
        ).schedule
    except ValueError:  # on that safe side, not even one micro-batch fits
        return base
    runs = joined(order)  # so it may be shorter than the search knows
    return replace(
        base,
        candidate=replace(base.candidate, name=NAME, options={}),
        schedule=order,
        timeline=simulate(runs, costs),
        peak=tuple(peaks_by_rank(runs, costs.memory)),
    )
