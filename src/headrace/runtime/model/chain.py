"""The chain of layers that a model is, under the names that the unsplit model gives them.

    Sequential(embed, Sequential(block, block), head)   →   0: embed   1.0: block   1.1: block   2: head

Plain nested Sequentials are opened, so that a cut may fall inside them.
"""

from collections.abc import Iterator

import torch
from torch import nn


def layers_of(model: nn.Sequential) -> dict[str, nn.Module]:
    """The layers of `model` in order, by their full names in it.

    Raises:
        TypeError: the model is not an nn.Sequential, or has a TorchScript layer.
        ValueError: it is empty, or has forward or backward hooks, which a split model could never run.
    """
    if not isinstance(model, nn.Sequential):
        raise TypeError(
            f"model is a {type(model).__name__}, but a pipeline cuts a chain of layers: "
            "write it as nn.Sequential(layer, layer, …), each layer handing its result to the next"
        )
    if not _runs_as_a_chain(model):
        raise TypeError(
            f"model is a {type(model).__name__} with a forward of its own, which a split model could not follow: "
            "move what it does into a layer of a plain nn.Sequential"
        )
    if _has_hooks(model):
        raise ValueError("model has hooks on the nn.Sequential itself, which never runs as a whole: hook its layers")
    layers = dict(_open(model, ""))
    if not layers:
        raise ValueError("model is an empty nn.Sequential: there is nothing to train")
    for name, layer in layers.items():
        if any(isinstance(module, torch.jit.ScriptModule) for module in layer.modules()):
            raise TypeError(
                f"layer {name} is TorchScript, whose parameters and buffers cannot be looked after: pass the "
                "module that it was made from, or compile that with torch.compile"
            )
    return layers


def _open(chain: nn.Sequential, prefix: str) -> Iterator[tuple[str, nn.Module]]:
    # not named_children(): that skips the second place of a layer that occurs twice
    for name, layer in chain._modules.items():
        if isinstance(layer, nn.Sequential) and _is_plain(layer):
            yield from _open(layer, f"{prefix}{name}.")
        elif layer is not None:
            yield prefix + name, layer


def _is_plain(chain: nn.Sequential) -> bool:
    return type(chain) is nn.Sequential and _runs_as_a_chain(chain) and len(chain) > 0 and not _has_hooks(chain)


def _runs_as_a_chain(chain: nn.Sequential) -> bool:
    return type(chain).forward is nn.Sequential.forward and "forward" not in vars(chain)


def _has_hooks(module: nn.Module) -> bool:
    return any(
        getattr(module, hooks)
        for hooks in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    )
