"""The chain of layers that a model is."""

from collections import OrderedDict

import pytest
import torch
from torch import nn

from headrace.runtime.model.chain import layers_of
from headrace.runtime.model.cut import CutModel


def test_plain_sequentials_are_opened_and_others_are_layers() -> None:
    class Block(nn.Sequential):
        pass

    hooked = nn.Sequential(nn.Tanh())
    hooked.register_forward_hook(lambda *_: None)
    model = nn.Sequential(
        OrderedDict(a=nn.Tanh(), b=nn.Sequential(nn.Tanh(), nn.Sequential(nn.Tanh())), c=Block(nn.Tanh()), d=hooked)
    )
    assert list(layers_of(model)) == ["a", "b.0", "b.1.0", "c", "d"]


def test_an_empty_sequential_is_a_layer_that_does_nothing() -> None:
    assert list(layers_of(nn.Sequential(nn.Sequential(), nn.Tanh()))) == ["0", "1"]


def test_a_layer_that_occurs_twice_has_both_places() -> None:
    layer = nn.Linear(1, 1)
    found = layers_of(nn.Sequential(layer, nn.Tanh(), layer))
    assert found["0"] is found["2"] is layer


@pytest.mark.parametrize(("layers", "stages", "cut"), [(4, 2, (2, 2)), (5, 2, None), (7, 7, (1,) * 7)])
def test_the_default_cut_is_as_even_as_it_goes(layers: int, stages: int, cut: tuple[int, ...] | None) -> None:
    model = CutModel(nn.Sequential(*(nn.Tanh() for _ in range(layers))), stages)
    assert sum(model.cut) == layers
    assert max(model.cut) - min(model.cut) <= 1
    assert cut is None or model.cut == cut
    assert model.first_layer == [sum(model.cut[:stage]) for stage in range(stages)]
    assert [list(of_stage) for of_stage in model.stage_layers] == [
        [str(first + i) for i in range(count)] for first, count in zip(model.first_layer, model.cut, strict=True)
    ]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_torchscript_is_refused() -> None:
    scripted = torch.jit.script(nn.Linear(2, 2))
    with pytest.raises(TypeError, match=r"layer 1.0 is TorchScript, .* compile that with torch\.compile"):
        layers_of(nn.Sequential(nn.Linear(2, 2), nn.Sequential(scripted)))
