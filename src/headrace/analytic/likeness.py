"""When are two layers the same but for their numbers? Then one trace does for both.

A Transformer of 128 layers has two kinds of them, so this is what makes billions of parameters a matter of a second.
Layers are alike if they have the same class, mode, attributes and hooks, and parts that are alike; what cannot be
compared safely, such as a list, a function or an object, must be the very same one.
"""

from collections.abc import Hashable
from typing import Any

import torch
from torch import Tensor, nn

_PLAIN = (int, float, complex, bool, str, bytes, type(None), torch.dtype, torch.device, type)
_OF_MODULES = ("_parameters", "_buffers", "_modules")


def likeness(module: nn.Module) -> Hashable:
    """Something equal for modules that are alike."""
    return (
        type(module),
        tuple((name, _of(value)) for name, value in vars(module).items() if name not in _OF_MODULES),
        tuple((name, _tensor(tensor)) for name, tensor in module._parameters.items()),
        tuple((name, _tensor(tensor)) for name, tensor in module._buffers.items()),
        tuple((name, None if part is None else likeness(part)) for name, part in module._modules.items()),
    )


def _tensor(tensor: Tensor | None) -> Hashable:
    if tensor is None:
        return None
    return tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.requires_grad


def _of(value: Any) -> Hashable:
    if isinstance(value, _PLAIN):
        return type(value), value
    if isinstance(value, tuple):
        return type(value), tuple(map(_of, value))
    if isinstance(value, (dict, set, list)) and not value:
        return type(value)
    return type(value), id(value)
