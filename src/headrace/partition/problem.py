"""What a cut has to respect: which device runs which stage, how fast it is, what it can hold, what must stay together.

    layers     emb  b0  b1  b2  b3  head          keep_together=((0, 1),)    no boundary between emb and b0
              ╰─ 0 ──╯╰─ 1 ──╯╰─ 2 ╯╰ 3 ─╯        pin_rank={5: 0}            head lies on rank 0
    ranks        0       1      1     0           placement: a V, so rank 0 holds stages 0 and 3

One object says all of it, so that every search (and its refusal) answers the same question.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from itertools import accumulate
from math import inf
from typing import Any, Literal, get_args

from headrace.costs import Bytes, Number, Seconds, spread
from headrace.layer_costs import LayerCosts
from headrace.schedule.numbers import at_least
from headrace.schedule.placement import Placement

Allowed = Literal["never", "stage", "layer"]


@dataclass(frozen=True)
class Problem:
    """A chain of layers, the ranks that run it, and what a cut may do.

    Attributes:
        costs: of the layers, for one micro-batch.
        placement: which rank holds which stage; one lane.
        micro_batches: m.
        in_flight: of each stage, the most micro-batches that hold its activations at once (see `peaks`); one number
            for all, or one per stage.
        waiting: of each stage, how many of them at most have had their I and wait for their W while another I begins
            (see `waiting`); one number for all, or one per stage.
        memory: bytes that each rank can hold; None for no limit; one for all, or one per rank.
        slowness: what the layers' seconds are multiplied by on each rank: 2 for a device half as fast.
        latency: seconds of each of the S − 1 hops between neighbouring stages; within a rank they are free.
        bandwidth: bytes per second of a link; None if only `latency` counts.
        hidden: whether messages travel behind compute. If not, a stage's time includes what it sends.
        keep_together: groups of layers that must share a stage, such as those with tied weights; what lies between
            them comes along.
        pin_stage: layer → the stage that must hold it.
        pin_rank: layer → the rank that must hold it.
        recompute: what a stage may drop to fit: "never" anything, the whole "stage", or any "layer" of it.
        with_ranks: the same problem for another number of ranks, so that a refusal can say how many would do.

    Numbers are used as they are: ints and Fractions stay exact.

    Raises:
        TypeError, ValueError: an attribute is out of its range.
    """

    costs: LayerCosts
    placement: Placement
    micro_batches: int
    in_flight: int | Sequence[int] = 1
    waiting: int | Sequence[int] = 0
    memory: Bytes | Sequence[Bytes | None] | None = None
    slowness: Number | Sequence[Number] = 1
    latency: Seconds | Sequence[Seconds] = 0
    bandwidth: Number | None = None
    hidden: bool = True
    keep_together: Iterable[Collection[int]] = ()
    pin_stage: Mapping[int, int] = field(default_factory=dict)
    pin_rank: Mapping[int, int] = field(default_factory=dict)
    recompute: Allowed = "never"
    with_ranks: "Callable[[int], Problem] | None" = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        at_least(1, micro_batches=self.micro_batches)
        if self.placement.other_lanes:
            raise ValueError("placement has several lanes: cut for one of them, such as Placement(placement.rank_of)")
        if self.recompute not in get_args(Allowed):
            raise ValueError(f"recompute={self.recompute!r} is unknown: choose one of {', '.join(get_args(Allowed))}")
        self._per("in_flight", self.stages, "stages", least=1)
        self._per("waiting", self.stages, "stages")
        if any(late > peak for late, peak in zip(self.late, self.peaks, strict=True)):
            raise ValueError(f"waiting={self.waiting!r} is more than in_flight={self.in_flight!r}")
        self._per("memory", self.ranks, "ranks")
        self._per("slowness", self.ranks, "ranks")
        self._per("latency", self.stages - 1, "hops")
        if min(self.slowness_of) <= 0:
            raise ValueError(f"slowness={self.slowness!r} must be more than 0 on every rank")
        if self.bandwidth is not None and not 0 < self.bandwidth < inf:
            raise ValueError(f"bandwidth={self.bandwidth!r} must be finite and more than 0")
        object.__setattr__(self, "keep_together", tuple(tuple(sorted(group)) for group in self.keep_together))
        for group in self.groups:
            self._known("keep_together", group, self.costs.layers, "layer")
        for name, pins, count in (("pin_stage", self.pin_stage, self.stages), ("pin_rank", self.pin_rank, self.ranks)):
            self._known(name, pins.keys(), self.costs.layers, "layer")
            self._known(name, pins.values(), count, name.removeprefix("pin_"))

    @property
    def stages(self) -> int:
        """How many there are (S)."""
        return self.placement.stages

    @property
    def ranks(self) -> int:
        """How many there are (p)."""
        return self.placement.ranks

    @property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        """The layers of each of `keep_together`, in order."""
        return tuple(map(tuple, self.keep_together))

    @property
    def one_stage_a_rank(self) -> bool:
        """Whether no rank holds two stages, so that stages share neither time nor memory."""
        return self.stages == self.ranks

    @cached_property
    def peaks(self) -> list[int]:
        """Micro-batches in flight, per stage."""
        return [int(count) for count in spread("in_flight", self.in_flight, self.stages, "stages")]

    @cached_property
    def late(self) -> list[int]:
        """Micro-batches that wait for their W, per stage."""
        return [int(count) for count in spread("waiting", self.waiting, self.stages, "stages")]

    @cached_property
    def limits(self) -> list[Bytes | None]:
        """Bytes that each rank can hold; None for no limit."""
        memory = self.memory
        return list(memory) if isinstance(memory, Sequence) else [memory] * self.ranks

    @cached_property
    def slowness_of(self) -> list[Number]:
        """Per rank."""
        return spread("slowness", self.slowness, self.ranks, "ranks")

    @cached_property
    def seconds_before(self) -> list[Seconds]:
        """F + I + W of all layers before each, and of all at the end."""
        return [0, *accumulate(self.costs.seconds)]

    @cached_property
    def boundaries(self) -> list[int]:
        """Where a stage may end: behind how many layers, 0 and all included."""
        inside = {end for group in self.groups if group for end in range(group[0] + 1, group[-1] + 1)}
        return [end for end in range(self.costs.layers + 1) if end not in inside]

    @cached_property
    def is_boundary(self) -> list[bool]:
        """Whether a stage may end behind so many layers."""
        allowed = set(self.boundaries)
        return [end in allowed for end in range(self.costs.layers + 1)]

    @cached_property
    def homes(self) -> dict[int, set[int]]:
        """The stages that may hold a layer, where pins leave not all."""
        homes: dict[int, set[int]] = {}
        for layer, stage in self.pin_stage.items():
            homes[layer] = {stage}
        for layer, rank in self.pin_rank.items():
            homes[layer] = homes.get(layer, set(range(self.stages))) & set(self.placement.stages_of(rank))
        return homes

    @cached_property
    def _hops(self) -> list[Seconds]:
        return spread("latency", self.latency, self.stages - 1, "hops")

    def hop(self, stage: int, end: int) -> Seconds:
        """Seconds of one message from `stage`, which ends behind `end` layers, to the next stage, or back."""
        if stage + 1 == self.stages or self.placement.hop_is_local(stage):
            return 0
        size = self.costs.output[end - 1]
        return self._hops[stage] + (0 if self.bandwidth is None or not size else ratio(size, self.bandwidth))

    def compute(self, stage: int, start: int, end: int, again: Seconds = 0) -> Seconds:
        """Seconds of F and B of the layers `start` … `end` − 1 on the rank of `stage`, with `again` of recompute."""
        seconds = self.seconds_before[end] - self.seconds_before[start] + again
        return seconds * self.slowness_of[self.placement.rank_of[stage]]

    def sends(self, stage: int, start: int, end: int) -> Seconds:
        """Seconds of what a stage sends per micro-batch: its output on, and its input's gradient back."""
        return self.hop(stage, end) + (self.hop(stage - 1, start) if stage else 0)

    def _per(self, name: str, count: int, of: str, least: int = 0) -> None:
        """Check an attribute that is one number, or one for each of `count` things."""
        value = getattr(self, name)
        if isinstance(value, Sequence) and not isinstance(value, str):
            if len(value) != count:
                raise ValueError(f"{name} has {len(value)} numbers, but there are {count} {of}")
            object.__setattr__(self, name, tuple(value))
        else:
            value = (value,)
        for number in value:
            if number is None and name == "memory":
                continue
            if not isinstance(number, (int, float, Fraction)):
                raise TypeError(f"{name}={getattr(self, name)!r} must be a number, or one for each of {count} {of}")
            if not least <= number < inf:
                raise ValueError(f"{name} has {number!r}, which must be finite and at least {least}")

    def _known(self, name: str, numbers: Iterable[int], count: int, what: str) -> None:
        for number in numbers:
            if not isinstance(number, int) or not 0 <= number < count:
                raise ValueError(f"{name} names {what} {number!r}, but there are only {what}s 0…{count - 1}")


def ratio(a: Any, b: Any) -> Any:
    """a ÷ b; exact, where both are."""
    exact = isinstance(a, (int, Fraction)) and isinstance(b, (int, Fraction))
    return Fraction(a, b) if exact else a / b
