"""The models that GPipe measures, without memory, and their batches."""

from collections import OrderedDict
from collections.abc import Callable
from copy import deepcopy
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from headrace.analytic.estimate import estimate
from headrace.analytic.hardware import Hardware
from headrace.layer_costs import LayerCosts
from headrace.models import amoebanet, transformer

_SIDE = 224
_TOKENS = 1024


class Workload(NamedTuple):
    """What is trained.

    Attributes:
        name: for people.
        model: a chain on the meta device.
        sample: a micro-batch of so many rows.
        target: what its output is compared with.
        loss_fn: how.
        rows: of a mini-batch.
    """

    name: str
    model: nn.Sequential
    sample: Callable[[int], Tensor]
    target: Callable[[int], Tensor]
    loss_fn: Callable[[Any, Tensor], Tensor]
    rows: int

    def layers(self, hardware: Hardware, micro_batches: int, *, compiled: bool = False) -> LayerCosts:
        """The costs of the layers for one of so many micro-batches, with the loss and RMSProp."""
        rows = self.rows // micro_batches
        return estimate(
            self.model,
            self.sample(rows),
            hardware,
            loss_fn=self.loss_fn,
            target=self.target(rows),
            optimizer="rmsprop",
            compiled=compiled,
        )


def images(layers: int, filters: int, *, auxiliary: bool = False) -> Workload:
    """AmoebaNet-D (layers, filters) on 224² images, 128 at a time."""
    with torch.device("meta"):
        model = amoebanet(layers, filters, auxiliary=auxiliary, side=_SIDE)
    return Workload(
        f"AmoebaNet-D ({layers}, {filters})",
        model,
        lambda rows: torch.empty(rows, 3, _SIDE, _SIDE, device="meta"),
        lambda rows: torch.empty(rows, dtype=torch.long, device="meta"),
        _of_images,
        128,
    )


def texts(layers: int) -> Workload:
    """The Transformer of Table 1 on sequences of 1024, 32 at a time; attention as it was written in 2019."""
    with torch.device("meta"):
        one = transformer(1, fused=False)
    # copies, as initialising thousands of layers takes a while even where there is nothing to initialise
    embedding, block, head = one.children()
    blocks = ((f"block{i}", deepcopy(block)) for i in range(layers))
    model = nn.Sequential(OrderedDict([("embedding", embedding), *blocks, ("head", head)]))

    def tokens(rows: int) -> Tensor:
        return torch.empty(rows, _TOKENS, dtype=torch.long, device="meta")

    return Workload(f"Transformer, {layers} layers", model, tokens, tokens, _of_texts, 32)


def _of_images(logits: Any, classes: Tensor) -> Tensor:
    """Cross entropy; that of the auxiliary head counts 0.4."""
    if isinstance(logits, Tensor):
        return F.cross_entropy(logits, classes)
    last, half_way = logits
    return F.cross_entropy(last, classes) + 0.4 * F.cross_entropy(half_way, classes)


def _of_texts(logits: Tensor, tokens: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), tokens.flatten())
