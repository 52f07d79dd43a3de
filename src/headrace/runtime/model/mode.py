"""Training flags of modules, set for a while and put back one by one."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def evaluating(layers: Iterable[nn.Module]) -> Iterator[None]:
    """Within it, all modules of `layers` are in evaluation mode; afterwards each is as it was."""
    modules = [module for layer in layers for module in layer.modules()]
    flags = [module.training for module in modules]
    for module in modules:
        module.training = False
    try:
        yield
    finally:
        for module, training in zip(modules, flags, strict=True):
            module.training = training
