"""What is not the same mathematics when a batch comes in parts, told once and by name."""

import warnings
from collections.abc import Mapping

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm


class BatchStatisticsWarning(UserWarning):
    """Layers take statistics over micro-batches where the unsplit model takes them over the whole batch."""


def warn_of_batch_statistics(layers: Mapping[str, nn.Module], micro_batches: int) -> None:
    """Warn if layers in training mode normalise over the rows of a batch that comes in several micro-batches."""
    if micro_batches == 1:
        return
    names = [
        f"{layer_name}.{name}".rstrip(".")
        for layer_name, layer in layers.items()
        for name, module in layer.named_modules()
        if isinstance(module, _BatchNorm) and module.training
    ]
    if names:
        warnings.warn(
            f"{', '.join(names)}: batch normalisation sees each of {micro_batches} micro-batches by itself, so its "
            "statistics, and with them losses and gradients, differ from those of the whole batch; running "
            "statistics move once per micro-batch. GroupNorm and LayerNorm have no such effect",
            BatchStatisticsWarning,
            stacklevel=3,
        )
