"""What a candidate with a cut would take and hold: simulated, with its recompute, on the ranks of the request."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import takewhile

from headrace.costs import Bytes, Costs, Number, Seconds, spread
from headrace.layer_costs import LayerCosts, at_rows, stage_sums
from headrace.planner.candidates import Candidate
from headrace.planner.request import Request
from headrace.schedule.catalogue.recompute import add_recompute
from headrace.schedule.joined import joined
from headrace.schedule.schedule import Schedule
from headrace.simulate.memory import peaks_by_rank
from headrace.simulate.simulator import simulate
from headrace.timeline import Timeline


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
        return all(map(within, zip(self.peak, limits, strict=True)))


class Appraiser:
    """Appraises cuts of one candidate.

    Args:
        candidate: what it is.
        request: what is asked.

    Attributes:
        schedule: without recompute.
        layers: their costs for its micro-batches.
        by_layers: whether single layers may recompute.
        droppable: the layers that hold more than their input, which to recompute by themselves saves bytes.

    Raises:
        ValueError: there is no such schedule.
    """

    def __init__(self, candidate: Candidate, request: Request) -> None:
        self.candidate, self.request = candidate, request
        self.schedule = candidate.build()
        self.layers = at_rows(request.sizes, candidate.rows).of_segment(self.schedule.segments)
        self.by_layers = request.recompute == "layer"
        inputs = (0, *self.layers.output)
        self.droppable = frozenset(i for i, size in enumerate(self.layers.activations) if size > inputs[i])
        self._limits = limits_of(request, candidate.ranks)

    def appraised(self, cut: tuple[int, ...], whole: Collection[int], single: Collection[int]) -> Appraised | None:
        """The cut where some stages recompute as a whole and some layers one by one; None if it does not fit."""
        schedule = add_recompute(self.schedule, whole) if whole else self.schedule
        costs = costs_on_ranks(self.candidate, self.request, self.schedule, self.layers, cut, single)
        runs = joined(schedule)
        peaks_and_limits = zip(peaks_by_rank(runs, costs.memory), self._limits, strict=True)
        peak = tuple(held for held, _ in takewhile(within, peaks_and_limits))
        if len(peak) < len(self._limits):
            return None
        return Appraised(
            self.candidate, schedule, cut, tuple(sorted(whole)), costs, simulate(runs, costs), peak,
            one_by_one=tuple(sorted(single)), twice=self._twice(cut, single),
        )  # fmt: skip

    def _twice(self, cut: tuple[int, ...], single: Collection[int]) -> tuple[Seconds, ...]:
        again = [seconds if layer in single else 0 for layer, seconds in enumerate(self.layers.forward)]
        return tuple(_times(stage_sums(again, cut), _slowness(self.request, self.schedule)))


def limits_of(request: Request, ranks: int) -> list[Bytes | None]:
    """The bytes that each rank of a pipeline can hold."""
    if request.memory is None:
        return [None] * ranks
    return list(spread("memory", request.memory, ranks, "ranks"))


def within(peak_and_limit: tuple[Bytes, Bytes | None]) -> bool:
    """Whether a peak is within its limit; None for no limit."""
    peak, limit = peak_and_limit
    return limit is None or peak <= limit


def costs_on_ranks(
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
        base.slowed(by),
        transfer=request.latency,
        bandwidth=request.bandwidth,
        update=[request.update * size for size in weights],
        reduce=[_reduction(size, copies, request) for size in weights],
    )


def _slowness(request: Request, schedule: Schedule) -> list[Number]:
    """Of the rank of each stage."""
    slow = spread("slowness", request.slowness, schedule.ranks, "ranks")
    return [slow[rank] for rank in schedule.placement.rank_of]


def _reduction(size: Bytes, copies: int, request: Request) -> Seconds:
    """A ring all-reduce of gradients as large as the weights: 2(d−1) hops, each with a d-th of the bytes."""
    if copies == 1:
        return 0
    hops = 2 * (copies - 1)
    return hops * request.latency + (0 if request.bandwidth is None else hops / copies * size / request.bandwidth)


def _times(per_stage: Number | Sequence[Number], by: Sequence[Number]) -> list[Number]:
    return [seconds * slow for seconds, slow in zip(spread("costs", per_stage, len(by), "stages"), by, strict=True)]
