"""Search for a schedule: the best of the catalogue, of many list schedules, and of what improves them.

catalogue ──┐
list rules ─┼──▶ best ──▶ local improvement ──▶ (exact=True: CP-SAT) ──▶ Found
few, then  ─┘                                                              ├─ schedule
repeated          lower_bound ─────────────────────────────────────────────┴─ gap
"""

from typing import get_args

from headrace.costs import Costs, spread
from headrace.schedule.placement import Placement
from headrace.schedule.schedule import Schedule
from headrace.search.bounds import bound
from headrace.search.budget import Budget
from headrace.search.exact import prove
from headrace.search.found import Found
from headrace.search.heuristic import Candidate, as_candidates, best_found
from headrace.search.limits import Limit
from headrace.search.play import Objective, play
from headrace.search.problem import Problem, problem_of
from headrace.simulate.simulator import simulate
from headrace.timeline import Timeline

# How many candidates are simulated where what guides the search is not all that costs time.
_TIMED = 20


def search(
    costs: Costs,
    placement: Placement,
    *,
    micro_batches: int,
    memory: Limit | None = None,
    time_limit: float | None = None,
    exact: bool = False,
    objective: Objective = "makespan",
    workers: int = 2,
) -> Found:
    """Find a fast schedule for `costs`: backwards split into I and W, never worse than the catalogue's.

    Without `time_limit` the work is a fixed amount, of about a second, so that the same arguments give the same
    schedule. Ranks do one action at a time: overlapped pairs are not looked for. Nothing is recomputed.

    Args:
        costs: of each stage; they may be uneven. Links that carry one message at a time and updates at the end count in
            the result but do not guide the search.
        placement: which rank holds which stage, such as `Placement.loop(4)` or `Placement.v(4)`; one lane.
        micro_batches: m.
        memory: `InFlight(k)` or `Bytes(b)`, for all ranks or per rank; None for no limit.
        time_limit: seconds, about: the catalogue and one list schedule are tried in any case.
        exact: whether to go on until the optimum is proven, or until `time_limit`; it needs OR-tools, which
            `pip install headrace[search]` brings.
        objective: "makespan", or "span": the most seconds of any rank from its first start to its last end.
        workers: how many processor cores an exact search may use.

    Raises:
        TypeError, ValueError: an argument is out of its range; the memory is too little for one micro-batch, and the
            message says what the least limit is.
        ImportError: `exact` without OR-tools.
    """
    problem = problem_of(costs, placement, micro_batches, memory)
    if objective not in get_args(Objective):
        raise ValueError(f"objective={objective!r} is unknown: choose one of {', '.join(get_args(Objective))}")
    if time_limit is not None and not time_limit > 0:
        raise ValueError(f"time_limit={time_limit!r} must be more than 0 seconds")
    budget = Budget(time_limit, exact)
    least = bound(problem, objective)
    bound_how = "the lower bound needs no search"
    candidates = best_found(problem, objective, least, budget)
    if exact:
        proof = prove(problem, candidates[0].words, objective, least, budget, workers)
        if proof.words is not None:
            candidates += as_candidates(problem, objective, proof.words, "CP-SAT")
            candidates.sort(key=lambda candidate: candidate.value)
        if proof.bound > least:
            least, bound_how = proof.bound, proof.how
    chosen = _Choice(costs, problem, candidates, objective)
    lower_bound = min(problem.seconds(least), chosen.value)
    return Found(
        schedule=chosen.schedule,
        makespan=chosen.makespan,
        objective=objective,
        value=chosen.value,
        lower_bound=lower_bound,
        gap=(chosen.value - lower_bound) / chosen.value if chosen.value else 0,
        proven=chosen.value == lower_bound,
        seconds=budget.seconds,
        how=f"{chosen.how}; {bound_how}",
    )


class _Choice:
    """The best candidate, as a schedule with its times.

    Where links are shared or the step ends with updates, only `simulate` knows what an order takes, and a catalogue's
    schedule need not be the better for being split; so there it decides, and the originals compete too.
    """

    def __init__(self, costs: Costs, problem: Problem, candidates: list[Candidate], objective: Objective) -> None:
        best = candidates[0]
        self.how = best.how
        self.schedule = problem.schedule(best.words)
        if _guided(costs, problem):
            played = play(problem, best.words)
            if played is None:
                raise RuntimeError(f"{best.how} gave an order that deadlocks: this is our mistake")
            self.makespan = problem.seconds(played.value("makespan"))
            self.value = problem.seconds(best.value)
            return
        tried = [(problem.schedule(c.words), c.how) for c in candidates[:_TIMED]]
        tried += [(c.original, c.how) for c in candidates if c.original is not None]
        timed: list[tuple[float, int, Schedule, float, str]] = []
        for schedule, how in tried:
            timeline = simulate(schedule, costs)
            timed.append((_value(timeline, objective), len(timed), schedule, timeline.makespan, how))
        self.value, _, self.schedule, self.makespan, self.how = min(timed)


def _guided(costs: Costs, problem: Problem) -> bool:
    """Whether what the search goes by is all that costs time."""
    shared = costs.one_at_a_time and any(costs.sending(problem.stages))
    ends = [*spread("update", costs.update, problem.stages, "stages")]
    ends += spread("reduce", costs.reduce, problem.stages, "stages")
    return not shared and not any(ends)


def _value(timeline: Timeline, objective: Objective) -> float:
    if objective == "makespan":
        return timeline.makespan
    of_rank: list[list[float]] = [[] for _ in range(timeline.ranks)]
    for rank, _, start, end in timeline.spans:
        of_rank[rank] += [start, end]
    return max(max(times) - min(times) for times in of_rank)
