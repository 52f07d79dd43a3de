"""The user's model, cut: which layers each stage has, and their parameters under the unsplit model's names."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, islice
from typing import TypeVar

from torch import Tensor, nn

from headrace.partition import partition
from headrace.runtime.model.chain import layers_of
from headrace.runtime.model.tied import tied_layers

T = TypeVar("T", bound=Tensor)


class CutModel:
    """A chain of layers and the cut through it.

    Args:
        model: an nn.Sequential.
        stages: how many stages there are.
        cut: how many layers each stage gets, in order; None for equally many (as far as that goes and leaves tied
            layers together).

    Raises:
        TypeError, ValueError: the model cannot be cut, `cut` does not fit it, or a parameter is in two stages.
    """

    def __init__(self, model: nn.Sequential, stages: int, cut: Sequence[int] | None = None) -> None:
        self.layers = layers_of(model)
        self.cut = _even_cut(self.layers, stages) if cut is None else _valid_cut(cut, len(self.layers), stages)
        names = iter(self.layers)
        self.stage_layers = [{name: self.layers[name] for name in islice(names, count)} for count in self.cut]
        self.first_layer = [0, *accumulate(self.cut)][:-1]
        self._refuse_tied_weights()

    def layers_on(self, stages: Sequence[int]) -> dict[str, nn.Module]:
        """The layers of several stages."""
        return {name: layer for stage in stages for name, layer in self.stage_layers[stage].items()}

    def signature(self) -> list[tuple[str, tuple[int, ...], str]]:
        """Names, shapes and dtypes of everything that training changes, to compare between processes."""
        found = [*named_parameters(self.layers), *named_buffers(self.layers)]
        return [(name, tuple(tensor.shape), str(tensor.dtype)) for name, tensor in found]

    def _refuse_tied_weights(self) -> None:
        owner: dict[int, tuple[int, str]] = {}
        for stage, layers in enumerate(self.stage_layers):
            for what, found in (("parameter", named_parameters(layers)), ("buffer", named_buffers(layers))):
                for name, tensor in found:
                    first_stage, first_name = owner.setdefault(id(tensor), (stage, name))
                    if first_stage != stage:
                        raise ValueError(
                            f"{first_name} in stage {first_stage} and {name} in stage {stage} are the same {what}, "
                            f"and {what}s tied across stages are not supported yet: choose a cut= that keeps both "
                            "layers in one stage, or untie them"
                        )


def _even_cut(layers: Mapping[str, nn.Module], stages: int) -> tuple[int, ...]:
    even, tied = [1] * len(layers), tied_layers(layers)
    try:
        return partition(even, stages, tied)
    except ValueError:
        return partition(even, stages)  # whose stages name what is tied across them


def _valid_cut(cut: Sequence[int], layers: int, stages: int) -> tuple[int, ...]:
    counts = tuple(cut) if isinstance(cut, Iterable) else (cut,)
    if any(not isinstance(count, int) or isinstance(count, bool) for count in counts):
        raise TypeError(f"cut={cut!r} must be whole numbers: how many layers each stage gets")
    if len(counts) != stages or sum(counts) != layers or min(counts) < 1:
        raise ValueError(
            f"cut={counts} does not fit: it must give each of {stages} stages at least one layer, "
            f"{layers} layers in all"
        )
    return counts


def named_parameters(layers: Mapping[str, nn.Module]) -> Iterator[tuple[str, nn.Parameter]]:
    """Each parameter once, by its name in the unsplit model."""
    return _once(pair for name, layer in layers.items() for pair in layer.named_parameters(name))


def named_buffers(layers: Mapping[str, nn.Module]) -> Iterator[tuple[str, Tensor]]:
    """Each buffer once, by its name in the unsplit model."""
    return _once(pair for name, layer in layers.items() for pair in layer.named_buffers(name))


def names_of(layers: Mapping[str, nn.Module], wanted: Callable[[nn.Module], bool]) -> list[str]:
    """The names, in the unsplit model, of the modules that are `wanted`."""
    return [
        f"{layer_name}.{name}".rstrip(".")
        for layer_name, layer in layers.items()
        for name, module in layer.named_modules()
        if wanted(module)
    ]


def refuse_gradient_hooks(parameters: Iterable[tuple[str, nn.Parameter]], why: str) -> None:
    """Refuse hooks on the gradients of parameters where they would see something else than in the unsplit model.

    Raises:
        ValueError: a parameter has one.
    """
    hooked = [name for name, p in parameters if p._backward_hooks or getattr(p, "_post_accumulate_grad_hooks", None)]
    if hooked:
        raise ValueError(
            f"{', '.join(hooked)} have hooks on their gradients, {why}: change .grad after step() or in the optimizer, "
            "or use another schedule"
        )


def _once(named: Iterable[tuple[str, T]]) -> Iterator[tuple[str, T]]:
    """Those whose tensor did not come before: a layer that occurs twice has each of its tensors once."""
    seen: set[int] = set()
    for name, tensor in named:
        if id(tensor) not in seen:
            seen.add(id(tensor))
            yield name, tensor
