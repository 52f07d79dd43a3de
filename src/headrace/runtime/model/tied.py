"""Layers that share a parameter or a buffer: a cut must leave them in one stage, which holds that tensor once."""

from collections.abc import Iterable, Mapping

from torch import Tensor, nn


def tied_layers(layers: Mapping[str, nn.Module]) -> tuple[tuple[int, int], ...]:
    """Of each tensor that several layers share, the first and the last of them, by number."""
    span: dict[int, tuple[int, int]] = {}
    for index, layer in enumerate(layers.values()):
        for tensor in (*layer.parameters(), *layer.buffers()):
            span[id(tensor)] = (span.get(id(tensor), (index,))[0], index)
    return tuple(sorted({(first, last) for first, last in span.values() if first < last}))


def first_held(layers: Iterable[nn.Module]) -> list[list[Tensor]]:
    """The parameters and buffers of each layer that no layer before it has."""
    seen: set[int] = set()
    found: list[list[Tensor]] = []
    for layer in layers:
        own = {id(tensor): tensor for tensor in (*layer.parameters(), *layer.buffers())}
        found.append([tensor for key, tensor in own.items() if key not in seen])
        seen |= own.keys()
    return found
