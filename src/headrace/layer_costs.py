"""What each layer of a model costs for one micro-batch: measured, or computed from shapes and hardware.

A cut adds layers up to stages, so everything that a planner asks of a model is in here:

    layers   embedding  block0  block1  block2  head         cut (2, 3)
             ╰── stage 0 ────╯  ╰────── stage 1 ─────╯  ──▶  Costs of 2 stages, with their Memory
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from math import inf
from typing import Any, TypeVar

from headrace.costs import Bytes, Costs, Memory, Seconds
from headrace.schedule.numbers import at_least
from headrace.spelling import meant

_Number = TypeVar("_Number", int, float)


@dataclass(frozen=True)
class LayerCosts:
    """Seconds and bytes of the layers of a model, in order, for one micro-batch of `rows` rows.

    Attributes:
        names: of the layers, as the unsplit model's parameter names begin.
        rows: of the micro-batch that this is about.
        forward: seconds of F; the last layer's with the loss.
        backward_input: seconds of I.
        backward_weight: seconds of W.
        parameters: bytes of the weights.
        trained: bytes held besides while training: gradients and optimizer state.
        activations: bytes that F keeps for the backward, in a stage where what layers share is there once.
        for_weight: bytes that are needed after I, until W: those of them that W reads, and gradients.
        output: bytes of what the layer hands on to the next one.
        transient: bytes that the layer needs only while it runs, beyond those above.
        backward: seconds of a whole backward; I + W where it is left empty.
        shared: bytes that a layer receives and that are kept both before it, where they count, and from it on: in a
            stage that begins with it they are there once more. Nothing where it is left empty.
        spread: seconds between the first and the third quartile of F + B, measured several times. Nothing where it is
            left empty, as of what was computed.

    Raises:
        ValueError: there is no layer, attributes have different lengths, or a number is negative.
    """

    names: tuple[str, ...]
    rows: int
    forward: tuple[Seconds, ...]
    backward_input: tuple[Seconds, ...]
    backward_weight: tuple[Seconds, ...]
    parameters: tuple[Bytes, ...]
    trained: tuple[Bytes, ...]
    activations: tuple[Bytes, ...]
    for_weight: tuple[Bytes, ...]
    output: tuple[Bytes, ...]
    transient: tuple[Bytes, ...]
    backward: tuple[Seconds, ...] = ()
    shared: tuple[Bytes, ...] = ()
    spread: tuple[Seconds, ...] = ()

    def __post_init__(self) -> None:
        if not self.backward:
            halves = zip(self.backward_input, self.backward_weight, strict=False)
            object.__setattr__(self, "backward", tuple(i + w for i, w in halves))
        for name in ("shared", "spread"):
            if not getattr(self, name):
                object.__setattr__(self, name, (0,) * len(self.names))
        if not self.names:
            raise ValueError("there is no layer")
        if self.rows < 1:
            raise ValueError(f"rows={self.rows} must be at least 1")
        for item in fields(self):
            if item.name in ("names", "rows"):
                continue
            numbers = tuple(getattr(self, item.name))
            if len(numbers) != len(self.names):
                raise ValueError(f"{item.name} has {len(numbers)} numbers for {len(self.names)} layers")
            wrong = next((number for number in numbers if not 0 <= number < inf), None)
            if wrong is not None:
                raise ValueError(f"{item.name} has {wrong!r}, which must be finite and not negative")
            object.__setattr__(self, item.name, numbers)

    def as_data(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {item.name: getattr(self, item.name) for item in fields(self)}

    @property
    def layers(self) -> int:
        """How many there are."""
        return len(self.names)

    @property
    def seconds(self) -> tuple[Seconds, ...]:
        """F + B of each layer, its backward whole or in halves, whichever is shorter."""
        each = zip(self.forward, self.backward, self.backward_input, self.backward_weight, strict=True)
        return tuple(f + min(b, i + w) for f, b, i, w in each)

    def kept(self, layer: int, start: int) -> Bytes:
        """Bytes that F of a layer keeps in a stage that begins with layer `start`."""
        return self.activations[layer] + (self.shared[layer] if layer == start and start else 0)

    def stage_costs(self, cut: Sequence[int], again: Collection[int] = ()) -> Costs:
        """The costs of the stages of a cut; latency, bandwidth, update and reduction are left at nothing.

        Args:
            cut: how many layers each stage has.
            again: the numbers of the layers that are recomputed one by one: each keeps its input rather than its
                activations, and its forward runs once more in the backward. (A stage that is recomputed as a whole
                needs an R in the schedule.)

        Raises:
            ValueError: the cut has an empty stage, or not as many layers as there are.
        """
        whole(cut, self.layers)
        ends = [sum(cut[: stage + 1]) for stage in range(len(cut))]
        boundary = [self.output[end - 1] for end in ends[:-1]]
        held = [p + t for p, t in zip(stage_sums(self.parameters, cut), stage_sums(self.trained, cut), strict=True)]
        layers = self.recomputing(again)
        shared = [0, *(layers.shared[end] for end in ends[:-1])]
        return Costs(
            forward=stage_sums(layers.forward, cut),
            backward_input=stage_sums(layers.backward_input, cut),
            backward_weight=stage_sums(layers.backward_weight, cut),
            backward=stage_sums(layers.backward, cut),
            message=boundary,
            memory=Memory(
                activations=[a + s for a, s in zip(stage_sums(layers.activations, cut), shared, strict=True)],
                for_weight=stage_sums(layers.for_weight, cut),
                stage_input=[0, *boundary],
                parameters=held,
                shared=shared,
                working=[self._working(end - count, end, layers) for count, end in zip(cut, ends, strict=True)],
            ),
        )

    def _working(self, start: int, end: int, kept: "LayerCosts") -> Bytes:
        """What a stage needs while one of its layers works, which keep their activations as `kept` has them."""
        back = [max(0, self.kept(i, start) - kept.kept(i, start)) for i in range(start, end)]
        return max(needs + more for needs, more in zip(self.handling[start:end], back, strict=True))

    @cached_property
    def handling(self) -> tuple[Bytes, ...]:
        """Bytes besides the activations while a layer runs: what it needs only then, and what it hands on."""
        return tuple(needs + hands for needs, hands in zip(self.transient, self.output, strict=True))

    def recomputing(self, again: Collection[int]) -> "LayerCosts":
        """The costs where the layers of these numbers are recomputed one by one.

        Of each its input is kept rather than its activations, and its forward runs once more in the backward.
        """
        if not again:
            return self
        twice = [seconds if layer in again else 0 for layer, seconds in enumerate(self.forward)]
        inputs = (0, *self.output)
        # What a layer shares with one before it that drops it counts for the layer itself from now on.
        alone = {layer for layer in range(self.layers) if layer - 1 in again}
        kept = [
            inputs[layer] if layer in again else size + (self.shared[layer] if layer in alone else 0)
            for layer, size in enumerate(self.activations)
        ]
        return replace(
            self,
            backward=tuple(b + f for b, f in zip(self.backward, twice, strict=True)),
            backward_input=tuple(i + f for i, f in zip(self.backward_input, twice, strict=True)),
            activations=tuple(kept),
            shared=tuple(0 if layer in again or layer in alone else size for layer, size in enumerate(self.shared)),
        )

    def numbers(self, names: Collection[str]) -> tuple[int, ...]:
        """The numbers of the layers called `names`.

        Raises:
            ValueError: there is no such layer.
        """
        unknown = [name for name in names if name not in self.names]
        if unknown:
            raise ValueError(f"{unknown[0]!r} is no layer: {meant(unknown[0], self.names)}")
        return tuple(number for number, name in enumerate(self.names) if name in names)

    def of_segment(self, segments: int) -> "LayerCosts":
        """The costs of one of `segments` equal pieces of the sequences, though attention makes later ones dearer."""
        if segments == 1:
            return self
        shares: dict[str, Any] = {name: tuple(x / segments for x in getattr(self, name)) for name in _SIZED}
        return replace(self, **shares)


def whole(cut: Sequence[int], layers: int) -> None:
    """Refuse a cut that leaves a stage empty or a layer out.

    Raises:
        ValueError: it does.
    """
    if any(count < 1 for count in cut) or sum(cut) != layers:
        raise ValueError(
            f"cut={tuple(cut)} must give every stage a layer or more, {layers} layers in all: "
            "partition(seconds_of_each_layer, stages) finds one"
        )


def stage_sums(values: Sequence[_Number], cut: Sequence[int]) -> list[_Number]:
    """Numbers of layers added up to numbers of stages.

    Args:
        values: one per layer.
        cut: how many layers each stage has, which are as many as there are values.
    """
    rest = iter(values)
    return [sum(next(rest) for _ in range(count)) for count in cut]


def at_rows(measured: Sequence[LayerCosts], rows: int) -> LayerCosts:
    """The costs of a micro-batch of `rows` rows, from those of some sizes of the same layers.

    Costs are not proportional to rows: a part of each second is spent whatever the size. So between two sizes they
    are on the line through both; beyond them they go on along the line through the last two, and with one size only
    they are proportional.

    Raises:
        ValueError: nothing was measured, or not the same layers.
    """
    if not measured:
        raise ValueError("measured is empty: profile at least one size")
    if len({costs.names for costs in measured}) > 1:
        raise ValueError("measured has costs of different layers")
    at_least(1, rows=rows)
    sizes = sorted({costs.rows: costs for costs in measured}.values(), key=lambda costs: costs.rows)
    if len(sizes) == 1:
        return _between(sizes[0], sizes[0], rows / sizes[0].rows, rows, proportional=True)
    above = next((i for i, costs in enumerate(sizes) if costs.rows >= rows and i > 0), len(sizes) - 1)
    low, high = sizes[above - 1], sizes[above]
    return _between(low, high, (rows - low.rows) / (high.rows - low.rows), rows)


_SIZED = (
    *("forward", "backward", "backward_input", "backward_weight", "spread"),
    *("activations", "for_weight", "output", "transient", "shared"),
)
"""What grows with the rows."""


def _between(low: LayerCosts, high: LayerCosts, share: float, rows: int, *, proportional: bool = False) -> LayerCosts:
    def mixed(name: str) -> tuple[float, ...]:
        pairs = zip(getattr(low, name), getattr(high, name), strict=True)
        return tuple(max(0.0, a * share if proportional else a + (b - a) * share) for a, b in pairs)

    sized: dict[str, Any] = {name: mixed(name) for name in _SIZED}
    return replace(low, rows=rows, **sized)
