"""What is measured: a model as one `nn.Sequential`, its cut, its batch and its loss, all from a few plain values.

Every contestant builds the same case from the same description, so that weights, rows and micro-batches are the same
for all of them. A description pickles, which is how it reaches the workers.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import torch
from stages import EmulatedStage, gpt_layers
from torch import Tensor, nn
from torch.nn import functional

Kind = Literal["gpt", "emulated", "linear"]
ScheduleName = Literal["1f1b", "gpipe"]

KIB = 1024
MIB = 1024 * KIB

GPT_BLOCKS, GPT_DIM, GPT_HEADS, GPT_SEQUENCE, GPT_BATCH, GPT_VOCABULARY = 8, 256, 4, 128, 32, 256
EMULATED_FORWARD, EMULATED_BACKWARD, EMULATED_ROWS = 0.005, 0.010, 4
LINEAR_WIDTH, LINEAR_ROWS = 8, 4


@dataclass(frozen=True)
class Case:
    """One measurement.

    Attributes:
        kind: which model.
        ranks: p; one stage a rank.
        micro_batches: m.
        schedule: the order of the actions.
        bytes_per_activation: what flows between two emulated stages for one micro-batch.
        batch_rows: rows of the GPT's batch.
    """

    kind: Kind
    ranks: int
    micro_batches: int
    schedule: ScheduleName = "1f1b"
    bytes_per_activation: int = 0
    batch_rows: int = GPT_BATCH

    @property
    def actions(self) -> int:
        """Forwards and backwards in one step, over all ranks."""
        return 2 * self.ranks * self.micro_batches

    @property
    def ideal(self) -> float:
        """Seconds of an emulated step if nothing but the stages took time: (m+p−1)(F+B)."""
        return (self.micro_batches + self.ranks - 1) * (EMULATED_FORWARD + EMULATED_BACKWARD)

    @property
    def cut(self) -> list[int]:
        """Layers per stage."""
        if self.kind == "gpt":
            layers = GPT_BLOCKS + 2
            return [layers // self.ranks + (stage < layers % self.ranks) for stage in range(self.ranks)]
        return [1] * self.ranks

    def model(self) -> nn.Sequential:
        """The unsplit model; the same weights for everyone."""
        torch.manual_seed(0)
        if self.kind == "gpt":
            return nn.Sequential(*gpt_layers(GPT_BLOCKS, GPT_DIM, GPT_HEADS, GPT_SEQUENCE, GPT_VOCABULARY))
        if self.kind == "linear":
            return nn.Sequential(*(nn.Linear(LINEAR_WIDTH, LINEAR_WIDTH) for _ in range(self.ranks)))
        features = self.bytes_per_activation // 4 // EMULATED_ROWS
        widths = [1, *[features] * (self.ranks - 1), 1]
        return nn.Sequential(*(EmulatedStage(i, o, EMULATED_FORWARD, EMULATED_BACKWARD) for i, o in pairwise(widths)))

    def stage(self, index: int) -> nn.Sequential:
        """The layers of one stage."""
        start = sum(self.cut[:index])
        return nn.Sequential(*list(self.model())[start : start + self.cut[index]])

    def batch(self) -> tuple[Tensor, Tensor]:
        """Input and target of one step, dim 0 divisible by m."""
        torch.manual_seed(1)
        if self.kind == "gpt":
            text = torch.randint(GPT_VOCABULARY, (self.batch_rows, GPT_SEQUENCE + 1))
            return text[:, :-1].contiguous(), text[:, 1:].contiguous()
        if self.kind == "linear":
            rows = LINEAR_ROWS * self.micro_batches
            return torch.randn(rows, LINEAR_WIDTH), torch.randn(rows, LINEAR_WIDTH)
        rows = EMULATED_ROWS * self.micro_batches
        return torch.zeros(rows, 1), torch.zeros(rows, 1)

    def activation_shape(self) -> tuple[int, ...]:
        """Shape of what flows between two stages for one micro-batch (float32)."""
        if self.kind == "gpt":
            return (self.batch_rows // self.micro_batches, GPT_SEQUENCE, GPT_DIM)
        if self.kind == "linear":
            return (LINEAR_ROWS, LINEAR_WIDTH)
        return (EMULATED_ROWS, self.bytes_per_activation // 4 // EMULATED_ROWS)

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """The mean loss of a (micro-)batch."""
        if self.kind == "gpt":
            return functional.cross_entropy(output.flatten(0, -2), target.flatten())
        return functional.mse_loss(output, target)
