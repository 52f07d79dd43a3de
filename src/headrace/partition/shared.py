"""The value of a cut where a rank holds several stages, which share its time and its memory.

    rank 0   stage 0 ──┐     ┌── stage 3       seconds add up; so do bytes held; what is needed while one stage works
    rank 1       stage 1 ─ stage 2             is needed once

So what to recompute is one question for all stages of a rank: of each stage's options one is chosen, so that the sum
fits and the rank is as fast as can be. Options of several stages combine to options of the rank, and again only those
that no other one beats are kept, which makes the choice exact.

Ranks share nothing with each other, so what was found for the spans of one is remembered: a cut that differs from
another at one boundary costs a look at two ranks.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, NamedTuple

from headrace.costs import Bytes, Number, Seconds
from headrace.partition.objective import Objective, Value
from headrace.partition.problem import Problem
from headrace.partition.result import Cut, as_cut
from headrace.partition.spans import Growth, Option, smallest_of, unbeaten

Span = tuple[int, int]
Spans = Sequence[Span]


class Share(NamedTuple):
    """What one rank adds to a cut.

    Attributes:
        loads: of its stages; their sum is its load in the objective.
        chain: to the chain of the objective.
        options: how its stages run.
    """

    loads: list[Number]
    chain: Number
    options: list[Option]


@dataclass
class Appraiser:
    """Appraises cuts of one problem, and remembers what stages and ranks can do.

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
    _shares: dict[tuple[int, tuple[Span, ...]], Share | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        placement = self.problem.placement
        self._stages_of = [placement.stages_of(rank) for rank in range(self.problem.ranks)]
        loop = all(rank == stage % placement.ranks for stage, rank in enumerate(placement.rank_of))
        self._strictness: Any = Fraction(1, 2 if loop else 4)

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

    def shares(self, spans: Spans) -> list[Share] | None:
        """What each rank adds to the cut, run as fast as memory allows; None if it does not fit."""
        found: list[Share] = []
        for rank, stages in enumerate(self._stages_of):
            share = self._share(rank, tuple([spans[stage] for stage in stages]))
            if share is None:
                return None
            found.append(share)
        return found

    def value(self, shares: Sequence[Share]) -> Value:
        """What the objective makes of a cut with these."""
        return self.objective.value_of([sum(share.loads) for share in shares], sum(share.chain for share in shares))

    def unsteady(self, shares: Sequence[Share]) -> Seconds:
        """Seconds that a step takes beyond its value as stages of one turn are not alike; 0 if that does not count.

        Where rank after rank runs its n-th stage for a group of micro-batches, each turn n goes at the pace of its
        slowest stage, and no rank catches up in the next turn what it has lost in this one. In a V, where a rank's
        stages alternate, it mostly does.
        """
        objective = self.objective
        if objective.name != "step":
            return 0
        pace = sum(max(turn) for turn in zip(*(share.loads for share in shares), strict=False))
        slowest = max(sum(share.loads) for share in shares)
        more: Seconds = self.problem.micro_batches * (pace - slowest) * self._strictness
        return more

    def cut(self, spans: Spans) -> Cut | None:
        """The cut, run as fast as memory allows; None if it does not fit."""
        shares = self.shares(spans)
        if shares is None:
            return None
        chosen: list[Option] = [Option(0, 0, 0, 0)] * len(spans)
        for stages, share in zip(self._stages_of, shares, strict=True):
            for stage, option in zip(stages, share.options, strict=True):
                chosen[stage] = option
        return as_cut(self.problem, self.objective, spans, chosen)

    def excess(self, spans: Spans) -> Bytes:
        """How far a cut that does not fit is from fitting; not exact, but less is nearer."""
        homes = self.problem.homes
        misplaced = 0
        if homes:
            stage_of = {layer: stage for stage, span in enumerate(spans) for layer in range(*span)}
            misplaced = sum(stage_of[layer] not in allowed for layer, allowed in homes.items())
        excess: Bytes = 0
        for stages, limit in zip(self._stages_of, self.problem.limits, strict=True):
            if limit is not None:
                excess += max(0, sum(self._bytes(stage, *spans[stage]) for stage in stages) - limit)
        return excess + misplaced * (1 + sum(limit or 0 for limit in self.problem.limits))

    def _bytes(self, stage: int, start: int, end: int) -> Bytes:
        key = (stage, start, end)
        if key not in self._smallest:
            self._smallest[key] = smallest_of(self.problem, stage, start, end)
        return self._smallest[key]

    def _share(self, rank: int, spans: tuple[Span, ...]) -> Share | None:
        key = (rank, spans)
        if key not in self._shares:
            placed = list(zip(self._stages_of[rank], spans, strict=True))
            options = self._choose(rank, [self.options(stage, *span) for stage, span in placed])
            self._shares[key] = None if options is None else self._made(placed, options)
        return self._shares[key]

    def _made(self, placed: list[tuple[int, Span]], options: list[Option]) -> Share:
        ways = [(stage, *span, option.again) for (stage, span), option in zip(placed, options, strict=True)]
        loads = [self.objective.load(*way) for way in ways]
        return Share(loads, sum(self.objective.chain(*way) for way in ways), options)

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
