"""Layers that share a parameter or a buffer: a cut must leave them in one stage, so whoever chooses one has to know."""

from collections.abc import Mapping

from torch import nn


def tied_layers(layers: Mapping[str, nn.Module]) -> tuple[tuple[int, int], ...]:
    """Of each tensor that several layers share, the first and the last of them, by number."""
    span: dict[int, tuple[int, int]] = {}
    for index, layer in enumerate(layers.values()):
        for tensor in (*layer.parameters(), *layer.buffers()):
            span[id(tensor)] = (span.get(id(tensor), (index,))[0], index)
    return tuple(sorted({(first, last) for first, last in span.values() if first < last}))
