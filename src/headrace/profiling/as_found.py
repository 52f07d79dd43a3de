"""Leave a model and the random numbers as they were found, whatever runs in between and however it ends.

A forward may write to more than its output: BatchNorm moves its statistics, an embedding with `max_norm` rescales its
weights, a layer may put a new tensor where a buffer was. So every parameter and buffer is copied; they are put back by
identity first, by content then, and only where something changed: a graph that a user still holds stays valid.
"""

import random
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

import numpy as np
import torch
from torch import Tensor, nn


@contextmanager
def left_as_found(roots: Sequence[nn.Module], devices: Sequence[torch.device]) -> Iterator[None]:
    """Put back parameters, buffers, training mode and generators (torch on CPU and `devices`, numpy, random).

    What a layer keeps elsewhere, such as a count in a plain attribute, is not known and not put back.
    """
    modules = list(dict.fromkeys(module for root in roots for module in root.modules()))
    found = [(module, module.training, dict(module._parameters), dict(module._buffers)) for module in modules]
    copies: dict[int, tuple[Tensor, int, Tensor]] = {}
    for _, _, parameters, buffers in found:
        for tensor in (*parameters.values(), *buffers.values()):
            if tensor is not None and id(tensor) not in copies:
                copies[id(tensor)] = (tensor, tensor._version, tensor.detach().clone())
    with _generators(devices):
        try:
            yield
        finally:
            for module, training, parameters, buffers in found:
                module.training = training
                for now, before in ((module._parameters, parameters), (module._buffers, buffers)):
                    if list(now) != list(before) or any(now[name] is not before[name] for name in before):
                        now.clear()
                        now.update(before)  # type: ignore[arg-type]
            with torch.no_grad():
                for tensor, version, content in copies.values():
                    if tensor._version != version or not torch.equal(tensor, content):
                        tensor.copy_(content)


@contextmanager
def _generators(devices: Sequence[torch.device]) -> Iterator[None]:
    python, numpy = random.getstate(), np.random.get_state()  # layers may draw from them too
    with ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng(devices=[]))
        for device in devices:
            stack.enter_context(torch.random.fork_rng(devices=[device.index or 0], device_type=device.type))
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)
