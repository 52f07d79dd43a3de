"""What a candidate would take and hold with the best cut that is found for it."""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from functools import partial

from headrace.costs import Costs, Seconds
from headrace.layer_costs import LayerCosts, at_rows
from headrace.partition.errors import NoCutFits
from headrace.partition.minmax import partition
from headrace.partition.problem import Problem
from headrace.partition.result import Cut
from headrace.partition.search import best_cuts, cuts_if_any
from headrace.partition.staged import one_by_one, peaks, recomputing, waiting
from headrace.planner.appraised import Appraised, Appraiser, costs_on_ranks, limits_of, within
from headrace.planner.candidates import Candidate
from headrace.planner.refine import refined
from headrace.planner.request import Request
from headrace.schedule.catalogue.recompute import add_recompute
from headrace.schedule.joined import joined
from headrace.schedule.placement import Placement
from headrace.schedule.schedule import Schedule
from headrace.simulate.memory import peaks_by_rank
from headrace.simulate.simulator import simulate

_CUTS = ((2_000, 32), (20_000, 8), (60_000, 3))  # so many cuts are simulated of schedules with so many actions
_MANY_RANKS = 32
_EFFORT = (100_000, 8_000)  # of a search for cuts, with one stage a rank and with several: see `best_cuts`


def at_first_sight(candidate: Candidate, request: Request) -> tuple[bool, Seconds]:
    """Seconds of a step with the cut that evens out compute alone, to know what is worth a closer look.

    Ranks that hold too much recompute all their stages; whether they still hold too much comes first.

    Of many micro-batches only the first 2p are simulated (of very many ranks the first p); each of the others adds the
    work of the busiest rank, which is what it adds to a pipeline that is full.

    Raises:
        ValueError: there is no such schedule, or it has more stages than there are layers.
    """
    few = min(candidate.micro_batches, candidate.ranks * (1 if candidate.ranks >= _MANY_RANKS else 2))
    schedule = replace(candidate, micro_batches=few).build()
    layers = at_rows(request.sizes, candidate.rows).of_segment(schedule.segments)
    cut = partition(layers.seconds, schedule.stages)
    costs = costs_on_ranks(candidate, request, schedule, layers, cut)
    runs = joined(schedule)
    full = _too_full(runs, costs, request)
    if full and request.recompute != "never":
        runs = joined(add_recompute(schedule, full))
        full = _too_full(runs, costs, request)
    timeline = simulate(runs, costs)
    return bool(full), timeline.makespan + (candidate.micro_batches - few) * max(timeline.busy) / few


def _too_full(schedule: Schedule, costs: Costs, request: Request) -> set[int]:
    """The stages of ranks that hold more than they can."""
    if request.memory is None:
        return set()
    held = zip(peaks_by_rank(schedule, costs.memory), limits_of(request, schedule.ranks), strict=True)
    return {
        stage
        for rank, peak_and_limit in enumerate(held)
        if not within(peak_and_limit)
        for stage in schedule.placement.stages_of(rank)
    }


def at_close(candidate: Candidate, request: Request, single: Collection[int] = ()) -> Appraised:
    """With the cuts that are best for it and fit, the fastest of them by simulation.

    Args:
        candidate: what it is.
        request: what is asked.
        single: layers that are recomputed one by one in any case.

    Raises:
        NoCutFits: none fits into the memory, or respects the pins; for what would help, see `refusal`.
        ValueError: there is no such schedule.
    """
    appraiser = Appraiser(candidate, request)
    problem = _problem(candidate, request, appraiser.layers.recomputing(single))
    fitting = partial(_fitting, appraiser, single)
    free = _cuts(problem, appraiser.schedule)
    found = fitting(free)
    if found and (request.recompute == "never" or found[0].cut == free[0].layers):
        return min(found, key=_seconds)
    # The best does not fit: another one may, or one that recomputes. What a rank's stages hold at the most need not
    # come at one time, so the cut's own account of that is on the safe side.
    tight = _with_memory(problem, request)
    cuts = _cuts(replace(tight, waiting=0), appraiser.schedule)
    found += fitting(cuts)
    if not found and cuts and any(problem.late):
        # Nor need operands of weight gradients wait when most else is held, so they count only now.
        found = fitting(_cuts(tight, appraiser.schedule))
    if request.recompute != "never":
        found = refined(sorted(found, key=_seconds), [cut.layers for cut in free], appraiser)
    if not found:
        held = "holds more than any cut can save: replicas, or operands of weight gradients that wait"
        no_cut = f"no cut of {request.layers} layers into {problem.stages} stages fits"
        raise NoCutFits(held if cuts else no_cut, "memory")
    return min(found, key=_seconds)


def _seconds(found: Appraised) -> Seconds:
    return found.seconds


def _fitting(appraiser: Appraiser, single: Collection[int], cuts: Iterable[Cut]) -> list[Appraised]:
    """Those that fit when they are simulated; `single` layers that always recompute need not be in the cuts."""
    found = (appraiser.appraised(cut.layers, recomputing(cut), {*single, *one_by_one(cut)}) for cut in cuts)
    return [each for each in found if each is not None]


def refusal(candidate: Candidate, request: Request) -> NoCutFits | None:
    """Why no cut fits and what would help; None where cuts seem to fit, and only the simulated schedule does not."""
    schedule = candidate.build()
    layers = at_rows(request.sizes, candidate.rows).of_segment(schedule.segments)
    try:
        best_cuts(_with_memory(_problem(candidate, request, layers), request), effort=_EFFORT[1])
    except NoCutFits as error:
        return error
    return None


def _with_memory(problem: Problem, request: Request) -> Problem:
    """The problem under the limit, with what may be dropped to keep it."""
    return replace(problem, memory=request.memory, recompute=request.recompute, with_ranks=_tight(problem, request))


def _tight(problem: Problem, request: Request) -> Callable[[int], Problem] | None:
    """The same for other numbers of ranks, under the same limit, so that a refusal can say how many would do."""
    build = problem.with_ranks
    if build is None:
        return None
    return lambda ranks: replace(build(ranks), memory=request.memory, recompute=request.recompute)


def _problem(candidate: Candidate, request: Request, layers: LayerCosts) -> Problem:
    """What a cut has to respect; of two lanes, which mirror each other, it is that of the first."""

    def with_ranks(ranks: int) -> Problem:
        schedule = replace(candidate, ranks=ranks).build()
        return Problem(
            costs=layers,
            placement=Placement(schedule.placement.rank_of),
            micro_batches=schedule.micro_batches,
            in_flight=peaks(schedule),
            waiting=waiting(joined(schedule)),
            latency=request.latency,
            bandwidth=request.bandwidth,
            slowness=request.slowness,
            keep_together=request.keep_together,
            pin_rank=request.pin_rank,
        )

    alike = not isinstance(request.memory, Sequence) and not isinstance(request.slowness, Sequence)
    other_ranks = with_ranks if alike and not request.pin_rank else None
    return replace(with_ranks(candidate.ranks), with_ranks=other_ranks)


def _cuts(problem: Problem, schedule: Schedule) -> Sequence[Cut]:
    """The cuts to simulate: more of them where a simulation is quick."""
    count = next((count for actions, count in _CUTS if schedule.actions <= actions), 1)
    effort = _EFFORT[not problem.one_stage_a_rank]
    found = cuts_if_any(problem, "step", count=count, effort=effort)
    return found.cuts if found else ()
