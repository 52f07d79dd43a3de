"""The best cuts where ranks hold several stages: local search for a start, then branch and bound for the proof.

A rank's stages lie far apart in the chain, so no prefix of it says how good the rest can be, and finding the best cut
is hard in general (it contains the partition of numbers into equal halves). So

    local search     shifts a run of neighbouring boundaries by one piece, which takes a piece from one stage and gives
                     one to another:   │ a b │ c d │ e │  ──▶  │ a │ b c │ d e │     while that makes the cut better;
    branch and bound goes through all cuts, stage by stage, and leaves out whatever cannot beat the k best so far.

If the second one gets to its end within its effort, the result is exact; if not, it is the best of both, and says so.
"""

from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from math import comb
from random import Random

from headrace.costs import Number
from headrace.partition.minmax import partition
from headrace.partition.objective import Value
from headrace.partition.result import Cut, Found
from headrace.partition.shared import Appraiser
from headrace.partition.spans import smallest_of

_TOO_MANY = 10**7


class Shortlist:
    """The `count` best different cuts that were seen."""

    def __init__(self, count: int) -> None:
        self.cuts: list[Cut] = []
        self._count = count
        self._seen: set[tuple[int, ...]] = set()

    def add(self, cut: Cut) -> None:
        """Take it in, if it is new and good enough."""
        if cut.layers not in self._seen and self.wants(cut.value):
            self._seen.add(cut.layers)
            self.cuts.append(cut)
            self.cuts.sort(key=lambda other: other.value)
            del self.cuts[self._count :]

    def wants(self, value: Value) -> bool:
        """Whether a cut that is at best this good may still come in."""
        return len(self.cuts) < self._count or value < self.cuts[-1].value


def best_shared(appraiser: Appraiser, count: int, effort: int) -> Found | None:
    """The best cuts of a placement with several stages a rank; None if none was found.

    Args:
        appraiser: of the problem, for the objective.
        count: k.
        effort: how many spans to look at.
    """
    best = Shortlist(count)
    pieces = len(appraiser.problem.boundaries) - 1
    small = comb(pieces - 1, appraiser.problem.stages - 1) <= _TOO_MANY
    # Where a proof may follow, a good start is enough.
    _local_search(appraiser, best, effort // ((20 if small else 2) * appraiser.problem.stages))
    exact = small and _branch_and_bound(appraiser, best, effort) and not appraiser.thinned
    if not best.cuts:
        return None
    return Found(tuple(best.cuts), len(best.cuts) if exact else 0, "exact" if exact else "local search")


def _branch_and_bound(appraiser: Appraiser, best: Shortlist, effort: int) -> bool:
    """Whether all cuts were looked at or proven to be no better than the best."""
    problem, objective = appraiser.problem, appraiser.objective
    stages, layers, boundaries = problem.stages, problem.costs.layers, problem.boundaries
    rank_of = problem.placement.rank_of
    # However the layers are spread, some rank has at least its share.
    strength = sum(1 / objective.factor(problem.placement.stages_of(rank)[0]) for rank in range(problem.ranks))
    share = objective.before[-1] / strength * (1 - 1e-9)
    rest = [min(problem.slowness_of) * (problem.seconds_before[-1] - before) for before in problem.seconds_before]
    looked = 0

    def grow(at: int, spans: list[tuple[int, int]], loads: list[Number], chain: Number) -> bool:
        nonlocal looked
        stage, start = len(spans), boundaries[at]
        if stage == stages:
            cut = appraiser.cut(spans)
            if cut is not None:
                best.add(cut)
            return True
        behind = stages - stage - 1
        for further in range(at + 1, len(boundaries) - behind) if behind else (len(boundaries) - 1,):
            end = boundaries[further]
            looked += 1
            if looked > effort:
                return False
            options = appraiser.options(stage, start, end)
            if not options:
                return True
            again = options[0].again
            now = loads.copy()
            now[rank_of[stage]] += objective.load(stage, start, end, again)
            so_far = chain + objective.chain(stage, start, end, again)
            value = objective.value_of(now, so_far + rest[end], share)
            if best.wants(value) and not grow(further, [*spans, (start, end)], now, so_far):
                return False
        return True

    return layers > 0 and grow(0, [], [0] * problem.ranks, 0)


def _local_search(appraiser: Appraiser, best: Shortlist, effort: int) -> None:
    """Fill `best` with what shifting boundaries finds, from several starts, the last ones random."""
    problem = appraiser.problem
    random = Random(0)
    left = max(effort, 100)
    starts = _starts(appraiser)
    for start in starts:
        now, score = start, _score(appraiser, best, start)
        better = True
        while better and left > 0:
            better = False
            for ends in _neighbours(now, len(problem.boundaries) - 1):
                left -= 1
                other = _score(appraiser, best, ends)
                if other < score:
                    now, score, better = ends, other, True
                    break
                if left <= 0:
                    return
        if left > 0 and len(starts) < 20:
            starts.append(_shaken(now, random, len(problem.boundaries) - 1))


def _score(appraiser: Appraiser, best: Shortlist, ends: Sequence[int]) -> tuple[Number, Value]:
    boundaries = appraiser.problem.boundaries
    spans = [(boundaries[a], boundaries[b]) for a, b in pairwise((0, *ends))]
    cut = appraiser.cut(spans)
    if cut is None:
        # Even if bytes seem to suffice, something is in the way: 1 says so.
        return appraiser.excess(spans) + 1, (0, 0)
    best.add(cut)
    return 0, cut.value


def _starts(appraiser: Appraiser) -> list[tuple[int, ...]]:
    """Cuts, as the numbers of the boundaries where stages end, that are even in load, in layers and in bytes."""
    problem = appraiser.problem
    pieces = list(pairwise(problem.boundaries))
    before = appraiser.objective.before
    weights = (
        [before[end] - before[start] for start, end in pieces],
        [1] * len(pieces),
        [smallest_of(problem, 0, start, end) for start, end in pieces],
    )
    cuts = (tuple(accumulate(partition(of_pieces, problem.stages))) for of_pieces in weights)
    return list(dict.fromkeys(cuts))


def _neighbours(ends: Sequence[int], pieces: int) -> Iterator[tuple[int, ...]]:
    """All cuts that differ by one step of a run of neighbouring boundaries; short runs first."""
    inner = len(ends) - 1
    for length in range(1, inner + 1):
        for first in range(inner - length + 1):
            for step in (-1, 1):
                moved = [*ends]
                for at in range(first, first + length):
                    moved[at] += step
                if _valid(moved, pieces):
                    yield tuple(moved)


def _shaken(ends: Sequence[int], random: Random, pieces: int) -> tuple[int, ...]:
    """A few random steps away."""
    moved = [*ends]
    for _ in range(len(ends)):
        step = [*moved]
        step[random.randrange(len(ends))] += random.choice((-2, -1, 1, 2))
        if step[-1] == pieces and _valid(step, pieces):
            moved = step
    return tuple(moved)


def _valid(ends: Sequence[int], pieces: int) -> bool:
    return ends[-1] == pieces and all(a < b for a, b in pairwise((0, *ends)))
