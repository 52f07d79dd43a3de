"""The Transformer whose size GPipe's Table 1 counts, as one plain `nn.Sequential` (Huang et al., 2019).

    tokens [batch, length] ─ embedding ─ block0 … blockL−1 ─ head ─▶ logits [batch, length, vocabulary]

A block has 4·dim² + 2·dim·hidden weights with their biases, and two norms; embedding and head have dim · vocabulary
each. The head's bias is needed: without it the table's 282.2M and 785.8M come out as 282.1M and 785.7M.
"""

from collections import OrderedDict

from torch import nn

from headrace.models.attention import Attention, FeedForward, TokenEmbedding
from headrace.schedule.numbers import at_least


def transformer(
    layers: int = 6,
    dim: int = 2048,
    *,
    hidden: int = 8192,
    heads: int = 32,
    vocabulary: int = 32_000,
    dropout: float = 0.1,
    fused: bool = True,
) -> nn.Sequential:
    """A causal language model; build it `with torch.device("meta")` where it need not hold weights.

    Args:
        layers: how many blocks, L.
        dim: width between layers; a multiple of `heads`.
        hidden: width inside the feed-forward.
        heads: attention heads per block.
        vocabulary: how many tokens there are.
        dropout: share of activations dropped in training, in [0, 1).
        fused: whether attention is one kernel, which keeps no [length, length] matrix for the backward.

    Raises:
        TypeError, ValueError: an argument is impossible.
    """
    at_least(1, layers=layers, dim=dim, hidden=hidden, heads=heads, vocabulary=vocabulary)
    if dim % heads:
        raise ValueError(f"dim={dim} must be a multiple of heads={heads}, for every head has the same width")
    if not 0 <= dropout < 1:
        raise ValueError(f"dropout={dropout!r} must be in [0, 1)")
    return nn.Sequential(
        OrderedDict(
            [
                ("embedding", TokenEmbedding(vocabulary, dim, dropout)),
                *((f"block{i}", _block(dim, hidden, heads, dropout, fused)) for i in range(layers)),
                ("head", nn.Linear(dim, vocabulary)),
            ]
        )
    )


def _block(dim: int, hidden: int, heads: int, dropout: float, fused: bool) -> nn.Sequential:
    """A plain Sequential, so that a cut may fall inside a block: the head costs more than one, and cuts get finer."""
    attention = Attention(dim, heads, dim // heads, causal=True, dropout=dropout, fused=fused)
    return nn.Sequential(OrderedDict(attention=attention, feed_forward=FeedForward(dim, hidden, dropout)))
