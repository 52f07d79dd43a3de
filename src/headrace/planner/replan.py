"""Plan again, with what a run has measured: is there something better than its own schedule and cut?

    profile of the layers ─┐
                           ├─▶ corrected costs ──▶ the run's own schedule and cut ───┐
    a measured step ───────┘            │          its own schedule, better cut ─────┼──▶ the fastest is the plan
                                        └────────▶ other schedules, best cuts ───────┘

All are simulated with the same costs, so the gain is what re-planning is worth, not how wrong the first plan was.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from headrace.costs import Bytes, Costs, Seconds
from headrace.layer_costs import LayerCosts
from headrace.partition.errors import NoCutFits
from headrace.partition.problem import Allowed
from headrace.planner.appraise import at_close
from headrace.planner.appraised import Appraised
from headrace.planner.build_plan import as_plan
from headrace.planner.candidates import Candidate
from headrace.planner.choose import Choice, NoPlanFits, choose
from headrace.planner.plan import Plan
from headrace.planner.request import Request
from headrace.planner.run_profile import Link, RunProfile
from headrace.schedule.actions import RECOMPUTE
from headrace.schedule.joined import joined
from headrace.schedule.schedule import Schedule
from headrace.simulate import simulate
from headrace.simulate.corrected import corrected
from headrace.simulate.measured import as_it_ran, latency_of
from headrace.simulate.memory import peak_memory_of
from headrace.timeline import Timeline
from headrace.units import percent, seconds

Freedom = Literal["cut", "schedule"]
"""What re-planning may change: the cut only, or the schedule as well."""

_WORTH = 0.001  # of a step: less is within the noise of any measurement


@dataclass(frozen=True)
class Replanned:
    """What re-planning came to.

    Attributes:
        plan: the best that is known; the run's own where nothing is better.
        own: seconds of a step of the run's own schedule and cut, with the same costs as the plan's.
        costs: of the plan's stages.
    """

    plan: Plan
    own: Seconds
    costs: Costs

    @property
    def gain(self) -> float:
        """The share of the run's own step that the plan saves; 0 where that is the best known.

        Negative if what was asked for is worse than what the run has.
        """
        return 1 - self.plan.predicted.step_seconds / self.own if self.own else 0.0

    @property
    def worth_it(self) -> bool:
        """Whether the plan is faster than the run's own."""
        return self.gain > 0

    def __str__(self) -> str:
        if self.gain == 0:
            return f"nothing to gain: the run's plan is the best known ({seconds(self.own)} a step)"
        plan, verb = self.plan, "gains" if self.gain > 0 else "loses"
        return (
            f"re-planning {verb} {percent(abs(self.gain))}: {plan.schedule.name} with cut "
            f"{', '.join(map(str, plan.cut))}, {seconds(self.own)} → {seconds(plan.predicted.step_seconds)} a step"
        )


@dataclass(frozen=True)
class _Given(Candidate):
    """A candidate whose schedule is at hand, whatever made it.

    Attributes:
        schedule: of the run.
        note: what tells it from others of this name.
    """

    schedule: Schedule = field(kw_only=True)
    note: str = field(default="", kw_only=True)

    def build(self) -> Schedule:
        """The schedule itself."""
        return self.schedule

    def __str__(self) -> str:
        return super().__str__() + self.note


