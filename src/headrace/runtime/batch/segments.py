"""Cut the sequences of a micro-batch into segments, and put outputs of segments together again.

    one micro-batch, 2 rows of 7 tokens, 3 segments        t t t │ t t │ t t
                                                           t t t │ t t │ t t

Each segment is a unit of work of its own (Seq1F1B): it enters the pipeline sooner and holds less.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from headrace.runtime.stage.boundary import Value, flatten


def cut_sequences(name: str, value: Value, segments: int, dim: int) -> list[Value]:
    """`value` in `segments` pieces along `dim`; what is not a tensor goes to every one.

    Raises:
        ValueError: a tensor has no such dim, or is too short to give each segment something.
    """
    leaves, structure = flatten(value)
    parts: list[Sequence[object]] = []
    for leaf in leaves:
        if not isinstance(leaf, Tensor):
            parts.append([leaf] * segments)
            continue
        if leaf.dim() <= dim or leaf.shape[dim] < segments:
            raise ValueError(
                f"{name} has a tensor of shape {tuple(leaf.shape)}, which cannot be cut into {segments} segments along "
                f"sequence_dim={dim}: use a schedule with fewer segments, or say with sequence_dim where the tokens are"
            )
        parts.append(torch.tensor_split(leaf, segments, dim=dim))
    return [pytree.tree_unflatten([part[i] for part in parts], structure) for i in range(segments)]


def lengths(segments: Sequence[Value], dim: int) -> list[int]:
    """How long each segment is along `dim`."""
    first = (next(leaf for leaf in flatten(value)[0] if isinstance(leaf, Tensor)) for value in segments)
    return [tensor.shape[dim] for tensor in first]
