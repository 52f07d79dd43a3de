"""The best cuts where ranks hold several stages: local search for a start, then branch and bound for the proof.

A rank's stages lie far apart in the chain, so no prefix of it says how good the rest can be, and finding the best cut
is hard in general (it contains the partition of numbers into equal halves). So

    local search     moves boundaries while that makes the cut better (see `local`);
    branch and bound goes through all cuts, stage by stage, and leaves out whatever cannot beat the k best so far.

If the second one gets to its end within its effort, the result is exact; if not, it is the best of both, and says so.
"""

from math import comb

from headrace.costs import Number
from headrace.partition.local import local_search
from headrace.partition.result import Found
from headrace.partition.shared import Appraiser
from headrace.partition.shortlist import Shortlist

_TOO_MANY = 10**7


def best_shared(appraiser: Appraiser, count: int, effort: int) -> Found | None:
    """The best cuts of a placement with several stages a rank; None if none was found.

    Args:
        appraiser: of the problem, for the objective.
        count: k.
        effort: how many spans to look at.
    """
    pieces = len(appraiser.problem.boundaries) - 1
    small = comb(pieces - 1, appraiser.problem.stages - 1) <= _TOO_MANY
    # Where a proof may follow, a good start is enough.
    near = local_search(appraiser, count, effort // (20 * appraiser.problem.stages if small else 8))
    if not small:
        return Found(tuple(near), 0, "local search") if near else None
    best = Shortlist(count)
    for cut in near:
        best.add(cut)
    exact = _branch_and_bound(appraiser, best, effort) and not appraiser.thinned
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
