"""What makes one cut better than another.

    slowest      seconds of the slowest rank; then evenness, so that light stages are even too
    step         a model of the step:  fill and drain + (m − 1) × the slowest rank
    parameters   bytes of parameters of the fullest rank
    layers       layers of the rank with most

Every objective is made of two numbers that stages add up to: the *load* of a rank, whose largest counts, and a *sum*
over all of them. A cut's value grows with both, which is all that the searches need to know.

    rank 0  F0 F1 F2 F3 ··········[B0  ]···
    rank 1  ···[F0 ][F1 ][F2 ][F3 ][B0   ]···       the slowest rank works all the time,
    rank 2  ········F0 ···F1 ···                    the others add one passage of the chain
            ╰ fill ╯╰─── m × slowest ───╯╰ drain ╯

With v stages a rank, one of its stages is enough to wake the next rank, so fill and drain are shorter by v: the model
is (sum + (m·v − 1) × slowest) ÷ v. On equal stages it is (m·v + p − 1)(F + B), Narayanan's closed form.
"""

from collections.abc import Iterable
from fractions import Fraction
from itertools import accumulate
from math import inf
from typing import Any, Literal, get_args

from headrace.costs import Number, Seconds
from headrace.partition.problem import Problem, ratio

Name = Literal["slowest", "step", "parameters", "layers"]
Value = tuple[Number, Number]


class Objective:
    """One of the four, for one problem.

    Args:
        name: which.
        problem: as given by the user.

    Attributes:
        timed: whether loads are seconds.
        before: what all layers before each add to a load at least; a prefix sum.

    Raises:
        ValueError: `name` is unknown.
    """

    def __init__(self, name: Name, problem: Problem) -> None:
        if name not in get_args(Name):
            raise ValueError(f"objective={name!r} is unknown: choose one of {', '.join(get_args(Name))}")
        self.name = name
        self._problem = problem
        self.timed = name in ("slowest", "step")
        measure = {"parameters": problem.costs.parameters, "layers": [1] * problem.costs.layers}
        self.before: list[Number] = problem.seconds_before
        if not self.timed:
            self.before = [0, *accumulate(measure[name])]
        v = -(-problem.stages // problem.ranks)
        self._rounds = problem.micro_batches * v - 1
        self._share: Any = Fraction(1, v) if v > 1 else 1

    def factor(self, stage: int) -> Number:
        """What `before` is multiplied by at `stage`."""
        return self._problem.slowness_of[self._problem.placement.rank_of[stage]] if self.timed else 1

    def load(self, stage: int, start: int, end: int, again: Seconds) -> Number:
        """What a stage adds to the load of its rank."""
        if not self.timed:
            return self.before[end] - self.before[start]
        load = self._problem.compute(stage, start, end, again)
        return load if self._problem.hidden else load + self._problem.sends(stage, start, end)

    def chain(self, stage: int, start: int, end: int, again: Seconds) -> Number:
        """What a stage adds to one passage of the chain, there and back, with the hops to the next stage."""
        return self._problem.compute(stage, start, end, again) + 2 * self._problem.hop(stage, end)

    def adds(self, load: Number, chain: Number) -> Number:
        """What a stage that is alone on its rank adds to the sum."""
        return chain if self.name == "step" else load * load

    def value(self, total: Number, largest: Number) -> Value:
        """How good a cut is, less being better, by the sum over its ranks and the largest load."""
        if self.name == "step":
            return (total + self._rounds * largest) * self._share, largest
        return largest, total

    def value_of(self, loads: Iterable[Number], chain: Number, least: Number = 0) -> Value:
        """How good a cut is, by the loads of its ranks and the seconds of its chain.

        If they are those of a part of it, this is a bound; `least` is what the largest load is known to be at least.
        """
        loads = tuple(loads)
        total = chain if self.name == "step" else sum(load * load for load in loads)
        return self.value(total, max(least, *loads))

    def largest_load(self, value: Value) -> Number:
        """No cut that is as good as `value` has a rank with a larger load."""
        if self.name != "step":
            return value[0]
        if not self._rounds:
            return inf
        problem = self._problem
        fastest = min(problem.slowness_of) * problem.seconds_before[-1]
        needed: Number = ratio(value[0] / self._share - fastest, self._rounds)
        return needed
