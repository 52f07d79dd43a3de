"""What is not as in the unsplit model, or not as the schedule says, told once and by name."""

import warnings
import weakref
from collections.abc import Mapping
from typing import Final

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from headrace.runtime.model.cut import names_of


class BatchStatisticsWarning(UserWarning):
    """Layers take statistics over micro-batches where the unsplit model takes them over the whole batch."""


class WholeBackwardWarning(UserWarning):
    """A layer's backward is not split, though the schedule splits that of its stage."""


class NothingCarriedWarning(UserWarning):
    """Sequences are cut into segments, but no layer looks back at earlier segments."""


def warn_of_nothing_carried(schedule: str, carries: bool) -> None:
    """Warn if a schedule cuts sequences and no layer says that it looks back, as attention must."""
    if not carries:
        warnings.warn(
            f"schedule {schedule!r} cuts sequences into segments, but no layer carried anything from one "
            "segment to the next: that is right only if each token is treated by itself. Attention must use "
            "headrace.carry, or it sees no earlier segment",
            NothingCarriedWarning,
            stacklevel=3,
        )


def warn_of_batch_statistics(layers: Mapping[str, nn.Module], micro_batches: int) -> None:
    """Warn if layers in training mode normalise over the rows of a batch that comes in several micro-batches."""
    if micro_batches == 1:
        return
    names = names_of(layers, lambda module: isinstance(module, _BatchNorm) and module.training)
    if names:
        warnings.warn(
            f"{', '.join(names)}: batch normalisation sees each of {micro_batches} micro-batches by itself, so its "
            "statistics, and with them losses and gradients, differ from those of the whole batch; running "
            "statistics move once per micro-batch. GroupNorm and LayerNorm have no such effect",
            BatchStatisticsWarning,
            stacklevel=3,
        )


_TOLD: Final = weakref.WeakSet[nn.Module]()


def warn_of_whole_backward(layer: nn.Module, name: str) -> None:
    """Warn, once for each layer, that `layer` computes the gradients of its weights in I rather than in W."""
    if layer in _TOLD:
        return
    _TOLD.add(layer)
    warnings.warn(
        f"layer {name} is compiled, so its backward cannot be split: it runs as a whole in I, and W is left with "
        "nothing to do for it. Gradients are the same; to have it split, compile what lies between its products with "
        "weights rather than the layer",
        WholeBackwardWarning,
        stacklevel=3,
    )
