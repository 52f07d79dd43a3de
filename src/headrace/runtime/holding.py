"""What one process holds of the model: the stages of its ranks, with names, state and executors."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from headrace.runtime.executor import Executor
from headrace.runtime.model.cut import CutModel, named_buffers, named_parameters
from headrace.runtime.process.clock import clock_for
from headrace.runtime.stage.randomness import Draws, OwnGenerators, SharedGenerators
from headrace.runtime.stage.stage import Stage
from headrace.schedule.placement import Placement


class Holding:
    """The stages of `ranks`, ready to run.

    Args:
        model: the cut model.
        placement: which rank holds which stage.
        ranks: those that this process runs.
        devices: of these ranks.
    """

    def __init__(
        self, model: CutModel, placement: Placement, ranks: Sequence[int], devices: Mapping[int, torch.device]
    ) -> None:
        self._every_layer = list(model.layers)
        self.stages: dict[int, Stage] = {}
        self.executors: dict[int, Executor] = {}
        self.shared_draws: list[SharedGenerators] = []
        for rank in ranks:
            draws: Draws
            if len(ranks) == 1:
                draws = OwnGenerators(devices[rank])
            else:
                draws = shared = SharedGenerators(devices[rank])
                self.shared_draws.append(shared)
            stages = {}
            for index in placement.stages_of(rank):
                layers = model.stage_layers[index]
                for layer in layers.values():
                    layer.to(devices[rank])
                stages[index] = Stage(index, layers, model.first_layer[index], devices[rank], draws)
            self.stages.update(stages)
            self.executors[rank] = Executor(rank, stages, clock_for(devices[rank]))
        ordered = sorted(self.stages.items())
        self.layers: dict[str, nn.Module] = {n: layer for _, stage in ordered for n, layer in stage.layers.items()}

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
