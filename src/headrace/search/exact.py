"""The optimum, with proof: OR-tools' CP-SAT on the whole problem.

Each action is an interval, the intervals of a rank do not overlap, and what an action needs has ended before it.
What `problem` says of words makes the model small: on each stage, F's come in the order of the micro-batches, and so do
I's and W's. Room is a cumulative resource: a micro-batch takes `before` from the start of its F to the end of its I
and `after` from there to the end of its W. Where that lets no more than n be under way on a stage, number k + n
starts after number k has ended, which says the same in a way that propagates at once.

CP-SAT starts from the best order that is known and from the bound that needs no search, and narrows the gap between
them from both sides.
"""

from dataclasses import dataclass
from typing import Any

from headrace.search.bounds import paths
from headrace.search.budget import Budget
from headrace.search.play import Objective, Played, play
from headrace.search.problem import F, I, Problem, W, Words

# CP-SAT's numbers end at 2^63, and it slows down long before that.
_MOST_UNITS = 2**40
_MOST_ROOM = 2**60


@dataclass(frozen=True)
class Proven:
    """What an exact search gives.

    Attributes:
        words: the best order that it came to; None if it came to none.
        bound: what no order can beat, in units of the problem.
        how: how the bound was come by.
    """

    words: Words | None
    bound: int
    how: str


def prove(problem: Problem, words: Words, objective: Objective, least: int, budget: Budget, workers: int) -> Proven:
    """Look for an order better than `words`, or prove that there is none, until the budget ends.

    Args:
        problem: what is searched for.
        words: the best order known.
        objective: what to lessen.
        least: a lower bound.
        budget: its time limit ends the search; without one it ends with a proof.
        workers: how many cores to use.

    Raises:
        ImportError: OR-tools is not installed.
        ValueError: the numbers of bytes are too fine to count in.
    """
    cp = _solver()
    played = play(problem, words)
    if played is None or played.value(objective) == least:
        return Proven(None, least, "")
    if any(c > _MOST_ROOM for c in problem.room.capacity):
        raise ValueError("memory has numbers too fine for an exact search: give whole bytes in costs.memory and Bytes")
    grain = 1 + max(played.last) // _MOST_UNITS
    model = _Model(cp, problem, played, objective, least, grain)
    solver = cp.CpSolver()
    solver.parameters.num_workers = workers
    if budget.left is not None:
        solver.parameters.max_time_in_seconds = max(0.01, budget.left)
    status = solver.solve(model.model)
    if status not in (cp.OPTIMAL, cp.FEASIBLE):
        return Proven(None, least, "")
    reached = max(least, round(solver.best_objective_bound) * grain)
    rounding = "" if grain == 1 else f", durations rounded down to {float(grain * problem.unit):.3g} s"
    return Proven(model.words(solver), reached, f"CP-SAT's bound{rounding}")


def _solver() -> Any:
    """OR-tools' CP-SAT module.

    Raises:
        ImportError: it is not installed.
    """
    try:
        from ortools.sat.python import cp_model
    except ImportError:
        raise ImportError(
            "exact=True needs OR-tools: pip install headrace[search], or leave exact=False for a good schedule "
            "with its gap to a lower bound"
        ) from None
    return cp_model


