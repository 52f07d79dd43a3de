"""What a stage may drop so that it fits, as its span of layers grows.

    nothing      n × (a0 + a1 + a2)                   n micro-batches in flight, a: activations of a layer
    layer 1      n × (a0 + in1 + a2) + (a1 − in1)     in: what the layer reads, which is kept instead; while its
    the stage    n × in0 + (a0 + a1 + a2 − in0)       backward runs, what was dropped is there once more

Where a backward is split, operands of weight gradients are held from I to W, though everything was dropped: of w of the
n micro-batches, w × for_weight instead of what else is held of these, if that is less.

Dropping costs the forward of what was dropped once more. Each way is an `Option`, and only those are kept that no other
beats in seconds, in bytes held all the time and in bytes needed while it works: with a start held fixed, growing a span
makes every option longer and larger, so an option that does not fit will never fit again, and one that is beaten stays
beaten. That makes the growth below exact, and it ends by itself where memory does.

The number of unbeaten sets of layers is small where layers are alike, and may double with every layer where they are
all different. Beyond `most` of them a growth keeps a spread of them and says so in `thinned`.
"""

from bisect import insort
from collections.abc import Iterator
from functools import partial
from itertools import accumulate
from math import inf
from typing import Final, NamedTuple

from headrace.costs import Bytes, Seconds
from headrace.partition.problem import Problem

WHOLE: Final = -1


class Option(NamedTuple):
    """One way to run a span of layers as a stage.

    Attributes:
        again: seconds of forwards that run twice, on a rank of slowness 1.
        held: bytes, all the time.
        working: bytes besides, while one micro-batch is worked on.
        dropped: the layers whose activations are dropped, as bits of a number; WHOLE for the stage as one.
    """

    again: Seconds
    held: Bytes
    working: Bytes
    dropped: int

    @property
    def total(self) -> Bytes:
        """Bytes at the worst moment."""
        return self.held + self.working


class Growth:
    """The options of a stage's spans that begin at one layer: iterating gives (end, options) for end after end.

    It stops before the first layer that pins keep out, or with which nothing fits into the rank's memory.

    Args:
        problem: as given by the user.
        stage: which one.
        start: its first layer.
        fastest: only the fastest option is of interest, as it is if the stage has its rank's memory for itself.
        most: how many options to keep.
        bound: seconds of F and B, with recompute, beyond which an option is of no interest.
    """

    def __init__(
        self, problem: Problem, stage: int, start: int, *, fastest: bool, most: int, bound: Seconds = inf
    ) -> None:
        self.thinned = False
        self._problem, self._stage, self._start = problem, stage, start
        self._fastest, self._most, self._bound = fastest, most, bound
        self._peak, self._late = problem.peaks[stage], problem.late[stage]
        self._limit = problem.limits[problem.placement.rank_of[stage]]

    def __iter__(self) -> Iterator[tuple[int, list[Option]]]:
        problem, costs, limit = self._problem, self._problem.costs, self._limit
        always: Bytes = 0
        kept: Bytes = 0
        held: Bytes = 0
        operands: Bytes = 0
        handling: Bytes = 0
        forward: Seconds = 0
        entry: Bytes = costs.output[self._start - 1] if self._start else 0
        # The sets of layers to drop; grown only from where they are first needed, by `_front`.
        front: list[Option] | None = None
        for layer in range(self._start, costs.layers):
            if layer in problem.homes and self._stage not in problem.homes[layer]:
                return
            always += costs.parameters[layer] + costs.trained[layer]
            activations = costs.kept(layer, self._start)
            kept += activations
            held += self._held(activations, costs.for_weight[layer])
            operands += costs.for_weight[layer]
            handling = max(handling, costs.handling[layer])
            forward += costs.forward[layer]
            nothing = Option(0, always + held, handling, 0)
            options = [nothing]
            if limit is not None and not (self._fastest and nothing.total <= limit):
                if problem.recompute == "layer":
                    front = self._front(front, layer)
                    options = list(front)
                if problem.recompute != "never":
                    dropped = always + self._held(entry, operands)
                    options.append(Option(forward, dropped, max(0, kept - entry) + handling, WHOLE))
                options = unbeaten([option for option in options if option.total <= limit])
                if not options:
                    return
            yield layer + 1, options

    def _held(self, kept: Bytes, for_weight: Bytes) -> Bytes:
        """What all micro-batches in flight hold, if each keeps so much until its I, and for_weight until its W."""
        return held(self._peak, self._late, kept, for_weight)

    def _front(self, front: list[Option] | None, layer: int) -> list[Option]:
        """The unbeaten sets of layers up to `layer`, out of those up to the layer before it."""
        if front is None:
            front = [Option(0, 0, 0, 0)]
            for before in range(self._start, layer):
                front = self._with_layer(front, before)
        return self._with_layer(front, layer)

    def _with_layer(self, front: list[Option], layer: int) -> list[Option]:
        costs, limit = self._problem.costs, self._limit
        always = costs.parameters[layer] + costs.trained[layer]
        activations, handling = costs.kept(layer, self._start), costs.handling[layer]
        entry = costs.output[layer - 1] if layer else 0
        operands = costs.for_weight[layer]
        keep, drop = always + self._held(activations, operands), always + self._held(entry, operands)
        grown = [Option(o.again, o.held + keep, max(o.working, handling), o.dropped) for o in front]
        if activations > entry:
            again, working = costs.forward[layer], activations - entry + handling
            bit = 1 << layer
            grown += [Option(o.again + again, o.held + drop, max(o.working, working), o.dropped | bit) for o in front]
        compute = partial(self._problem.compute, self._stage, self._start, layer + 1)
        grown = unbeaten(
            [o for o in grown if (limit is None or o.total <= limit) and compute(o.again) <= self._bound]
            if self._bound != inf
            else [o for o in grown if limit is None or o.total <= limit]
        )
        if len(grown) > self._most:
            self.thinned = True
            # The fastest stays, and so does the one that holds least, with which the most layers fit.
            smallest = min(grown, key=lambda option: option.held)
            step = len(grown) / (self._most - 1)
            grown = [*(grown[int(k * step)] for k in range(self._most - 1)), smallest]
        return grown


