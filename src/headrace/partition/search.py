"""The best cuts of a problem: which search, and how much of the graph it has to see.

One stage a rank, and the cuts are paths (see `graph`), so the best is found exactly:

    bound      close ──▶ wider ──▶ wider ──▶ none
    graph      ▒         ▒▒▒       ▒▒▒▒▒▒    until it holds k cuts, and no better one
                                         could have a load beyond the bound

Several stages a rank: see `branches`.
"""

from itertools import pairwise
from math import inf

from headrace.costs import Number
from headrace.partition.advice import anything_fits, refuse
from headrace.partition.branches import best_shared
from headrace.partition.graph import Graph, build_graph
from headrace.partition.objective import Name, Objective
from headrace.partition.paths import best_path
from headrace.partition.problem import Problem
from headrace.partition.ranked import best_paths
from headrace.partition.result import Cut, Found, Method, as_cut
from headrace.partition.shared import Appraiser
from headrace.schedule.numbers import at_least

# Edges of a graph that are few enough to look at all of them at once.
_FEW = 20_000
# Ways to recompute that are remembered: per span, at least, and for all edges together, about.
_LEAST, _MOST = 16, 10_000_000
_WIDER = (1.03, 1.15, 1.4, 2.0, 4.0)


def best_cuts(problem: Problem, objective: Name = "slowest", *, count: int = 1, effort: int = 100_000) -> Found:
    """The best ways to cut the layers into stages: contiguous, none empty, and within every rank's memory.

    With one stage a rank the first cut is proven to be the best; the others are too, unless there are so many good
    ones that telling them apart takes more than `effort`. With several, all are proven where the effort suffices, and
    otherwise come from a local search. Nothing is proven where single layers may be recomputed and a span has too many
    ways to choose them ("thinned"). `Found` says which. Exact means exact for ints and Fractions;
    sums of floats are as exact as floats are.

    Args:
        problem: layers, ranks, memory, and what a cut may do.
        objective: "slowest" rank, "step" time, or, for comparison, "parameters" or "layers" (see `objective`).
        count: how many cuts (k), to be simulated and ranked again by `rerank`, for example.
        effort: how many spans to look at before proofs are given up; some seconds per million.

    Raises:
        NoCutFits: there is no such cut; it says why, and what would help.
        ValueError: `objective` is unknown, or a number is out of range.
    """
    found = cuts_if_any(problem, objective, count=count, effort=effort)
    if found is None:
        raise refuse(problem, lambda other: cuts_if_any(other, "slowest", count=1, effort=min(effort, 5_000)))
    return found


def cuts_if_any(problem: Problem, name: Name, *, count: int, effort: int) -> Found | None:
    """The same, but None where there is no such cut: to find out why, and what would help, takes much longer."""
    at_least(1, count=count, effort=effort)
    objective = Objective(name, problem)
    if len(problem.boundaries) <= problem.stages:
        return None
    if problem.one_stage_a_rank:
        return _of_paths(problem, objective, count, effort)
    return best_shared(Appraiser(problem, objective, _most(problem)), count, effort)


def _most(problem: Problem) -> int:
    """How many ways to recompute to remember per span."""
    return max(_LEAST, _MOST // _edges(problem))


def _edges(problem: Problem) -> int:
    """How many edges a graph has at most."""
    return max(1, problem.stages * len(problem.boundaries) ** 2 // 2)


def _of_paths(problem: Problem, objective: Objective, count: int, effort: int) -> Found | None:
    bounds = _bounds(problem, objective)
    may_fit = all(limit is None for limit in problem.limits)
    while True:
        bound = bounds.pop(0)
        graph = build_graph(problem, objective, bound, _most(problem))
        found = _within(problem, objective, graph, count, effort) if graph else None
        if bound == inf:
            return found
        if found is None and not may_fit:
            # Before wider and wider graphs are built for nothing.
            may_fit = anything_fits(problem)
            if not may_fit:
                return None
        if found is None or len(found.cuts) < count:
            continue
        needed = objective.largest_load(found.cuts[-1].value)
        if needed <= bound:
            return found
        # A cut with a load that this graph left out may be better than some of these, but none with one above `needed`.
        bounds = [needed, inf]


def _bounds(problem: Problem, objective: Objective) -> list[Number]:
    """Bounds of a load to try in turn."""
    if _edges(problem) <= _FEW:
        return [inf]
    stages = range(problem.stages)
    share = objective.before[-1] / sum(1 / objective.factor(stage) for stage in stages)
    fastest = min(objective.factor(stage) for stage in stages)
    heaviest = max(objective.before[end] - objective.before[start] for start, end in pairwise(problem.boundaries))
    least = max(share, heaviest * fastest)
    return [*(least * wider for wider in _WIDER), inf]


def _within(problem: Problem, objective: Objective, graph: Graph, count: int, effort: int) -> Found:
    """The best cuts in the graph."""
    paths, proven = best_paths(graph, objective, best_path(graph, objective), count, effort)
    cuts: list[Cut] = []
    for path in paths:
        spans = list(pairwise((0, *(edge.end for edge in path))))
        cuts.append(as_cut(problem, objective, spans, [edge.option for edge in path]))
    method: Method = "exact" if proven == len(cuts) else "first exact"
    return Found(tuple(cuts), proven, method) if graph.exact else Found(tuple(cuts), 0, "thinned")
