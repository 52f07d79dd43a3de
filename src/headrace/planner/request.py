"""What is asked of a planner."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import get_args

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
    keep_together: Sequence[Collection[int]] = ()
    pin_rank: Mapping[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        at_least(1, batch=self.batch, ranks=self.ranks)
        if not self.sizes:
            raise ValueError("sizes is empty: give the costs of the layers for at least one size of micro-batches")
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
        if self.recompute not in get_args(Allowed):
            raise ValueError(f'recompute={self.recompute!r} must be "never", "stage" or "layer"')

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
