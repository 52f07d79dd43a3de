"""What is asked of a planner."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import inf
from typing import Any, get_args

from headrace.costs import Bytes, Number, Seconds
from headrace.layer_costs import LayerCosts
from headrace.partition.problem import Allowed
from headrace.schedule.catalogue import CATALOGUE
from headrace.schedule.numbers import at_least

OTHER_MATHEMATICS = ("pipedream", "pipedream-2bw")
"""Never planned: they train something else."""

ASKS_MORE = ("seq1f1b", "chimera", "dualpipe")
"""Planned only if asked for by name: they ask something of the model, or hold it twice."""


@dataclass(frozen=True)
class Request:
    """A model, the ranks that it is to run on, and what may be chosen.

    Attributes:
        sizes: the layers' costs for one or several sizes of micro-batches.
        batch: rows of a mini-batch; all replicas together.
        ranks: all there are; a pipeline gets ranks ÷ replicas of them.
        memory: bytes that each rank of a pipeline can hold; None for no limit.
        latency, bandwidth: of a link between two ranks: seconds, and bytes per second (None: only latency counts).
        slowness: what seconds are multiplied by on each rank of a pipeline: 2 for a device half as fast.
        update: seconds of the optimizer per byte of parameters.
        schedules: names to choose from; None for all that ask nothing of the model.
        micro_batches: numbers to choose from; None for a few multiples of the pipeline's ranks.
        replicas: data-parallel degrees to choose from.
        recompute: what may drop its activations and compute them again to fit: "never" anything, whole stages only
            ("stage"), or also single layers ("layer").
        search: whether to look for an order of actions beyond the catalogue's, for the cuts that are best with these.
        keep_together: groups of layers, by number, that must share a stage.
        pin_rank: layer → rank that must hold it.

    Raises:
        TypeError, ValueError: something is out of its range.
    """

    sizes: Sequence[LayerCosts]
    batch: int
    ranks: int
    memory: Bytes | Sequence[Bytes] | None = None
    latency: Seconds = 0
    bandwidth: Number | None = None
    slowness: Number | Sequence[Number] = 1
    update: Seconds = 0
    schedules: Sequence[str] | None = None
    micro_batches: Sequence[int] | None = None
    replicas: Sequence[int] = (1,)
    recompute: Allowed = "layer"
    search: bool = False
    keep_together: Sequence[Collection[int]] = ()
    pin_rank: Mapping[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        at_least(1, batch=self.batch, ranks=self.ranks)
        if not self.sizes:
            raise ValueError("sizes is empty: give the costs of the layers for at least one size of micro-batches")
        _some("schedules", self.schedules)
        _some("micro_batches", self.micro_batches)
        for m in self.micro_batches or ():
            at_least(1, micro_batches=m)
        for name in self.schedules or ():
            if name in OTHER_MATHEMATICS:
                raise ValueError(f"schedules names {name!r}, which trains with delayed weights: it is never planned")
            if name not in CATALOGUE:
                raise ValueError(f"schedules names {name!r}, which is unknown: choose from {', '.join(CATALOGUE)}")
        for degree in self.replicas:
            if degree < 1 or self.ranks % degree or self.batch % degree:
                raise ValueError(
                    f"replicas has {degree}, which does not divide ranks={self.ranks} and batch={self.batch}"
                )
        fewest = min(self.micro_batches or (1,)) * min(self.replicas, default=1)
        if fewest > self.batch:
            raise ValueError(
                f"micro_batches={self.micro_batches!r} are more than the batch has rows, which is {self.batch}"
            )
        if self.recompute not in get_args(Allowed):
            raise ValueError(f'recompute={self.recompute!r} must be "never", "stage" or "layer"')
        self._check_memory()
        for group in self.keep_together:
            if not isinstance(group, Collection):
                raise TypeError(f"keep_together={self.keep_together!r} must hold groups of layers, such as [(0, 5)]")

    def _check_memory(self) -> None:
        memory: Any = () if self.memory is None else self.memory
        several = isinstance(memory, (list, tuple))
        if (
            several
            and self.memory is not None
            and len(memory) not in {self.ranks // degree for degree in self.replicas}
        ):
            raise ValueError(f"memory has {len(memory)} numbers, but there are {self.ranks} ranks")
        for number in memory if several else (memory,):
            if not isinstance(number, (int, float, Fraction)):
                raise TypeError(f"memory={memory!r} must be a number of bytes, or one for each rank")
            if not 0 <= number < inf:
                raise ValueError(f"memory has {number!r}, which must be finite and at least 0")

    @property
    def layers(self) -> int:
        """How many layers the model has."""
        return self.sizes[0].layers

    @property
    def names(self) -> tuple[str, ...]:
        """The schedules to choose from."""
        if self.schedules is not None:
            return tuple(self.schedules)
        return tuple(name for name in CATALOGUE if name not in (*OTHER_MATHEMATICS, *ASKS_MORE))


def _some(name: str, values: Any) -> None:
    """Refuse nothing to choose from, and a text, whose letters would be the choice."""
    if isinstance(values, str):
        raise TypeError(f"{name}={values!r} must be a sequence, such as [{values!r}]")
    if values is not None and not values:
        raise ValueError(f"{name} is empty: name some, or leave it out")
