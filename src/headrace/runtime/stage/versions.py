"""Weights that are updated while micro-batches are under way: each reads the version that its forward read.

    p     the user's Parameters, always the newest; the optimizer updates them
    v₀ v₁ Parameters of their own around the memory that p had then, put into the modules for an F or R

    F0 reads v₀ ──┐       U0: somebody still needs v₀, so p gets a copy of its memory before the optimizer
    F1 reads v₀ ──┤           writes to it; v₀ keeps the old one
    B0, U0        │       F2 reads v₁ …
    B1  (v₀) ─────┘       v₀ is dropped with its last backward

So there are never more versions than the schedule needs (`headrace.schedule.versions`), the newest included. Gradients
arrive at the version and are moved on to p, micro-batch by micro-batch.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from torch import nn
from torch.optim import Optimizer

from headrace.runtime.model.cut import named_parameters, refuse_gradient_hooks
from headrace.schedule.actions import UPDATE, Action


class Versions:
    """The weights of one stage during one step of an asynchronous schedule.

    Args:
        stage: its number.
        layers: of the stage.
        optimizer: of its parameters; None if it has none.
        row: the actions of its rank.
        reads: how many updates the weights have had that each (stage, micro-batch) reads.
    """

    def __init__(
        self,
        stage: int,
        layers: Mapping[str, nn.Module],
        optimizer: Optimizer | None,
        row: tuple[Action, ...],
        reads: Mapping[tuple[int, int], int],
    ) -> None:
        self._optimizer = optimizer
        self._places = [
            (module, name, parameter)
            for module in dict.fromkeys(m for layer in layers.values() for m in layer.modules())
            for name, parameter in module._parameters.items()
            if parameter is not None
        ]
        self._masters = list(dict.fromkeys(parameter for _, _, parameter in self._places))
        mine = [a for a in row if a.stage == stage]
        self._reads = {k: version for (s, k), version in reads.items() if s == stage}
        self._left = dict.fromkeys(self._reads.values(), 0)  # actions to come that need each version
        for _, kind, k in mine:
            if kind != UPDATE:
                self._left[self._reads[k]] += 1
        refuse_gradient_hooks(named_parameters(layers), "which an asynchronous schedule does not call")
        self._newest = 0
        self._versions: dict[int, dict[nn.Parameter, nn.Parameter]] = {}
        if optimizer is not None:
            optimizer.zero_grad()

    @contextmanager
    def reading(self, micro_batch: int) -> Iterator[None]:
        """Within it, the modules have the weights that `micro_batch` reads."""
        version = self._versions.get(self._reads[micro_batch]) or self._keep()
        for module, name, master in self._places:
            setattr(module, name, version[master])
        try:
            yield
        finally:
            for module, name, master in self._places:
                setattr(module, name, master)

    def collect(self, micro_batch: int) -> None:
        """After its backward: move the gradients of `micro_batch` to the parameters."""
        for master, copy in self._versions[self._reads[micro_batch]].items():
            if copy.grad is not None:
                master.grad = copy.grad if master.grad is None else master.grad.add_(copy.grad)
                copy.grad = None

    def used(self, micro_batch: int) -> None:
        """One action of `micro_batch` is over: drop what nobody needs any more."""
        number = self._reads[micro_batch]
        self._left[number] -= 1
        if not self._left[number]:
            self._versions.pop(number, None)

    def update(self) -> None:
        """U: an optimizer step with the gradients that were collected since the last one."""
        if self._left.get(self._newest):
            self._keep()
            for master in self._masters:
                master.data = master.data.clone()
        if self._optimizer is not None:
            self._optimizer.step()
            self._optimizer.zero_grad()
        self._newest += 1

    def _keep(self) -> dict[nn.Parameter, nn.Parameter]:
        """The newest version, which shares the parameters' memory until they are updated."""
        if self._newest not in self._versions:
            # .data, as a detached tensor would count the optimizer's writes to the parameter as writes to itself
            self._versions[self._newest] = {p: nn.Parameter(p.data, p.requires_grad) for p in self._masters}
        return self._versions[self._newest]
