"""The best k paths through a graph of cuts, in order: best-first search with bounds that look ahead.

    heap    ┌ value of the best way to finish ┐
            │ 0 ▶ 3 ▶ 5 ▶ ?             41    │ ◀── pop: grow it by each edge from 5, or, if it is whole, hand it out
            │ 0 ▶ 2 ▶ ?                 42    │
            └ 0 ▶ 3 ▶ 4 ▶ ?             44    ┘

What comes out first has a value no larger than the bound of anything that is left, so it is the next best. A bound is
the least over brackets (t, T] of the largest load: there the sum is at least the smallest sum under T, and the largest
load at least the next one above t. `best_path` leaves such tables behind, and with them the bounds are nearly exact.

Nearly: where very many paths are almost as good as the best one, the heap may grow without end. So there is a limit,
beyond which the others are the smallest sums under the best path's own largest load (see `near`).
"""

from bisect import bisect_right
from collections.abc import Callable
from heapq import heappop, heappush
from math import inf
from typing import Any, NamedTuple

from headrace.costs import Number
from headrace.partition.graph import Edge, Graph
from headrace.partition.near import Ways
from headrace.partition.objective import Objective
from headrace.partition.paths import Best, Rest, measured, smallest_sums

_BRACKETS = 6


class Bracket(NamedTuple):
    """Paths whose largest load is at least `floor` and at most `ceiling`."""

    floor: Number
    ceiling: Number
    sums: Rest


def best_paths(graph: Graph, objective: Objective, best: Best, count: int, effort: int) -> tuple[list[list[Edge]], int]:
    """At most `count` paths, best first, and how many of the first are proven to be the best.

    Args:
        graph: of all cuts.
        objective: what makes one better.
        best: what `best_path` found.
        count: k.
        effort: how many edges to look at before giving up on proofs.
    """
    if count == 1:
        return [best.path], 1
    least = best.peaks[0][0]
    if objective.name != "step":
        # Nothing is better than the least possible largest load, and then the sum counts.
        found = Ways(graph, least, best.sums[least]).first(count)
        if len(found) == count:
            return found, count
    found, complete = _search(graph, _brackets(graph, best), best.peaks, objective.value, count, effort)
    if complete:
        return found, len(found)
    # The best one is proven in any case; if nothing came out of the heap, it comes first now.
    found = found or [best.path]
    proven = len(found)
    seen = {_ends(path) for path in found}
    _, ceiling = measured(best.path)
    for bound in (ceiling, inf):
        sums = best.sums.get(bound) or smallest_sums(graph, bound)
        others = [path for path in Ways(graph, bound, sums).first(2 * count) if _ends(path) not in seen]
        found += others
        seen.update(map(_ends, others))
        if len(found) >= count:
            break
    others = sorted(found[proven:], key=lambda path: objective.value(*measured(path)))
    return [*found[:proven], *others][:count], proven


def _ends(path: list[Edge]) -> tuple[int, ...]:
    return tuple(edge.end for edge in path)


def _brackets(graph: Graph, best: Best) -> list[Bracket]:
    """All loads in a few brackets, the narrow ones where the best path is."""
    loads = sorted({edge.load for row in graph.edges for found in row.values() for edge in found})
    _, largest = measured(best.path)
    known = sorted(best.sums, key=lambda ceiling: abs(ceiling - largest))
    tables = {ceiling: best.sums[ceiling] for ceiling in known[:_BRACKETS]}
    if loads[-1] not in tables:
        tables[loads[-1]] = best.sums.get(loads[-1]) or smallest_sums(graph, loads[-1])
    brackets: list[Bracket] = []
    floor = best.peaks[0][0]
    for ceiling in sorted(tables):
        brackets.append(Bracket(floor, ceiling, tables[ceiling]))
        above = bisect_right(loads, ceiling)
        floor = loads[above] if above < len(loads) else ceiling
    return brackets


def _search(
    graph: Graph,
    brackets: list[Bracket],
    peaks: Rest,
    value: Callable[[Number, Number], tuple[Number, Number]],
    count: int,
    effort: int,
) -> tuple[list[list[Edge]], bool]:
    """The first paths in the order of `value`, and whether the effort was enough for them."""
    stages = len(graph.edges)
    found: list[list[Edge]] = []
    ticks = 0
    # (bound, stages left, number, where, sum, largest load, path backwards): of equal bounds, the longest goes first.
    heap: list[tuple[Any, int, int, int, Number, Number, Any]] = [((0, 0), stages, 0, 0, 0, 0, None)]
    while heap and len(found) < count:
        _, left, _, start, total, largest, path = heappop(heap)
        if not left:
            found.append(_forward(path))
            continue
        stage = stages - left
        for edge in graph.edges[stage][start]:
            ticks += 1
            larger = max(largest, edge.load)
            bound = _bound(brackets, peaks, value, stage + 1, edge.end, total + edge.adds, larger, stages)
            if bound is not None:
                heappush(heap, (bound, left - 1, ticks, edge.end, total + edge.adds, larger, (edge, path)))
        if ticks > effort:
            return found, False
    return found, True


def _bound(
    brackets: list[Bracket],
    peaks: Rest,
    value: Callable[[Number, Number], tuple[Number, Number]],
    stage: int,
    start: int,
    total: Number,
    largest: Number,
    stages: int,
) -> tuple[Number, Number] | None:
    """No way to finish is better than this; None if there is none within the brackets."""
    if stage == stages:
        return value(total, largest) if largest <= brackets[-1].ceiling else None
    peak = peaks[stage].get(start, inf)
    least = max(largest, peak)
    bounds = [
        value(total + sums[stage][start], max(least, floor))
        for floor, ceiling, sums in brackets
        if least <= ceiling and start in sums[stage]
    ]
    return min(bounds, default=None)


def _forward(path: Any) -> list[Edge]:
    edges: list[Edge] = []
    while path is not None:
        edge, path = path
        edges.append(edge)
    return edges[::-1]