class _Model:
    """The constraints, with the start and end of each action as variables.

    Durations and lags are divided by `grain` and rounded down, so that its optimum is none too high a bound.
    """

    def __init__(self, cp: Any, problem: Problem, played: Played, objective: Objective, least: int, grain: int) -> None:
        self.problem, self.grain = problem, grain
        self.model = cp.CpModel()
        self.horizon = max(played.last) // grain
        m, letters = problem.micro_batches, range(len(problem.duration))
        self.duration = [time // grain for time in problem.duration]
        self.start = [[self.model.new_int_var(0, self.horizon, f"{c}.{k}") for k in range(m)] for c in letters]
        self._order()
        for rank in range(problem.ranks):
            self._one_at_a_time(rank)
            self._within_room(rank)
        value = self.model.new_int_var(least // grain, played.value(objective) // grain, "value")
        for rank, mine in enumerate(problem.stages_of):
            begin = self._first_start(rank) if objective == "span" else 0
            for s in mine:
                self.model.add(value >= self._end(3 * s + W, m - 1) - begin)
        self.model.minimize(value)
        for letter in letters:
            for k in range(m):
                self.model.add_hint(self.start[letter][k], played.ends[letter][k] // grain - self.duration[letter])

    def words(self, solver: Any) -> Words:
        """The solution as words: each rank's letters by start; what takes no time, in an order that works."""
        result: Words = []
        m = self.problem.micro_batches
        for mine in self.problem.stages_of:
            order = [
                (solver.value(self.start[c][k]), solver.value(self._end(c, k)), _rank_in_time(c), k, c)
                for s in mine
                for c in (3 * s + F, 3 * s + I, 3 * s + W)
                for k in range(m)
            ]
            result.append([c for *_, c in sorted(order)])
        return result

    def _end(self, letter: int, k: int) -> Any:
        return self.start[letter][k] + self.duration[letter]

    def _order(self) -> None:
        """Micro-batches in turn, data flow, and no action earlier than the path to it."""
        problem, model, m = self.problem, self.model, self.problem.micro_batches
        path = paths(problem)
        for letter, starts in enumerate(self.start):
            stage, kind = divmod(letter, 3)
            needed = problem.needs[letter]
            for k in range(m):
                if k:
                    model.add(starts[k] >= self._end(letter, k - 1))
                if kind:
                    model.add(starts[k] >= self._end(letter - 1, k))
                if needed >= 0:
                    model.add(starts[k] >= self._end(needed, k) + problem.lag[letter] // self.grain)
            if kind == I:
                # What `paths` says, given to each micro-batch at once rather than hop by hop.
                trip = (path.round_trip[stage] - problem.duration[letter]) // self.grain
                for k in range(m):
                    model.add(starts[k] >= self.start[letter - 1][k] + trip)

    def _one_at_a_time(self, rank: int) -> None:
        model = self.model
        model.add_no_overlap(
            [
                model.new_fixed_size_interval_var(start, self.duration[c], "")
                for s in self.problem.stages_of[rank]
                for c in (3 * s + F, 3 * s + I, 3 * s + W)
                for start in self.start[c]
                if self.duration[c]
            ]
        )

    def _within_room(self, rank: int) -> None:
        problem, model, m, room = self.problem, self.model, self.problem.micro_batches, self.problem.room
        capacity = room.capacity[rank]
        intervals, demands = [], []
        for s in problem.stages_of[rank]:
            f, i, w = 3 * s + F, 3 * s + I, 3 * s + W
            for size, letter in ((room.before[s], i), (room.after[s], w)):
                n = capacity // size if size else m
                for k in range(m - n):
                    model.add(self.start[f][k + n] >= self._end(letter, k))
            for k in range(m):
                for size, begin, end in (
                    (room.before[s], self.start[f][k], self._end(i, k)),
                    (room.after[s], self._end(i, k), self._end(w, k)),
                ):
                    length = model.new_int_var(0, self.horizon, "")
                    intervals.append(model.new_interval_var(begin, length, end, ""))
                    demands.append(size)
        if sum(m * room.before[s] for s in problem.stages_of[rank]) > capacity:
            model.add_cumulative(intervals, demands, capacity)

    def _first_start(self, rank: int) -> Any:
        """When the rank starts. A simulation starts it as soon as it can, so where that is certain it is a number."""
        problem = self.problem
        lowest = problem.stages_of[rank][0]
        before = [problem.stages_of[problem.placement.rank_of[s]][0] == s for s in range(lowest)]
        if all(before):
            self.model.add(self.start[3 * lowest + F][0] == paths(problem).head[lowest] // self.grain)
        return self.start[3 * lowest + F][0]


def _rank_in_time(letter: int) -> int:
    """F's before I's before W's; F's up the stages, I's down."""
    stage, kind = divmod(letter, 3)
    return stage if kind == F else 10**6 - stage if kind == I else 10**6 + 1