def held(peak: int, late: int, kept: Bytes, for_weight: Bytes) -> Bytes:
    """What `peak` micro-batches hold of which `late` have had their I."""
    return peak * kept + (late * max(0, for_weight - kept) if late else 0)


def unbeaten(options: list[Option]) -> list[Option]:
    """Those that no other one beats, the fastest first."""
    found: list[Option] = []
    for option in sorted(options):
        _, held, working, _ = option
        if not any(other.held <= held and other.working <= working for other in found):
            found.append(option)
    return found


def smallest_bytes(problem: Problem, stage: int, start: int) -> Iterator[tuple[int, Bytes]]:
    """For end after end, the fewest bytes with which the span `start` … `end` − 1 can be a stage, whatever the time.

    Dropping a layer gives back what n micro-batches keep of it beyond its input, and needs that once while it works.
    So the smallest set drops, of the layers that keep more than their input, those that need no more than some number
    of bytes while they work, and every such number is tried.
    """
    costs, peak, late = problem.costs, problem.peaks[stage], problem.late[stage]
    always: Bytes = 0
    kept: Bytes = 0
    undropped: Bytes = 0
    drops: list[tuple[Bytes, Bytes]] = []  # what a layer that is dropped needs while it works, and what it gives back
    operands: Bytes = 0
    handling: Bytes = 0
    first: Bytes = costs.output[start - 1] if start else 0
    for layer in range(start, costs.layers):
        entry = costs.output[layer - 1] if layer else 0
        activations = costs.kept(layer, start)
        always += costs.parameters[layer] + costs.trained[layer]
        for_weight = costs.for_weight[layer]
        kept += activations
        keeping = held(peak, late, activations, for_weight)
        undropped += keeping
        operands += for_weight
        handling = max(handling, costs.handling[layer])
        if problem.recompute == "layer" and activations > entry:
            working = costs.handling[layer] + activations - entry
            insort(drops, (working, keeping - held(peak, late, entry, for_weight)))
        found = always + undropped + handling
        if problem.recompute != "never":
            found = min(found, always + held(peak, late, first, operands) + max(0, kept - first) + handling)
        if drops:
            given_back = accumulate(gain for _, gain in drops)
            sets = zip((working for working, _ in drops), given_back, strict=True)
            least = min(max(handling, working) - gain for working, gain in sets)
            found = min(found, always + undropped + least)
        yield layer + 1, found


def smallest_of(problem: Problem, stage: int, start: int, end: int) -> Bytes:
    """The fewest bytes with which one span can be a stage."""
    return next(found for reached, found in smallest_bytes(problem, stage, start) if reached == end)
