"""The best path through a graph of cuts, exactly: parametric search over the largest load.

Once no load may exceed T, a path's sum is made of independent edges, so one backward pass finds S(T), the smallest sum
under T, in the time that it takes to look at each edge once. What we want is the smallest value(S(T), T) over all T.

    S(T)                                     S only falls while T grows, so between two loads t < T that were
     │‾‾‾‾|____                              looked at, no path has a value below
     │         |_________                        value(S(T), t)
     │                   |________           and an interval whose corner is no better than the best path so far
     ╰──────t────────────────T──────▶ T      is done with. The others are halved.

Exact: let the best path have the sum s and the largest load t. Then t is one of the loads, S(t) ≤ s, and the path that
attains S(t) has no load above t, so its value is no worse. The search looks at every load but those in intervals whose
corner proves that they hold nothing better. It takes the smallest T for which there is a path at all from a pass of its
own, with max in the place of +.
"""

from bisect import bisect_left
from dataclasses import dataclass
from math import inf

from headrace.costs import Number
from headrace.partition.graph import Edge, Graph
from headrace.partition.objective import Objective, Value

Rest = list[dict[int, Number]]
"""Per stage, start → the best that is possible from there on; starts from which there is no way on are missing."""


@dataclass(frozen=True)
class Best:
    """The best path, and what was learned on the way to it.

    Attributes:
        path: its edges.
        value: what the objective makes of it.
        peaks: the smallest possible largest load, from each boundary on.
        sums: T → the smallest sum under T, from each boundary on; for some T.
    """

    path: list[Edge]
    value: Value
    peaks: Rest
    sums: dict[Number, Rest]


def best_path(graph: Graph, objective: Objective) -> Best:
    """The path with the best value."""
    peaks = smallest_peaks(graph)
    least = peaks[0][0]
    if objective.name != "step":
        sums = smallest_sums(graph, least)
        path = trace(graph, sums, least)
        return Best(path, objective.value(*measured(path)), peaks, {least: sums})
    loads = sorted({edge.load for row in graph.edges for found in row.values() for edge in found})
    first, last = bisect_left(loads, least), len(loads) - 1
    tables: dict[Number, Rest] = {}
    best: tuple[Value, list[Edge]] | None = None

    def look(at: int) -> tuple[Number, int]:
        """S at the load number `at`, and the number of the largest load on the path that attains it."""
        nonlocal best
        rest = tables[loads[at]] = smallest_sums(graph, loads[at])
        path = trace(graph, rest, loads[at])
        total, largest = measured(path)
        value = objective.value(total, largest)
        if best is None or value < best[0]:
            best = value, path
        return rest[0][0], bisect_left(loads, largest)

    look(first)
    total, seen = look(last)
    intervals = [(first + 1, seen - 1, total)]
    while intervals:
        low, high, total = intervals.pop()
        if low > high or (best is not None and objective.value(total, loads[low]) >= best[0]):
            continue
        middle = (low + high) // 2
        within, seen = look(middle)
        intervals += [(middle + 1, high, total), (low, seen - 1, within)]
    if best is None:
        raise RuntimeError("a graph without a path: this is our mistake")
    return Best(best[1], best[0], peaks, tables)


def smallest_peaks(graph: Graph) -> Rest:
    """From each boundary on, the smallest possible largest load."""
    rest: Rest = [{} for _ in graph.edges]
    ahead: dict[int, Number] | None = None
    for stage in range(len(graph.edges) - 1, -1, -1):
        here = rest[stage]
        for start, found in graph.edges[stage].items():
            if ahead is None:
                here[start] = min(edge.load for edge in found)
                continue
            best: Number = inf
            for end, load, _, _ in found:
                onward = ahead[end]
                larger = load if load > onward else onward
                if larger < best:  # noqa: PLR1730 - min() would take twice as long
                    best = larger
            here[start] = best
        ahead = here
    return rest


def smallest_sums(graph: Graph, bound: Number) -> Rest:
    """From each boundary on, the smallest sum without a load above `bound`."""
    rest: Rest = [{} for _ in graph.edges]
    ahead: dict[int, Number] | None = None
    for stage in range(len(graph.edges) - 1, -1, -1):
        here = rest[stage]
        for start, found in graph.edges[stage].items():
            if ahead is None:
                sums = [adds for _, load, adds, _ in found if load <= bound]
            else:
                sums = [adds + ahead[end] for end, load, adds, _ in found if load <= bound and end in ahead]
            if sums:
                here[start] = min(sums)
        ahead = here
    return rest


def trace(graph: Graph, rest: Rest, bound: Number) -> list[Edge]:
    """The path that attains the smallest sum under `bound`."""
    path: list[Edge] = []
    start, stages = 0, len(graph.edges)
    for stage, row in enumerate(graph.edges):
        ahead = rest[stage + 1] if stage + 1 < stages else dict.fromkeys((e.end for e in row[start]), 0)
        ways = (edge for edge in row[start] if edge.load <= bound and edge.end in ahead)
        path.append(min(ways, key=lambda edge: edge.adds + ahead[edge.end]))
        start = path[-1].end
    return path


def measured(path: list[Edge]) -> tuple[Number, Number]:
    """The sum and the largest load of a path."""
    return sum(edge.adds for edge in path), max(edge.load for edge in path)
