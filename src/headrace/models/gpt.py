"""A byte-level GPT as one plain `nn.Sequential`: the model of the main job.

Its layers are uneven on purpose (a cheap embedding, equal blocks, a head of its own size), so that cutting by measured
cost, rather than by counting layers, has something to show:

    tokens [batch, sequence] ─ embedding ─ block0 … blockN ─ head ─▶ logits [batch, sequence, vocabulary]
                                       [batch, sequence, dim] between layers

Its sequences may come in segments (`carry`): positions go on counting, and attention looks back at what came before.
"""

import math
from collections import OrderedDict

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from headrace.runtime.stage import carry
from headrace.schedule.numbers import at_least

INIT_STD = 0.02


def gpt(
    layers: int = 8,
    dim: int = 256,
    *,
    heads: int = 4,
    sequence: int = 128,
    vocabulary: int = 256,
    dropout: float = 0.0,
) -> nn.Sequential:
    """`embedding`, `block0` … and `head`, initialised like GPT-2 from the global generator.

    Args:
        layers: how many blocks, besides embedding and head.
        dim: width of the residual stream; a multiple of `heads`.
        heads: attention heads per block.
        sequence: the longest sequence it accepts; shorter ones are fine.
        vocabulary: how many tokens there are; 256 for bytes.
        dropout: share of activations dropped in training, in [0, 1).

    Returns:
        int64 tokens [batch, sequence] → logits [batch, sequence, vocabulary]. Before training its mean loss is close
        to ln(vocabulary), 5.55 nats for bytes.

    Raises:
        TypeError, ValueError: an argument is impossible. The model raises ValueError for a sequence that is too long.
    """
    at_least(1, layers=layers, dim=dim, heads=heads, sequence=sequence, vocabulary=vocabulary)
    if dim % heads:
        raise ValueError(f"dim={dim} must be a multiple of heads={heads}, for every head has the same width")
    if not 0 <= dropout < 1:
        raise ValueError(f"dropout={dropout!r} must be in [0, 1)")
    # Every block adds to the residual stream twice, so its variance would grow with depth: GPT-2 scales those two
    # projections down. The head gets the same small scale, so that no byte is preferred at the start.
    small = INIT_STD / math.sqrt(2 * layers)
    return nn.Sequential(
        OrderedDict(
            [
                ("embedding", Embedding(vocabulary, sequence, dim, dropout)),
                *((f"block{i}", Block(dim, heads, dropout, small)) for i in range(layers)),
                ("head", Head(dim, vocabulary, small)),
            ]
        )
    )


def next_byte_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean cross entropy in nats per byte of logits [batch, sequence, vocabulary] against targets [batch, sequence]."""
    return F.cross_entropy(logits.flatten(0, -2), targets.flatten())


class Embedding(nn.Module):
    """Token plus learned position: int64 [batch, sequence] → [batch, sequence, dim]."""

    def __init__(self, vocabulary: int, sequence: int, dim: int, dropout: float) -> None:
        super().__init__()
        self.token = nn.Embedding(vocabulary, dim)
        self.position = nn.Embedding(sequence, dim)
        self.dropout = nn.Dropout(dropout)
        for table in (self.token, self.position):
            nn.init.normal_(table.weight, std=INIT_STD)

    def forward(self, tokens: Tensor) -> Tensor:
        start, longest = carry.take(self) or 0, self.position.num_embeddings
        end = start + tokens.shape[-1]
        if end > longest:
            raise ValueError(
                f"a sequence of {end} tokens is longer than this model's maximum of {longest}: "
                f"cut it, or build the model with sequence={end}"
            )
        carry.put(self, end)
        embedded: Tensor = self.dropout(self.token(tokens) + self.position.weight[start:end])
        return embedded


class Block(nn.Module):
    """Pre-norm transformer block, x + attention(norm(x)), then x + mlp(norm(x)): [batch, sequence, dim] → the same."""

    def __init__(self, dim: int, heads: int, dropout: float, residual_std: float) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(dim)
        self.qkv = _linear(dim, 3 * dim, INIT_STD)
        self.attention_out = _linear(dim, dim, residual_std)
        self.mlp_norm = nn.LayerNorm(dim)
        self.mlp_in = _linear(dim, 4 * dim, INIT_STD)
        self.mlp_out = _linear(4 * dim, dim, residual_std)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.dropout(self.attention_out(self._attention(self.qkv(self.attention_norm(x)))))
        result: Tensor = x + self.dropout(self.mlp_out(F.gelu(self.mlp_in(self.mlp_norm(x)))))
        return result

    def _attention(self, qkv: Tensor) -> Tensor:
        """[batch, sequence, 3 · dim] → [batch, sequence, dim]; no position sees a later one."""
        batch, length, _ = qkv.shape
        query, key, value = qkv.view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        dropout = self.dropout.p if self.training else 0.0
        past, seen = carry.take(self), None
        if past is not None:
            key, value = torch.cat([past[0], key], 2), torch.cat([past[1], value], 2)
            seen = torch.ones(length, key.shape[2], dtype=torch.bool, device=key.device).tril(key.shape[2] - length)
        carry.put(self, (key, value))
        mixed = F.scaled_dot_product_attention(query, key, value, seen, dropout, is_causal=past is None)
        return mixed.transpose(1, 2).reshape(batch, length, -1)


class Head(nn.Module):
    """Final norm and projection to logits: [batch, sequence, dim] → [batch, sequence, vocabulary]."""

    def __init__(self, dim: int, vocabulary: int, std: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.logits = _linear(dim, vocabulary, std)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.logits(self.norm(x))
        return logits


def _linear(inputs: int, outputs: int, std: float) -> nn.Linear:
    linear = nn.Linear(inputs, outputs)
    nn.init.normal_(linear.weight, std=std)
    nn.init.zeros_(linear.bias)
    return linear
