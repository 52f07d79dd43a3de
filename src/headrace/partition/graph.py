"""All cuts as paths: from 0 layers to all of them, one edge per stage.

    boundary   0      1      2      3      4
    stage 0    o──────▶──────▶                  an edge from `start` to `end` is a stage of these layers, in the
    stage 1           o──────▶──────▶           fastest way that fits into its rank's memory
    stage 2                  o──────▶──────▶

Only for placements with one stage a rank: there stages share nothing, so a cut's loads and sums are those of its edges.

Edges with a load above `bound` are left out, and so is what lies on no path. A growing span only gets heavier, so each
row of edges ends at the first span that is too heavy, and the graph has about S · L · (L ÷ S) edges for a close bound
instead of S · L² / 2.
"""

from bisect import bisect_left
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

from headrace.costs import Number
from headrace.partition.objective import Objective
from headrace.partition.problem import Problem
from headrace.partition.spans import Growth, Option


class Edge(NamedTuple):
    """One span as a stage: what follows begins at `end`."""

    end: int
    load: Number
    adds: Number
    option: Option


@dataclass(frozen=True)
class Graph:
    """The edges that lie on a path, and whether each is as fast as it can be.

    Attributes:
        edges: per stage, start → the edges from there.
        exact: False if a stage had too many ways to recompute to look at all of them (see `spans`).
        bound: the largest load that was let in.
    """

    edges: list[dict[int, list[Edge]]]
    exact: bool
    bound: Number


def build_graph(problem: Problem, objective: Objective, bound: Number, most: int) -> Graph | None:
    """The graph of all cuts without a load above `bound`; None if there is none.

    Args:
        problem: with one stage a rank.
        objective: what loads and sums are.
        bound: of a load.
        most: how many ways to recompute to remember per span.
    """
    layers, stages, boundaries = problem.costs.layers, problem.stages, problem.boundaries
    allowed = set(boundaries)
    longest = bound if objective.timed else inf
    reach = {0}
    edges: list[dict[int, list[Edge]]] = []
    exact = True
    for stage in range(stages):
        behind = stages - stage - 1
        # The layers that are left must not be too few, nor too much, for the stages that are left.
        latest = boundaries[len(boundaries) - 1 - behind] if behind < len(boundaries) else -1
        earliest = layers if not behind else _earliest(objective, layers, range(stage + 1, stages), bound)
        row: dict[int, list[Edge]] = {}
        for start in sorted(reach):
            growth = Growth(problem, stage, start, fastest=True, most=most, bound=longest)
            found = _from(growth, objective, stage, start, (earliest, latest), allowed, bound)
            exact = exact and not growth.thinned
            if found:
                row[start] = found
        edges.append(row)
        reach = {edge.end for found in row.values() for edge in found}
    for stage in range(stages - 2, -1, -1):
        ahead = edges[stage + 1]
        trimmed = {start: [e for e in found if e.end in ahead] for start, found in edges[stage].items()}
        edges[stage] = {start: found for start, found in trimmed.items() if found}
    return Graph(edges, exact, bound) if edges[0] else None


def _earliest(objective: Objective, layers: int, stages: range, bound: Number) -> int:
    """The first boundary behind which `stages` could take all layers without a load above `bound`."""
    if bound == inf:
        return 0
    weight: Number = 0
    for stage in stages:
        # A float here may round; one part in a million more lets in some edges that the searches then pass over.
        weight += bound / objective.factor(stage) * (1 + 1e-6)
    return bisect_left(objective.before, objective.before[layers] - weight)


def _from(
    growth: Growth,
    objective: Objective,
    stage: int,
    start: int,
    ends: tuple[int, int],
    allowed: set[int],
    bound: Number,
) -> list[Edge]:
    """The edges of `stage` from `start`, to boundaries between the first and the last of `ends`."""
    found: list[Edge] = []
    before, factor = objective.before, objective.factor(stage)
    ceiling = bound if bound == inf else bound * (1 + 1e-6)
    for end, options in growth:
        if end > ends[1] or (before[end] - before[start]) * factor > ceiling:
            break
        if end < ends[0] or end not in allowed:
            continue
        option = options[0]
        load = objective.load(stage, start, end, option.again)
        if load <= bound:
            chain = objective.chain(stage, start, end, option.again)
            found.append(Edge(end, load, objective.adds(load, chain), option))
    return found
