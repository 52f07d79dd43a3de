"""What one process holds of the model: the stages of its ranks, with names, state and executors."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from headrace.runtime.executor import Executor, Overlap
from headrace.runtime.model.cut import CutModel, named_buffers, named_parameters
from headrace.runtime.model.replica import Replica
from headrace.runtime.process.clock import clock_for
from headrace.runtime.stage.lanes import LaneSum
from headrace.runtime.stage.randomness import Draws, OwnGenerators, SharedGenerators
from headrace.runtime.stage.stage import Stage
from headrace.schedule.placement import Placement

MakeOptimizer = Callable[[list[tuple[str, nn.Parameter]]], Optimizer]


class Holding:
    """The stages of `ranks`, ready to run.

    Args:
        model: the cut model.
        placement: which rank holds which stage.
        ranks: those that this process runs.
        devices: of these ranks.
        overlap: see `Executor`.
        make_optimizer: for asynchronous schedules: from the named parameters of a stage to its optimizer.
        recomputes: names of the layers that recompute one by one.
    """

    def __init__(
        self,
        model: CutModel,
        placement: Placement,
        ranks: Sequence[int],
        devices: Mapping[int, torch.device],
        make_optimizer: MakeOptimizer | None = None,
        overlap: Overlap | None = None,
        recomputes: Collection[str] = (),
    ) -> None:
        self._every_layer = list(model.layers)
        self.stages: dict[int, Stage] = {}
        self.executors: dict[int, Executor] = {}
        self.shared_draws: list[SharedGenerators] = []
        self.optimizers: dict[int, Optimizer] = {}
        self._replicas: list[Replica] = []
        self._copies: list[Stage] = []  # of all stages, those that follow another one included
        for rank in ranks:
            draws: Draws
            if len(ranks) == 1:
                draws = OwnGenerators(devices[rank])
            else:
                draws = shared = SharedGenerators(devices[rank])
                self.shared_draws.append(shared)
            stages, sums = {}, []
            for index in placement.stages_of(rank):
                holders = placement.replicas_of(index)
                here = [holder for holder in holders if holder in ranks]
                layers = self._layers(model.stage_layers[index], devices[rank], follows=rank != here[0])
                stages[index] = Stage(index, layers, model.first_layer[index], devices[rank], draws, recomputes)
                self._copies.append(stages[index])
                if rank == here[0]:
                    self.stages[index] = stages[index]
                parameters = list(named_parameters(layers))
                if make_optimizer is not None and parameters:  # torch's optimizers refuse to have none
                    made: object = make_optimizer(parameters)
                    if not isinstance(made, Optimizer):
                        raise TypeError(f"optimizer= returned {made!r}: it must return a torch.optim.Optimizer")
                    self.optimizers[index] = made
                if len(holders) > 1:
                    sums.append(LaneSum(index, layers, holders, rank, here[:1] if len(here) > 1 else holders))
            self.executors[rank] = Executor(rank, stages, clock_for(devices[rank]), sums, self.optimizers, overlap)
        ordered = sorted(self.stages.items())
        self.layers: dict[str, nn.Module] = {n: layer for _, stage in ordered for n, layer in stage.layers.items()}

    def _layers(self, layers: dict[str, nn.Module], device: torch.device, *, follows: bool) -> dict[str, nn.Module]:
        """The layers of a stage on `device`: the user's own, or a replica that follows them."""
        if follows:
            self._replicas.append(Replica(layers, device))
            return self._replicas[-1].layers
        for layer in layers.values():
            layer.to(device)
        return layers

    def follow(self) -> None:
        """Have the replicas of stages do as the stages themselves; called before each step."""
        for replica in self._replicas:
            replica.follow()

    @property
    def modules(self) -> list[nn.Module]:
        """The layers of all stages, replicas included."""
        return [*self.layers.values(), *(layer for replica in self._replicas for layer in replica.layers.values())]

    @property
    def carries(self) -> bool:
        """Whether some stage has carried something from one segment to the next."""
        return any(stage.carries for stage in self._copies)

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Each parameter once, in model order."""
        return named_parameters(self.layers)

    def named_buffers(self) -> Iterator[tuple[str, Tensor]]:
        """Each buffer once, in model order."""
        return named_buffers(self.layers)

    def state_dict(self) -> dict[str, Any]:
        """The part of the unsplit model's state_dict that is held here."""
        state: dict[str, Any] = {}
        for name, layer in self.layers.items():
            layer.state_dict(destination=state, prefix=f"{name}.")
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load what is held here out of a state_dict of the whole model, or of a part that contains it.

        Raises:
            ValueError: a key that is needed is missing, or one belongs to no layer of the model.
        """
        strangers = [key for key in state if not any(key.startswith(f"{name}.") for name in self._every_layer)]
        if strangers:
            raise ValueError(f"state has keys that belong to no layer of the model: {', '.join(strangers)}")
        missing = [key for key in self.state_dict() if key not in state]
        if missing:
            raise ValueError(f"state lacks what this process holds: {', '.join(missing)}")
        for name, layer in self.layers.items():
            prefix = f"{name}."
            layer.load_state_dict({k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)})
