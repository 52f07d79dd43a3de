"""What a candidate would take and hold with the best cut that is found for it."""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import takewhile

from headrace.costs import Bytes, Costs, Number, Seconds, spread
from headrace.layer_costs import LayerCosts, at_rows, stage_sums
from headrace.partition.errors import NoCutFits
from headrace.partition.minmax import partition
from headrace.partition.problem import Allowed, Problem
from headrace.partition.result import Cut
from headrace.partition.search import best_cuts, cuts_if_any
from headrace.partition.staged import one_by_one, peaks, recomputing, waiting
from headrace.planner.candidates import Candidate
from headrace.planner.request import Request
from headrace.schedule.catalogue.recompute import add_recompute
from headrace.schedule.joined import joined
from headrace.schedule.placement import Placement
from headrace.schedule.schedule import Schedule
from headrace.simulate.memory import peaks_by_rank
from headrace.simulate.simulator import simulate
from headrace.timeline import Timeline

_CUTS = ((2_000, 32), (20_000, 8), (60_000, 3))  # so many cuts are simulated of schedules with so many actions
_MANY_RANKS = 32
_EFFORT = (100_000, 8_000)  # of a search for cuts, with one stage a rank and with several: see `best_cuts`


@dataclass(frozen=True)
class Appraised:
    """A candidate with a cut.

    Attributes:
        candidate: what it is.
        schedule: with recompute, where a stage does.
        cut: layers per stage.
        recomputes: the stages that do, as a whole.
        costs: of the stages.
        timeline: of one step.
        peak: bytes that each rank holds at the most.
        one_by_one: the numbers of the layers that recompute by themselves.
        twice: of each stage, the seconds of its backward in which single layers run again.
    """

    candidate: Candidate
    schedule: Schedule
    cut: tuple[int, ...]
    recomputes: tuple[int, ...]
    costs: Costs
    timeline: Timeline
    peak: tuple[Bytes, ...]
    one_by_one: tuple[int, ...] = ()
    twice: tuple[Seconds, ...] = ()

    @property
    def seconds(self) -> Seconds:
        """Of a step, update and reduction included."""
        return self.timeline.makespan

    @cached_property
    def bubble_without_messages(self) -> Seconds:
        """What the busiest rank would idle if messages took no time."""
        free = not self.costs.transfer and self.costs.bandwidth is None
        instant = replace(self.costs, transfer=0, bandwidth=None)
        timeline = self.timeline if free else simulate(joined(self.schedule), instant)
        return timeline.makespan - max(timeline.busy)

    def fits(self, request: Request) -> bool:
        """Whether every rank has the memory."""
        limits = limits_of(request, self.candidate.ranks)
        return all(map(_within, zip(self.peak, limits, strict=True)))


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
    costs = _costs(candidate, request, schedule, layers, cut)
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
        if not _within(peak_and_limit)
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
    schedule = candidate.build()
    layers = at_rows(request.sizes, candidate.rows).of_segment(schedule.segments)
    problem = _problem(candidate, request, layers.recomputing(single))
    fitting = partial(_fitting, candidate, request, schedule, layers, single)
    found = fitting(_cuts(problem, schedule))
    if not found:
        # What a rank's stages hold at the most need not come at one time, so the cut's own account is on the safe side.
        tight = _with_memory(problem, request)
        cuts = _recomputing_cuts(replace(tight, waiting=0), schedule)
        if not cuts:
            raise NoCutFits(f"no cut of {layers.layers} layers into {schedule.stages} stages fits", "memory")
        found = fitting(cuts)
        if not found and any(problem.late):
            # Nor need operands of weight gradients wait when most else is held, so they count only now.
            found = fitting(_recomputing_cuts(tight, schedule))
    if not found:
        raise NoCutFits(
            "holds more than any cut can save: replicas, or operands of weight gradients that wait", "memory"
        )
    return min(found, key=lambda each: each.seconds)


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


