"""Multi-head attention and feed-forward of the Transformer (Vaswani et al., 2017), each with its norm and its residual.

Attention comes in two ways with the same result. Fused kernels never write down which position looks at which; what
ran in 2019 did, so the activations that papers of those years report hold it: rows · heads · length² numbers, twice.
"""

import math

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn


class Attention(nn.Module):
    """x + attention(norm(x)), over itself or over `memory`: [batch, length, dim] → the same.

    Args:
        dim: width of x and of memory.
        heads: how many.
        head_dim: width of each; dim ÷ heads is usual.
        causal: whether no position sees a later one.
        dropout: share of the attention and of the result dropped in training.
        fused: whether one kernel does it all, rather than product, softmax and product.
    """

    def __init__(self, dim: int, heads: int, head_dim: int, *, causal: bool, dropout: float, fused: bool) -> None:
        super().__init__()
        self.heads, self.causal, self.fused = heads, causal, fused
        inner = heads * head_dim
        self.norm = nn.LayerNorm(dim)
        self.query = nn.Linear(dim, inner)
        self.key = nn.Linear(dim, inner)
        self.value = nn.Linear(dim, inner)
        self.out = nn.Linear(inner, dim)
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor, memory: Tensor | None = None) -> Tensor:
        normed = self.norm(x)
        seen = normed if memory is None else memory
        query, key, value = self._heads(self.query(normed)), self._heads(self.key(seen)), self._heads(self.value(seen))
        if self.fused:
            share = self.dropout.p if self.training else 0.0
            mixed = F.scaled_dot_product_attention(query, key, value, None, share, is_causal=self.causal)
        else:
            mixed = self.dropout(self._looks(query, key)) @ value
        result: Tensor = x + self.dropout(self.out(mixed.transpose(1, 2).flatten(2)))
        return result

    def _heads(self, projected: Tensor) -> Tensor:
        """[batch, length, inner] → [batch, heads, length, head_dim]."""
        heads: Tensor = projected.unflatten(-1, (self.heads, -1)).transpose(1, 2)
        return heads

    def _looks(self, query: Tensor, key: Tensor) -> Tensor:
        """How much each position looks at each other: [batch, heads, length, length], rows summing to 1."""
        scores = (query / math.sqrt(query.shape[-1])) @ key.transpose(-1, -2)
        if self.causal:
            later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
            scores = scores.masked_fill(later, -math.inf)
        looks: Tensor = scores.softmax(-1)
        return looks


class Dropout(nn.Module):
    """Dropout that keeps one byte a number for its backward on every device; torch's on the CPU keeps four."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or not self.p:
            return x
        dropped = torch.rand(x.shape, device=x.device, dtype=torch.float32) < self.p
        result: Tensor = x.masked_fill(dropped, 0) / (1 - self.p)
        return result


class FeedForward(nn.Module):
    """x + out(relu(inside(norm(x)))): [batch, length, dim] → the same."""

    def __init__(self, dim: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.inside = nn.Linear(dim, hidden)
        self.out = nn.Linear(hidden, dim)
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = x + self.dropout(self.out(self.dropout(F.relu(self.inside(self.norm(x))))))
        return result


class TokenEmbedding(nn.Module):
    """Tokens times √dim, plus sines and cosines of their places: int64 [batch, length] → [batch, length, dim]."""

    def __init__(self, vocabulary: int, dim: int, dropout: float) -> None:
        super().__init__()
        self.token = nn.Embedding(vocabulary, dim)
        self.dropout = Dropout(dropout)

    def forward(self, tokens: Tensor) -> Tensor:
        embedded = self.token(tokens)
        dim = embedded.shape[-1]
        wide = torch.arange(0, dim, 2, device=embedded.device, dtype=torch.float32)
        angles = torch.arange(tokens.shape[-1], device=embedded.device)[:, None] * 10000.0 ** (-wide / dim)
        places = torch.stack([angles.sin(), angles.cos()], -1).flatten(1)[:, :dim]
        result: Tensor = self.dropout(embedded * math.sqrt(dim) + places.to(embedded.dtype))
        return result
