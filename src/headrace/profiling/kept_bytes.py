"""Exact bytes that ranks keep for backwards which are still to come: the activations, counted in a real step.

    rank 0   F0 │ F1 │ B0 │ F2 │ …        at each │ a layer's working memory is free again, and what was handed on has
                ╰─ counted ──╯            left: what is alive belongs to micro-batches in flight

Threads hand over tensors as they are, so that one memory may be kept on both sides of a boundary. Here what leaves a
rank is copied, as between devices, and each rank is counted by itself.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from headrace.costs import Bytes
from headrace.profiling.rank_bytes import Ledger, watched
from headrace.runtime.pipeline import Pipeline
from headrace.runtime.stage.stage import Stage
from headrace.runtime.transport.local.carrier import moved
from headrace.schedule.placement import Placement

_NEXT: Final = {"forward": 1, "recompute": 0, "backward": -1, "backward_input": -1, "backward_weight": 0}
"""What a stage does, and how far from it the stage is to which the result goes; 0 where there is none."""


@dataclass(frozen=True)
class Kept:
    """Bytes of one rank in a step.

    Attributes:
        between_actions: that it keeps at the most between two of its actions.
        at_most: that it has at any time, what layers need while they work included.
    """

    between_actions: Bytes
    at_most: Bytes


def kept_in_step(pipe: Pipeline, x: Any, y: Any) -> dict[int, Kept]:
    """What each rank holds that this process runs.

    Parameters, gradients and the batch, which stay between steps, do not count. Nor do messages of other ranks that
    nobody has taken up yet, as that is a matter of time.

    Args:
        pipe: takes two steps.
        x, y: a mini-batch, as for `Pipeline.step`.

    Raises:
        ValueError, PipelineFailure: as for `Pipeline.step`.
    """
    x, y = (pytree.tree_map(lambda leaf: leaf.clone() if isinstance(leaf, Tensor) else leaf, one) for one in (x, y))
    with watched(pipe) as ledger:
        count = _Count(ledger, pipe.schedule.placement)
        with count.between_actions(pipe):
            pipe.step(x, y)
            count.stays.update(ledger.now)
            count.most.clear()
            ledger.restart()
            pipe.step(x, y)
        ranks = pipe.on_ranks(lambda rank: rank)
        return {rank: Kept(count.most[rank], ledger.peak[rank] - count.stays.get(rank, 0)) for rank in ranks}


@dataclass
class _Count:
    """Looks at `ledger` whenever an action begins."""

    ledger: Ledger
    placement: Placement
    stays: dict[Any, Bytes] = field(default_factory=dict)
    most: defaultdict[int, Bytes] = field(default_factory=lambda: defaultdict(int))

    @contextmanager
    def between_actions(self, pipe: Pipeline) -> Iterator[None]:
        """Within it, the stages of `pipe` are counted."""
        stages = [(rank, stage) for rank, run in pipe._holding.executors.items() for stage in run._stages.values()]
        try:
            for rank, stage in stages:
                for part in _NEXT:
                    setattr(stage, part, self._counted(rank, stage, part))
            yield
        finally:
            for _, stage in stages:
                for part in _NEXT:
                    vars(stage).pop(part, None)

    def _counted(self, rank: int, stage: Stage, part: str) -> Callable[..., Any]:
        method: Callable[..., Any] = getattr(stage, part)
        to = stage.index + _NEXT[part]

        def counted(k: int, *args: Any, **kwargs: Any) -> Any:
            self.most[rank] = max(self.most[rank], self.ledger.now[rank] - self.stays.get(rank, 0))
            made = method(k, *args, **kwargs)
            leaves = 0 <= to < self.placement.stages and self.placement.rank(to, k) != rank
            return _copied(made) if leaves else made

        return counted


def _copied(made: Any) -> Any:
    """On memory that no rank has used yet."""
    with _disable_current_modes():
        return moved(made, Tensor.clone)
