"""Encoder and decoder as one chain: the translation model of GPipe, T(layers, hidden, heads) (Huang et al., 2019).

    (source, target) ─ embedding ─ encoder0 … ─ bridge ─ decoder0 … ─ head ─▶ logits [batch, target length, vocabulary]
                     (x, target)             (memory, y)

What passes from layer to layer is a pair, as decoders need the encoder's result and the sentence so far.

The paper gives hidden and heads, not the rest. A width of 1024 with 64 per head and 64,000 tokens gives all the sizes
it names: T(6, 8192, 16) 0.4B, T(24, 8192, 16) and T(12, 16384, 32) 1.2B, T(32, 16384, 32) 3.1B, T(64, 16384, 32) 6.0B.
"""

from collections import OrderedDict

from torch import Tensor, nn

from headrace.models.attention import Attention, FeedForward, TokenEmbedding
from headrace.schedule.numbers import at_least


def translation(
    layers: int = 6,
    hidden: int = 8192,
    heads: int = 16,
    *,
    dim: int = 1024,
    head_dim: int = 64,
    vocabulary: int = 64_000,
    dropout: float = 0.1,
    fused: bool = True,
) -> nn.Sequential:
    """T(layers, hidden, heads): as many encoder as decoder layers.

    Args:
        layers: how many encoders, and how many decoders.
        hidden: width inside the feed-forward.
        heads: attention heads per layer.
        dim: width between layers.
        head_dim: width of a head.
        vocabulary: how many tokens there are, in all languages together.
        dropout: share of activations dropped in training, in [0, 1).
        fused: whether attention is one kernel, which keeps no [length, length] matrix for the backward.

    Raises:
        TypeError, ValueError: an argument is impossible.
    """
    at_least(1, layers=layers, hidden=hidden, heads=heads, dim=dim, head_dim=head_dim, vocabulary=vocabulary)
    if not 0 <= dropout < 1:
        raise ValueError(f"dropout={dropout!r} must be in [0, 1)")
    sizes = (dim, hidden, heads, head_dim, dropout, fused)
    return nn.Sequential(
        OrderedDict(
            [
                ("embedding", SourceEmbedding(vocabulary, dim, dropout)),
                *((f"encoder{i}", EncoderLayer(*sizes)) for i in range(layers)),
                ("bridge", Bridge(vocabulary, dim, dropout)),
                *((f"decoder{i}", DecoderLayer(*sizes)) for i in range(layers)),
                ("head", TargetHead(vocabulary, dim)),
            ]
        )
    )


def transformer_6b() -> nn.Sequential:
    """T(64, 16384, 32): the model that translates 102 languages into English, 6 billion parameters."""
    return translation(64, 16384, 32)


class SourceEmbedding(nn.Module):
    """(source tokens, target tokens) → (embedded source, target tokens)."""

    def __init__(self, vocabulary: int, dim: int, dropout: float) -> None:
        super().__init__()
        self.tokens = TokenEmbedding(vocabulary, dim, dropout)

    def forward(self, sentences: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        source, target = sentences
        return self.tokens(source), target


class EncoderLayer(nn.Module):
    """(x, target) → (x, target): every position of the source sees every other."""

    def __init__(self, dim: int, hidden: int, heads: int, head_dim: int, dropout: float, fused: bool) -> None:
        super().__init__()
        self.attention = Attention(dim, heads, head_dim, causal=False, dropout=dropout, fused=fused)
        self.feed_forward = FeedForward(dim, hidden, dropout)

    def forward(self, state: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        x, target = state
        return self.feed_forward(self.attention(x)), target


class Bridge(nn.Module):
    """(x, target tokens) → (memory, embedded target): from the encoder to the decoder.

    The decoder's embedding is the head's matrix in most translation models, which could not be where both are on
    different ranks; here it shares nothing. The memory is normed, as the encoder's layers norm only what they get.
    """

    def __init__(self, vocabulary: int, dim: int, dropout: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.tokens = TokenEmbedding(vocabulary, dim, dropout)

    def forward(self, state: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        x, target = state
        return self.norm(x), self.tokens(target)


class DecoderLayer(nn.Module):
    """(memory, y) → (memory, y): causal attention over y, attention over memory, feed-forward."""

    def __init__(self, dim: int, hidden: int, heads: int, head_dim: int, dropout: float, fused: bool) -> None:
        super().__init__()
        self.itself = Attention(dim, heads, head_dim, causal=True, dropout=dropout, fused=fused)
        self.source = Attention(dim, heads, head_dim, causal=False, dropout=dropout, fused=fused)
        self.feed_forward = FeedForward(dim, hidden, dropout)

    def forward(self, state: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        memory, y = state
        return memory, self.feed_forward(self.source(self.itself(y), memory))


class TargetHead(nn.Module):
    """(memory, y) → logits."""

    def __init__(self, vocabulary: int, dim: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.logits = nn.Linear(dim, vocabulary)

    def forward(self, state: tuple[Tensor, Tensor]) -> Tensor:
        _, y = state
        logits: Tensor = self.logits(self.norm(y))
        return logits