def _fitting(
    candidate: Candidate,
    request: Request,
    schedule: Schedule,
    layers: LayerCosts,
    always: Collection[int],
    cuts: Iterable[Cut],
) -> list[Appraised]:
    """Those that fit when they are simulated; layers that are `always` recomputed need not be in the cuts."""
    found: list[Appraised] = []
    limits = limits_of(request, candidate.ranks)
    for cut in cuts:
        again, single = tuple(sorted(recomputing(cut))), tuple(sorted({*always, *one_by_one(cut)}))
        ordered = add_recompute(schedule, set(again)) if again else schedule
        costs = _costs(candidate, request, schedule, layers, cut.layers, single)
        runs = joined(ordered)
        peaks_and_limits = zip(peaks_by_rank(runs, costs.memory), limits, strict=True)
        peak = tuple(held for held, _ in takewhile(_within, peaks_and_limits))
        if len(peak) == len(limits):
            twice = _twice(layers, cut.layers, single, request, schedule)
            found.append(
                Appraised(candidate, ordered, cut.layers, again, costs, simulate(runs, costs), peak, single, twice)
            )
    return found


def _within(peak_and_limit: tuple[Bytes, Bytes | None]) -> bool:
    peak, limit = peak_and_limit
    return limit is None or peak <= limit


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


def limits_of(request: Request, ranks: int) -> list[Bytes | None]:
    """The bytes that each rank of a pipeline can hold."""
    if request.memory is None:
        return [None] * ranks
    return list(spread("memory", request.memory, ranks, "ranks"))


def _recomputing_cuts(problem: Problem, schedule: Schedule) -> Collection[Cut]:
    """Those of a problem that may recompute.

    A search takes a recompute for as long as a forward is. That of a whole stage may run while its rank waits, which
    only the simulation knows, so cuts where nothing else recomputes are simulated as well.
    """
    modes: tuple[Allowed, ...] = ("stage", "layer") if problem.recompute == "layer" else (problem.recompute,)
    return dict.fromkeys(cut for mode in modes for cut in _cuts(replace(problem, recompute=mode), schedule))


def _cuts(problem: Problem, schedule: Schedule) -> Sequence[Cut]:
    """The cuts to simulate: more of them where a simulation is quick."""
    count = next((count for actions, count in _CUTS if schedule.actions <= actions), 1)
    effort = _EFFORT[not problem.one_stage_a_rank]
    found = cuts_if_any(problem, "step", count=count, effort=effort)
    return found.cuts if found else ()


def _costs(
    candidate: Candidate,
    request: Request,
    schedule: Schedule,
    layers: LayerCosts,
    cut: tuple[int, ...],
    single: Collection[int] = (),
) -> Costs:
    """The costs of the stages on their ranks, with links, updates and reductions; `single` layers run twice."""
    base = layers.stage_costs(cut, single)
    by = _slowness(request, schedule)
    weights = stage_sums(layers.parameters, cut)
    copies = candidate.replicas * len(schedule.placement.lanes)
    return replace(
        base,
        forward=_times(base.forward, by),
        backward_input=_times(base.backward_input, by),
        backward_weight=_times(base.backward_weight, by),
        backward=_times(base.per_stage(schedule.stages)["B"], by),
        transfer=request.latency,
        bandwidth=request.bandwidth,
        update=[request.update * size for size in weights],
        reduce=[_reduction(size, copies, request) for size in weights],
    )


def _slowness(request: Request, schedule: Schedule) -> list[Number]:
    """Of the rank of each stage."""
    slow = spread("slowness", request.slowness, schedule.ranks, "ranks")
    return [slow[rank] for rank in schedule.placement.rank_of]


def _twice(
    layers: LayerCosts, cut: tuple[int, ...], single: Collection[int], request: Request, schedule: Schedule
) -> tuple[Seconds, ...]:
    again = [seconds if layer in single else 0 for layer, seconds in enumerate(layers.forward)]
    return tuple(_times(stage_sums(again, cut), _slowness(request, schedule)))


def _reduction(size: Bytes, copies: int, request: Request) -> Seconds:
    """A ring all-reduce of gradients as large as the weights: 2(d−1) hops, each with a d-th of the bytes."""
    if copies == 1:
        return 0
    hops = 2 * (copies - 1)
    return hops * request.latency + (0 if request.bandwidth is None else hops / copies * size / request.bandwidth)


def _times(per_stage: Number | Sequence[Number], by: Sequence[Number]) -> list[Number]:
    return [seconds * slow for seconds, slow in zip(spread("costs", per_stage, len(by), "stages"), by, strict=True)]
