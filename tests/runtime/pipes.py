"""Small things that several test modules need: pipelines of cases, layers that watch, reference steps."""

from typing import Any

import torch
from torch import Tensor, nn

import headrace as hr
from runtime.cases import Case, Do, make
from runtime.reference import Unsplit, backward_order, differing, everything, gradients, same

SEED = 5


def pipe_of(case: Case, ranks: int, micro_batches: int, **options: Any) -> hr.Pipeline:
    """A pipeline of the case's model; random numbers start from SEED."""
    torch.manual_seed(SEED)
    options = {"cut": case.cut(ranks), **case.options, **options}
    return hr.Pipeline(case.model, case.loss_fn, ranks=ranks, micro_batches=micro_batches, **options)


class Race:
    """A pipeline and the unsplit model, side by side."""

    def __init__(self, name: str, ranks: int, micro_batches: int, **options: Any) -> None:
        self.case = make(name)
        self.unsplit = Unsplit(make(name), SEED)
        self.pipe = pipe_of(self.case, ranks, micro_batches, **options)

    def step(self, x: Any, y: Any) -> None:
        """The same step of both; they must end with the same gradients."""
        loss = self.pipe.step(_copied(x), y)
        expected = self.unsplit.step((_copied(x), y), backward_order(self.pipe.schedule))
        assert same(loss, expected)
        self.compare()

    def compare(self) -> None:
        """Both have the same gradients, parameters and buffers."""
        ours, theirs = self.case.model, self.unsplit.case.model
        assert differing(gradients(ours), gradients(theirs)) == []
        assert differing(everything(ours), everything(theirs)) == []


def _copied(value: Any) -> Any:
    return torch.utils._pytree.tree_map(lambda leaf: leaf.clone() if isinstance(leaf, Tensor) else leaf, value)


class Watch(nn.Module):
    """Hands its input on, and calls `see` with it."""

    def __init__(self, see: Any) -> None:
        super().__init__()
        self.see = see

    def forward(self, value: Any) -> Any:
        self.see(value)
        return value


def four_linears(*, dim: int = 6) -> nn.Sequential:
    """A small chain, the same each time."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(*(nn.Linear(dim, dim) for _ in range(4)))


def plus_one() -> nn.Module:
    """A layer that saves nothing for its backward."""
    return Do(lambda x: x + 1)
