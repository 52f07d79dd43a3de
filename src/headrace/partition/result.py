"""What a search for cuts returns: the cuts, best first, and how many of them are proven."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Literal

from headrace.costs import Bytes, Number, Seconds
from headrace.partition.objective import Objective
from headrace.partition.problem import Problem
from headrace.partition.spans import WHOLE, Option

Recomputes = Literal["nothing", "everything"] | tuple[int, ...]
"""What a stage recomputes: nothing, all of it from its input, or these layers, each from its own input."""

Method = Literal["exact", "first exact", "thinned", "local search"]


@dataclass(frozen=True)
class Cut:
    """One way to cut the layers, and what the model predicts of it.

    Attributes:
        layers: how many each stage has.
        recomputes: what each stage recomputes.
        loads: per rank, what the objective counts: seconds per micro-batch, bytes of parameters, or layers.
        chain: seconds of one micro-batch through all stages and back, with all hops.
        bytes: per rank, the most that it holds.
        value: what the objective makes of it: the first number counts, the second one breaks ties.
    """

    layers: tuple[int, ...]
    recomputes: tuple[Recomputes, ...]
    loads: tuple[Number, ...]
    chain: Seconds
    bytes: tuple[Bytes, ...]
    value: tuple[Number, Number]

    @property
    def slowest(self) -> Number:
        """The largest of `loads`."""
        return max(self.loads)


@dataclass(frozen=True)
class Found:
    """Cuts, best first.

    Attributes:
        cuts: all different.
        proven: so many of the first are proven to be the best ones, in this order (cuts of equal value in any order).
        method: how they were found: all "exact"; the "first exact" and the others near it; "thinned", which is exact
            but for spans with too many ways to recompute to look at all of them; or by "local search".
    """

    cuts: tuple[Cut, ...]
    proven: int
    method: Method

    @property
    def best(self) -> Cut:
        """The first one."""
        return self.cuts[0]


def ends_of(layers: Sequence[int]) -> list[tuple[int, int]]:
    """The span (start, end) of each stage."""
    return list(pairwise(accumulate(layers, initial=0)))


def as_cut(problem: Problem, objective: Objective, spans: Sequence[tuple[int, int]], options: Sequence[Option]) -> Cut:
    """The cut of the stages `spans`, run as `options` say."""
    loads: list[Number] = [0] * problem.ranks
    held: list[Bytes] = [0] * problem.ranks
    working: list[Bytes] = [0] * problem.ranks
    chain: Seconds = 0
    for stage, ((start, end), option) in enumerate(zip(spans, options, strict=True)):
        rank = problem.placement.rank_of[stage]
        loads[rank] += objective.load(stage, start, end, option.again)
        chain += objective.chain(stage, start, end, option.again)
        held[rank] += option.held
        working[rank] = max(working[rank], option.working)
    return Cut(
        layers=tuple(end - start for start, end in spans),
        recomputes=tuple(map(_recomputes, options)),
        loads=tuple(loads),
        chain=chain,
        bytes=tuple(h + w for h, w in zip(held, working, strict=True)),
        value=objective.value_of(loads, chain),
    )


def _recomputes(option: Option) -> Recomputes:
    if option.dropped == WHOLE:
        return "everything"
    if not option.dropped:
        return "nothing"
    return tuple(layer for layer in range(option.dropped.bit_length()) if option.dropped >> layer & 1)
