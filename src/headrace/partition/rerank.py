"""Rank cuts again by simulation: a model of the step proposes, the schedule's own timeline decides.

    best_cuts  ──▶  A 41, B 42, C 42, D 44  ──simulate──▶  B 43.5, A 44, D 45, C 47
                    by the objective                       by the makespan

The searches value a cut by its slowest rank and its sums. Where a bottleneck lies, and what latency meets in which
order of actions, only a simulation knows. It takes too long for all cuts, and is quick for the best few.
"""

from collections.abc import Callable, Iterable
from typing import Protocol

from headrace.costs import Costs, Seconds
from headrace.partition.result import Cut
from headrace.schedule.schedule import Schedule


class Step(Protocol):
    """What a simulation returns, as far as it matters here: a Timeline."""

    @property
    def makespan(self) -> float:
        """Seconds of the step."""


def rerank(
    candidates: Iterable[Cut],
    make_schedule: Callable[[Cut], Schedule],
    costs_of: Callable[[Cut], Costs],
    simulate: Callable[[Schedule, Costs], Step],
) -> list[tuple[Seconds, Cut]]:
    """The candidates with their simulated makespans, the fastest first; of equal ones, in the order given.

    Args:
        candidates: such as `best_cuts(…, count=32).cuts`.
        make_schedule: the schedule for a cut, with recompute where the cut has it (see `recomputing`).
        costs_of: the costs of its stages, such as `stage_costs(problem, cut)`.
        simulate: `headrace.simulate`, or anything else that returns something with a makespan.

    Raises:
        ValueError: there is no candidate.
    """
    timed = [(simulate(make_schedule(cut), costs_of(cut)).makespan, cut) for cut in candidates]
    if not timed:
        raise ValueError("candidates is empty: give at least one cut")
    return sorted(timed, key=lambda pair: pair[0])
