"""The value of a cut where a rank holds several stages, which share its time and its memory.

    rank 0   stage 0 ──┐     ┌── stage 3       seconds add up; so do bytes held; what is needed while one stage works
    rank 1       stage 1 ─ stage 2             is needed once

So what to recompute is one question for all stages of a rank: of each stage's options one is chosen, so that the sum
fits and the rank is as fast as can be. Options of several stages combine to options of the rank, and again only those
that no other one beats are kept, which makes the choice exact.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from headrace.costs import Bytes
from headrace.partition.objective import Objective
from headrace.partition.problem import Problem
from headrace.partition.result import Cut, as_cut
from headrace.partition.spans import Growth, Option, smallest_of, unbeaten

Spans = Sequence[tuple[int, int]]


@dataclass
class Appraiser:
    """Appraises cuts of one problem, and remembers what stages can do.

    Attributes:
        problem: as given by the user.
        objective: what makes a cut better.
        most: how many ways to recompute to remember per span.
        thinned: whether that was too few for some span.
    """

    problem: Problem
    objective: Objective
    most: int
    thinned: bool = False
    _growing: dict[tuple[int, int], tuple[Growth, Iterator[tuple[int, list[Option]]]]] = field(default_factory=dict)
    _grown: dict[tuple[int, int], dict[int, list[Option]]] = field(default_factory=dict)
    _smallest: dict[tuple[int, int, int], Bytes] = field(default_factory=dict)

    def options(self, stage: int, start: int, end: int) -> list[Option]:
        """How `stage` can run a span, the fastest way first; nothing if it does not fit, or must not be there."""
        at = (stage, start)
        if at not in self._grown:
            growth = Growth(self.problem, stage, start, fastest=False, most=self.most)
            self._growing[at], self._grown[at] = (growth, iter(growth)), {}
        grown = self._grown[at]
        if end not in grown and len(grown) < end - start:
            growth, more = self._growing[at]
            for reached, options in more:
                grown[reached] = options
                if reached == end:
                    break
            self.thinned = self.thinned or growth.thinned
        return grown.get(end, [])

    def cut(self, spans: Spans) -> Cut | None:
        """The cut, run as fast as memory allows; None if it does not fit."""
        chosen: list[Option] = [Option(0, 0, 0, 0)] * len(spans)
        for rank in range(self.problem.ranks):
            stages = self.problem.placement.stages_of(rank)
            choice = self._choose(rank, [self.options(stage, *spans[stage]) for stage in stages])
            if choice is None:
                return None
            for stage, option in zip(stages, choice, strict=True):
                chosen[stage] = option
        return as_cut(self.problem, self.objective, spans, chosen)

    def excess(self, spans: Spans) -> Bytes:
        """How far a cut that does not fit is from fitting; not exact, but less is nearer."""
        homes = self.problem.homes
        stage_of = {layer: stage for stage, span in enumerate(spans) for layer in range(*span)}
        misplaced = sum(stage_of[layer] not in allowed for layer, allowed in homes.items())
        excess: Bytes = 0
        for rank, limit in enumerate(self.problem.limits):
            if limit is not None:
                held = sum(self._bytes(stage, *spans[stage]) for stage in self.problem.placement.stages_of(rank))
                excess += max(0, held - limit)
        return excess + misplaced * (1 + sum(limit or 0 for limit in self.problem.limits))

    def _bytes(self, stage: int, start: int, end: int) -> Bytes:
        key = (stage, start, end)
        if key not in self._smallest:
            self._smallest[key] = smallest_of(self.problem, stage, start, end)
        return self._smallest[key]

    def _choose(self, rank: int, options: list[list[Option]]) -> list[Option] | None:
        """One option of each stage of `rank`, so that together they fit and take the least time."""
        limit = self.problem.limits[rank]
        if not all(options):
            return None
        fastest = [of_stage[0] for of_stage in options]
        if limit is None or sum(o.held for o in fastest) + max(o.working for o in fastest) <= limit:
            return fastest
        # `dropped` of a combined option is its number among `ways`, which says how it was made.
        ways: list[tuple[Option, ...]] = [()]
        combined = [Option(0, 0, 0, 0)]
        for of_stage in options:
            made: list[tuple[Option, ...]] = []
            grown: list[Option] = []
            for so_far in combined:
                for o in of_stage:
                    option = Option(
                        so_far.again + o.again, so_far.held + o.held, max(so_far.working, o.working), len(made)
                    )
                    if option.total <= limit:
                        made.append((*ways[so_far.dropped], o))
                        grown.append(option)
            ways, combined = made, unbeaten(grown)
        return list(ways[combined[0].dropped]) if combined else None
