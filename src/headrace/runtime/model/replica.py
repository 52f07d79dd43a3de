"""A second copy of a stage's layers for a two-way schedule: modules of its own around the same weights.

    rank 0, lane 0:  Linear ─▶ weight ──┐              The replica's Parameters are others, so that each lane has its
                                        ├─▶ memory     own .grad, but on one device they share their memory: nothing
    rank 3, lane 1:  Linear'─▶ weight'──┘              has to be copied, and they cannot drift apart.

Between processes there is nothing to share: there, each process uses its own copy of the user's model.
"""

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from headrace.runtime.model.cut import names_of


class Replica:
    """A copy of `layers` that follows them.

    Args:
        layers: of one stage, by name.
        device: where the copy computes.
    """

    def __init__(self, layers: Mapping[str, nn.Module], device: torch.device) -> None:
        memo: dict[int, Any] = {}
        for layer in layers.values():
            for parameter in layer.parameters():
                memo[id(parameter)] = nn.Parameter(parameter.detach().to(device), parameter.requires_grad)
            for buffer in layer.buffers():
                memo[id(buffer)] = buffer.to(device)
        self.layers = {name: copy.deepcopy(layer, memo) for name, layer in layers.items()}
        self._modules = _pairs(layers, self.layers)
        self._parameters = [
            (original, mine) for a, b in self._modules for original, mine in _direct(a._parameters, b._parameters)
        ]
        self._buffers = [
            (original, mine) for a, b in self._modules for original, mine in _direct(a._buffers, b._buffers)
        ]

    def follow(self) -> None:
        """Have the weights, flags and modes that the original has now; called before each step."""
        for original, mine in self._modules:
            mine.training = original.training
        for theirs, own in (*self._parameters, *self._buffers):
            if theirs.device != own.device:
                own.data.copy_(theirs.data)
            elif theirs.data_ptr() != own.data_ptr():
                own.data = theirs.data
        for theirs, own in self._parameters:
            own.requires_grad_(theirs.requires_grad)


def refuse_running_statistics(layers: Mapping[str, nn.Module], schedule: str) -> None:
    """Refuse layers whose replicas would drift apart, as each would count only the micro-batches of its lane.

    Raises:
        ValueError: a layer keeps running statistics.
    """
    names = names_of(layers, lambda module: isinstance(module, _NormBase) and module.track_running_stats)
    if names:
        raise ValueError(
            f"{', '.join(names)} keep running statistics, but schedule {schedule!r} is two-way: each stage has two "
            "replicas, and each would count only half of the micro-batches. Use a one-way schedule, GroupNorm, or "
            "track_running_stats=False"
        )


def _pairs(ones: Mapping[str, nn.Module], others: Mapping[str, nn.Module]) -> list[tuple[nn.Module, nn.Module]]:
    return [pair for name in ones for pair in zip(ones[name].modules(), others[name].modules(), strict=True)]


def _direct(ones: Mapping[str, Any], others: Mapping[str, Any]) -> list[tuple[Any, Any]]:
    return [(ones[name], others[name]) for name in ones if ones[name] is not None]
