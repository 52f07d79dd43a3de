"""The models that are measured: a GPT in layers, and a stage that holds its rank as an accelerator would."""

import time
import zlib
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

SPIN = 150e-6  # sleepers wake late, by 50–150 µs on a virtual machine: the rest of a hold is spun
_SPUN = bytes(16 * 1024)  # crc32 of it takes a few microseconds, touches only the L1 cache and releases the GIL


def hold(seconds: float, since: float) -> None:
    """Return `seconds` after `since` (a `time.perf_counter()`), as if an accelerator had worked until then.

    The processor is free for others meanwhile, except for the last SPIN. Even then other threads of this process
    run, for waiting for an accelerator does not hold the GIL either.
    """
    end = since + seconds
    rest = end - SPIN - time.perf_counter()
    if rest > 0:
        time.sleep(rest)
    while time.perf_counter() < end:
        zlib.crc32(_SPUN)


class EmulatedStage(nn.Module):
    """A stage that takes a given time and no arithmetic.

        input [rows, i] ──▶ hold 5 ms  ──▶ output [rows, o]
        grad  [rows, i] ◀── hold 10 ms ◀── grad   [rows, o]

    What it hands on lies in memory that it owns, was touched before and is not its input's: like the output of a
    kernel in a device's memory pool, so that neither page faults nor arithmetic of this process blur what transport
    costs. The values never change (zeros), so nothing is overwritten while it still travels.
    """

    def __init__(self, inputs: int, outputs: int, forward_seconds: float, backward_seconds: float) -> None:
        super().__init__()
        self.inputs, self.outputs = inputs, outputs
        self.forward_seconds, self.backward_seconds = forward_seconds, backward_seconds
        self.weight = nn.Parameter(torch.zeros(1))
        self._owned: dict[tuple[str, tuple[int, ...]], Tensor] = {}

    def memory(self, what: str, *shape: int) -> Tensor:
        """A fresh tensor on the stage's own memory for `what`; allocated when first asked for."""
        owned = self._owned.get((what, shape))
        if owned is None:
            owned = self._owned[what, shape] = torch.zeros(shape).fill_(0)  # fill_ touches every page
        return owned.detach()

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[-1] != self.inputs:
            raise ValueError(f"an emulated stage for {self.inputs} features was given {x.shape[-1]}")
        output: Tensor = _Hold.apply(x, self.weight, self)
        return output


class _Hold(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, _weight: Tensor, stage: EmulatedStage) -> Tensor:
        since = time.perf_counter()
        ctx.stage, ctx.rows = stage, x.shape[0]
        output = stage.memory("output", x.shape[0], stage.outputs)
        hold(stage.forward_seconds, since)
        return output

    @staticmethod
    def backward(ctx: Any, *_gradients: Tensor) -> tuple[Tensor | None, Tensor, None]:
        since = time.perf_counter()
        stage = ctx.stage
        gradient = stage.memory("gradient", ctx.rows, stage.inputs) if ctx.needs_input_grad[0] else None
        weight_gradient = torch.zeros(1)
        hold(stage.backward_seconds, since)
        return gradient, weight_gradient, None


class Embedding(nn.Module):
    """Token and position."""

    def __init__(self, vocabulary: int, sequence: int, dim: int) -> None:
        super().__init__()
        self.token = nn.Embedding(vocabulary, dim)
        self.position = nn.Parameter(0.02 * torch.randn(sequence, dim))

    def forward(self, tokens: Tensor) -> Tensor:
        embedded: Tensor = self.token(tokens)
        return embedded + self.position[: tokens.shape[1]]


class Block(nn.Module):
    """A pre-norm transformer block."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.up, self.down = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        rows, sequence, dim = x.shape
        qkv = self.qkv(self.norm1(x)).view(rows, sequence, 3, self.heads, dim // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(rows, sequence, dim))
        result: Tensor = x + self.down(functional.gelu(self.up(self.norm2(x))))
        return result


class Head(nn.Module):
    """The last norm and the logits."""

    def __init__(self, dim: int, vocabulary: int) -> None:
        super().__init__()
        self.norm, self.logits = nn.LayerNorm(dim), nn.Linear(dim, vocabulary)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.logits(self.norm(x))
        return logits


def gpt_layers(blocks: int, dim: int, heads: int, sequence: int, vocabulary: int) -> list[nn.Module]:
    """Embedding, blocks, head: deliberately uneven layers."""
    return [
        Embedding(vocabulary, sequence, dim),
        *(Block(dim, heads) for _ in range(blocks)),
        Head(dim, vocabulary),
    ]
