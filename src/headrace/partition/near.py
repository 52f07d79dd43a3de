"""The k smallest sums under a bound of the load, lazily: the recursive enumeration of Jiménez and Marzal, 1999.

    boundary 5:   1st ─▶ 7, then its 1st       each boundary keeps its own list of ways on, in order; the next one is
                  2nd ─▶ 8, then its 1st       either another edge, or a way that is on the list with the next best
                  3rd ─▶ 7, then its 2nd       way from its end – which that boundary finds only when asked

Unlike a best-first search it cannot drown in ties, which chains of equal blocks have without number.
"""

from heapq import heapify, heappop, heappush
from itertools import count

from headrace.costs import Number
from headrace.partition.graph import Edge, Graph
from headrace.partition.paths import Rest

_Way = tuple[Number, int, Edge, int]
"""The sum, a number that breaks ties, the first edge, and the how manieth way from its end follows."""


class Ways:
    """The paths of a graph in the order of their sums.

    Args:
        graph: of all cuts.
        bound: no load is above it.
        sums: the smallest sums under `bound`.
    """

    def __init__(self, graph: Graph, bound: Number, sums: Rest) -> None:
        self._graph, self._bound, self._sums = graph, bound, sums
        self._found: list[dict[int, list[_Way]]] = [{} for _ in graph.edges]
        self._next: list[dict[int, list[_Way]]] = [{} for _ in graph.edges]
        self._numbers = count()

    def first(self, most: int) -> list[list[Edge]]:
        """At most `most` paths with the smallest sums."""
        return [self._path(which) for which in range(most) if self._way(0, 0, which) is not None]

    def _path(self, which: int) -> list[Edge]:
        path: list[Edge] = []
        start = 0
        for stage in range(len(self._graph.edges)):
            _, _, edge, which = self._found[stage][start][which]
            path.append(edge)
            start = edge.end
        return path

    def _way(self, stage: int, start: int, which: int) -> _Way | None:
        """The way number `which` from a boundary on; None if there are not so many."""
        if start not in self._found[stage]:
            self._found[stage][start], self._next[stage][start] = [], self._edges(stage, start)
        found, ahead = self._found[stage][start], self._next[stage][start]
        last = stage + 1 == len(self._graph.edges)
        while len(found) <= which and (ahead or found):
            if found and not last:
                _, _, edge, used = found[-1]
                onward = self._way(stage + 1, edge.end, used + 1)
                if onward is not None:
                    heappush(ahead, (edge.adds + onward[0], next(self._numbers), edge, used + 1))
            if not ahead:
                return None
            way = heappop(ahead)
            if not last and not way[3]:
                self._way(stage + 1, way[2].end, 0)
            found.append(way)
        return found[which] if which < len(found) else None

    def _edges(self, stage: int, start: int) -> list[_Way]:
        """A way for each edge, with the best that follows."""
        last = stage + 1 == len(self._graph.edges)
        rest = {} if last else self._sums[stage + 1]
        ways = [
            (edge.adds + (0 if last else rest[edge.end]), next(self._numbers), edge, 0)
            for edge in self._graph.edges[stage][start]
            if edge.load <= self._bound and (last or edge.end in rest)
        ]
        heapify(ways)
        return ways
