"""Local search for cuts where ranks hold several stages: boundaries move while that makes the cut better.

    │ a b │ c d │ e │  ──▶  │ a │ b c │ d e │      a run of neighbouring boundaries moves by one piece, which takes a
                                                    piece from one stage and gives one to another

It starts from cuts that are even in load, in layers and in bytes, from the one that is best if every stage had its part
of its rank's memory for itself, and then from shaken ones. Where several ranks are the slowest no single step helps, so
of equal cuts the one with the more even loads counts as better.
"""

from collections.abc import Iterator
from itertools import accumulate, pairwise
from math import inf
from random import Random

from headrace.costs import Number
from headrace.partition.minmax import partition
from headrace.partition.result import Cut
from headrace.partition.shared import Appraiser
from headrace.partition.shortlist import Shortlist
from headrace.partition.spans import smallest_of

Ends = tuple[int, ...]
"""The numbers of the boundaries where stages end."""

_STARTS = 20
_HALVINGS = 24


def local_search(appraiser: Appraiser, count: int, effort: int) -> list[Cut]:
    """The `count` best cuts that moving boundaries finds, the best first, looking at about `effort` cuts."""
    random = Random(0)
    best = Shortlist(count)
    pieces = len(appraiser.problem.boundaries) - 1
    left = max(effort, 100)
    found = [(_score(appraiser, best, start), start) for start in _starts(appraiser)]
    for _ in range(_STARTS):
        if found:
            # The most promising first, so that it has most of the effort.
            score, now = found.pop(min(range(len(found)), key=lambda at: found[at][0]))
        else:
            now = _shaken(now, random, pieces)
            score = _score(appraiser, best, now)
        now, left = _climbed(appraiser, best, now, score, left)
        if left <= 0:
            break
    return best.cuts


def _climbed(appraiser: Appraiser, best: Shortlist, now: Ends, score: "_Score", left: int) -> tuple[Ends, int]:
    """Where single moves lead from `now`, and what is `left` of the effort then."""
    pieces = len(appraiser.problem.boundaries) - 1
    inner = len(now) - 1
    idle = 0
    for first, behind, step in _moves(inner):
        ends = (*now[:first], *[end + step for end in now[first:behind]], *now[behind:])
        better = False
        if _valid(ends, first, behind, pieces):
            left -= 1
            other = _score(appraiser, best, ends)
            better = other < score
            if better:
                now, score = ends, other
        idle = 0 if better else idle + 1
        if left <= 0 or idle > inner * (inner + 1):  # more than there are moves
            break
    return now, left


class _Score(tuple[Number, ...]):
    """Bytes too many, the objective's value, the unevenness of the loads."""

    def __lt__(self, other: tuple[Number, ...]) -> bool:
        if self[0] != other[0]:
            return self[0] < other[0]
        # Sums of floats differ by their rounding, though nothing is better.
        if abs(self[1] - other[1]) > 1e-12 * abs(other[1]):
            return self[1] < other[1]
        return self[2] < other[2] * (1 - 1e-12)


def _score(appraiser: Appraiser, best: Shortlist, ends: Ends) -> _Score:
    boundaries = appraiser.problem.boundaries
    spans = [(boundaries[a], boundaries[b]) for a, b in pairwise((0, *ends))]
    shares = appraiser.shares(spans)
    if shares is None:
        # Even if bytes seem to suffice, something is in the way: 1 says so.
        return _Score((appraiser.excess(spans) + 1, 0, 0))
    worth, largest = appraiser.value(shares)
    value = worth + appraiser.unsteady(shares), largest
    if best.wants(value):
        cut = appraiser.cut(spans)
        if cut is not None:
            best.add(cut, value)
    return _Score((0, value[0], sum(load * load for share in shares for load in share.loads)))


def _moves(inner: int) -> Iterator[tuple[int, int, int]]:
    """Runs of boundaries (the first, behind the last) and steps, short runs first, over and over."""
    while inner:
        for length in range(1, inner + 1):
            for first in range(inner - length + 1):
                yield first, first + length, -1
                yield first, first + length, 1


def _valid(ends: Ends, first: int, behind: int, pieces: int) -> bool:
    """Whether no stage is empty after boundaries `first` … `behind` − 1 moved."""
    before = ends[first - 1] if first else 0
    return before < ends[first] and ends[behind - 1] < (ends[behind] if behind < len(ends) else pieces)


def _starts(appraiser: Appraiser) -> list[Ends]:
    """Cuts that are even in load, in layers and in bytes, and the best one if stages shared nothing."""
    problem = appraiser.problem
    pieces = list(pairwise(problem.boundaries))
    before = appraiser.objective.before
    weights = (
        [before[end] - before[start] for start, end in pieces],
        [1] * len(pieces),
        [smallest_of(problem, 0, start, end) for start, end in pieces],
    )
    cuts = [tuple(accumulate(partition(of_pieces, problem.stages))) for of_pieces in weights]
    apart = _apart(appraiser)
    return list(dict.fromkeys([apart, *cuts] if apart is not None else cuts))


def _apart(appraiser: Appraiser) -> Ends | None:
    """The cut with the smallest load of a stage, if each had an equal part of its rank's memory; None if none fits."""
    low: Number = 0
    high: Number = 2 * appraiser.objective.before[-1] * max(appraiser.problem.slowness_of)
    best = _filled(appraiser, inf)
    for _ in range(_HALVINGS if best is not None else 0):
        middle = (low + high) / 2
        found = _filled(appraiser, middle)
        low, high, best = (middle, high, best) if found is None else (low, middle, found)
    return best


def _filled(appraiser: Appraiser, bound: Number) -> Ends | None:
    """Each stage in turn as long as `bound` and its part of memory allow; None if layers are left over."""
    problem, objective, boundaries = appraiser.problem, appraiser.objective, appraiser.problem.boundaries
    ends: list[int] = []
    at = 0
    for stage in range(problem.stages):
        rank = problem.placement.rank_of[stage]
        limit, several = problem.limits[rank], problem.stages // problem.ranks
        part = inf if limit is None else limit / several
        reached = at
        for further in range(at + 1, len(boundaries) - (problem.stages - stage - 1)):
            start, end = boundaries[at], boundaries[further]
            fastest = next((o for o in appraiser.options(stage, start, end) if o.total <= part), None)
            if fastest is None or objective.load(stage, start, end, fastest.again) > bound:
                break
            reached = further
        if reached == at:
            return None
        at = reached
        ends.append(at)
    return tuple(ends) if at == len(boundaries) - 1 else None


def _shaken(ends: Ends, random: Random, pieces: int) -> Ends:
    """A few random steps away."""
    moved = ends
    for _ in range(len(ends) if len(ends) > 1 else 0):
        at, step = random.randrange(len(ends) - 1), random.choice((-2, -1, 1, 2))
        tried = (*moved[:at], moved[at] + step, *moved[at + 1 :])
        if _valid(tried, at, at + 1, pieces):
            moved = tried
    return moved
