"""How much memory a rank may use, in one of two units: micro-batches in flight, or bytes.

A bare number would not say which of the two is meant, so a limit is written with its unit, `InFlight(4)` or
`Bytes(80e9)`. Either way it is a capacity per rank and, per stage, what one micro-batch takes before and after its I:

                     F begins          I ends        W ends
                        ├──── before ────┤
                                         ├── after ──┤

    InFlight(k)    before = after = 1,  capacity = k
    Bytes(b)       before = activations, after = for_weight,  capacity = b − parameters of the rank's stages
                   and what the hungriest of them needs to work
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import gcd, inf, lcm
from typing import TypeVar

from headrace.costs import Costs
from headrace.schedule.numbers import at_least
from headrace.schedule.placement import Placement

Number = TypeVar("Number", int, float)


@dataclass(frozen=True)
class InFlight:
    """At most so many (stage, micro-batch) pairs in flight on a rank: F begun, last backward part not ended.

    Attributes:
        most: one number for all ranks, or one number per rank.
    """

    most: int | Sequence[int]


@dataclass(frozen=True)
class Bytes:
    """At most so many bytes on a rank, as `costs.memory` counts them, parameters included.

    Attributes:
        most: one number for all ranks, or one number per rank.
    """

    most: float | Sequence[float]


Limit = InFlight | Bytes


@dataclass(frozen=True)
class Room:
    """A limit in whole units.

    Attributes:
        capacity: per rank.
        before: per stage, what a micro-batch takes from the begin of its F to the end of its I.
        after: per stage, what it takes from there to the end of its W; never more than `before`.
    """

    capacity: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]


def exact(number: float) -> Fraction:
    """`number` as a fraction; a float is read as the shortest decimal that prints as it: 0.1 is one tenth."""
    return Fraction(str(number)) if isinstance(number, float) else Fraction(number)


def room(limit: Limit | None, costs: Costs, placement: Placement, micro_batches: int) -> Room:
    """`limit` in whole units; None leaves room for every micro-batch at once.

    Raises:
        TypeError: `limit` has no unit, or a number is not one.
        ValueError: some rank could not hold even one micro-batch; the message says what it needs.
    """
    ones = (1,) * placement.stages
    held = [len(placement.stages_of(rank)) for rank in range(placement.ranks)]
    if limit is None:
        return Room(tuple(micro_batches * v for v in held), ones, ones)
    if isinstance(limit, InFlight):
        per_rank = _per_rank(limit.most, placement, "InFlight")
        for most in per_rank:
            at_least(0, **{"memory=InFlight": most})
        for rank, (most, v) in enumerate(zip(per_rank, held, strict=True)):
            if most < v:
                raise ValueError(
                    f"memory=InFlight({most}) is too little for rank {rank}: a micro-batch is in flight on all stages "
                    f"of a rank at once, so the least limit is {v}"
                )
        return Room(tuple(min(k, micro_batches * v) for k, v in zip(per_rank, held, strict=True)), ones, ones)
    if isinstance(limit, Bytes):
        return _in_bytes(_per_rank(limit.most, placement, "Bytes"), costs, placement, micro_batches)
    raise TypeError(f"memory={limit!r} has no unit: write memory=InFlight(4) or memory=Bytes(80e9)")


def _in_bytes(limits: Sequence[float], costs: Costs, placement: Placement, micro_batches: int) -> Room:
    stages = placement.stages
    for limit in limits:
        if not isinstance(limit, (int, float, Fraction)):
            raise TypeError(f"memory=Bytes({limit!r}) must be a number of bytes")
        if not 0 <= limit < inf:
            raise ValueError(f"memory=Bytes({limit!r}) must be finite and 0 or more")
    before = [exact(n) for n in costs.memory.per_stage("activations", stages)]
    after = [exact(n) for n in costs.memory.per_stage("for_weight", stages)]
    parameters = [exact(n) for n in costs.memory.per_stage("parameters", stages)]
    working = [exact(n) for n in costs.memory.per_stage("working", stages)]
    for stage, (whole, rest) in enumerate(zip(before, after, strict=True)):
        if rest > whole:
            raise ValueError(
                f"for_weight of stage {stage} is {float(rest):g} bytes, more than its activations of {float(whole):g}: "
                "it is what is left of them after I, so give the activations at least as much"
            )
    capacity: list[Fraction] = []
    for rank, limit in enumerate(limits):
        mine = placement.stages_of(rank)
        always = sum((parameters[s] for s in mine), Fraction(0))
        one = sum((before[s] for s in mine), Fraction(0))
        meanwhile = max(working[s] for s in mine)
        if exact(limit) < always + one + meanwhile:
            raise ValueError(
                f"memory=Bytes({limit:g}) is too little for rank {rank}: its parameters take {float(always):g} and one "
                f"micro-batch {float(one + meanwhile):g}, so the least limit is "
                f"{float(always + one + meanwhile):.17g} bytes"
            )
        # More than all micro-batches at once is never used; without the surplus the numbers stay small.
        capacity.append(min(exact(limit) - always - meanwhile, one * micro_batches))
    unit = grain([*capacity, *before, *after])
    return Room(tuple(int(c / unit) for c in capacity), _counts(before, unit), _counts(after, unit))


def _counts(numbers: Sequence[Fraction], unit: Fraction) -> tuple[int, ...]:
    return tuple(int(number / unit) for number in numbers)


def grain(numbers: Sequence[Fraction]) -> Fraction:
    """The largest unit of which all `numbers` are whole multiples."""
    bottom = lcm(*(number.denominator for number in numbers))
    top = gcd(*(int(number * bottom) for number in numbers))
    return Fraction(top or 1, bottom)


def _per_rank(most: Number | Sequence[Number], placement: Placement, unit: str) -> list[Number]:
    if not isinstance(most, Sequence) or isinstance(most, str):
        return [most] * placement.ranks
    if len(most) != placement.ranks:
        raise ValueError(f"memory={unit}({most!r}) has {len(most)} limits, but there are {placement.ranks} ranks")
    return list(most)