def replan(
    run: RunProfile,
    measured: Timeline,
    *,
    change: Freedom = "schedule",
    schedules: Sequence[str] | None = None,
    micro_batches: Sequence[int] | None = None,
    memory: Bytes | Sequence[Bytes] | None = None,
    recompute: Allowed = "layer",
) -> Replanned:
    """The best plan for the model and the ranks of `run`, with the costs that one of its steps shows.

    Args:
        run: what is known of it.
        measured: the step.
        change: "cut" to keep the schedule.
        schedules, memory, recompute: what to choose from, see `Request`; `schedules` also overrules `change`. A run
            that recomputes keeps its schedule unless `memory` says what a rank can hold: it may not fit otherwise.
        micro_batches: numbers to choose from; None for the run's own. The layers were measured at one size, so others
            count as proportional.

    Raises:
        NoPlanFits: not even the run's own schedule fits into `memory`.
        ValueError: an argument is out of its range, or `measured` does not fit the run.
    """
    if change not in ("cut", "schedule"):
        raise ValueError(f'change={change!r} must be "cut" or "schedule"')
    again = run.layers.numbers(run.recomputed_layers)
    layers = corrected(run.layers, run.schedule, run.cut, measured, again=again)
    link = run.link or Link(latency_of(*as_it_ran(run.schedule, measured)))
    request = Request(
        sizes=[layers],
        batch=run.batch,
        ranks=run.schedule.ranks,
        memory=memory,
        latency=link.latency,
        bandwidth=link.bandwidth,
        schedules=schedules,
        micro_batches=[run.micro_batches] if micro_batches is None else micro_batches,
        recompute=recompute,
    )
    own = _own(run, layers, link)
    asked_for = schedules is None or run.schedule.name in schedules
    stays = asked_for and run.micro_batches in (request.micro_batches or ()) and own.fits(request)
    found = ([own] if stays else []) + (_own_schedule_recut(run, own, layers, request) if asked_for else [])
    bound = own.seconds
    refused: tuple[tuple[Candidate, str], ...] = ()
    recomputes = (own.recomputes or own.one_by_one) and memory is None
    if schedules is not None or (change == "schedule" and run.schedule.segments == 1 and not recomputes):
        try:
            choice = choose(request)
        except NoPlanFits:
            if not found:
                raise
        else:
            found += [choice.best, *choice.others]
            bound, refused = choice.lower_bound, choice.refused
    if not found:
        raise NoPlanFits("nothing fits, not even the run's own schedule: give it more memory, or let it recompute")
    found = sorted(_once(found), key=_seconds)
    best = own if stays and found[0].seconds > own.seconds * (1 - _WORTH) else found[0]
    others = tuple(each for each in found if each is not best and each.seconds >= best.seconds)
    plan = as_plan(request, Choice(best, others, refused, min(bound, best.seconds)), run.fingerprint, run.devices)
    return Replanned(plan, own.seconds, best.costs)


def _own(run: RunProfile, layers: LayerCosts, link: Link) -> Appraised:
    """The run's schedule and cut."""
    single = layers.numbers(run.recomputed_layers)
    costs = layers.of_segment(run.schedule.segments).stage_costs(run.cut, single)
    costs = replace(costs, transfer=link.latency, bandwidth=link.bandwidth)
    runs = joined(run.schedule)
    kinds = {(action.stage, action.kind) for row in run.schedule.rows for action in row}
    return Appraised(
        candidate=replace(_candidate(run), note=", cut as it ran"),
        schedule=run.schedule,
        cut=run.cut,
        recomputes=tuple(stage for stage in range(run.schedule.stages) if (stage, RECOMPUTE) in kinds),
        costs=costs,
        timeline=simulate(runs, costs),
        peak=peak_memory_of(runs, costs.memory),
        one_by_one=single,
    )


def _own_schedule_recut(run: RunProfile, own: Appraised, layers: LayerCosts, request: Request) -> list[Appraised]:
    """The run's schedule with the cut that is best for it, the same layers recomputed; nothing if none fits."""
    try:
        found = at_close(_candidate(run), replace(request, sizes=[layers], recompute="never"), own.one_by_one)
    except NoCutFits:
        return []
    return [replace(found, recomputes=own.recomputes)]


def _candidate(run: RunProfile) -> _Given:
    rows = run.layers.rows
    return _Given(run.schedule.name, run.schedule.ranks, run.micro_batches, 1, rows, schedule=run.schedule)


def _once(found: Sequence[Appraised]) -> list[Appraised]:
    """Each schedule, cut and choice of layers to recompute once: the first of its kind."""
    seen: dict[Any, Appraised] = {}
    for each in found:
        seen.setdefault((each.schedule.rows, each.cut, each.one_by_one), each)
    return list(seen.values())


def _seconds(found: Appraised) -> Seconds:
    return found.seconds
