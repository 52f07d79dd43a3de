"""Exercise 2. The first line of each test is what `python -m course.check 2` prints."""

import pytest
import torch
from torch import nn

from course.chosen import load

ex = load("ex02_forward")


def a_model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2)).double()


def test_cut_shares_the_layers() -> None:
    """Stages hold the layers of the model, not copies"""
    model = a_model()
    stages = ex.cut(model, [2, 2, 1])
    assert [len(stage) for stage in stages] == [2, 2, 1]
    assert [layer for stage in stages for layer in stage] == list(model)


def test_cut_leaves_nothing_out() -> None:
    """A cut that does not fit the model is refused with a ValueError"""
    with pytest.raises(ValueError, match=r".+"):
        ex.cut(a_model(), [2, 2])


def test_clock_cycles_of_the_picture() -> None:
    """The clock cycles are those of the picture"""
    assert [list(cycle) for cycle in ex.clock_cycles(4, 3)] == [
        [(0, 0)],
        [(0, 1), (1, 0)],
        [(0, 2), (1, 1), (2, 0)],
        [(0, 3), (1, 2), (2, 1)],
        [(1, 3), (2, 2)],
        [(2, 3)],
    ]


def test_fewer_micro_batches_than_stages() -> None:
    """m < p works too: every cell once, and never before what it needs"""
    seen = []
    for cycle in ex.clock_cycles(2, 4):
        assert all(stage == 0 or (stage - 1, k) in seen for stage, k in cycle)
        seen += cycle
    assert sorted(seen) == [(s, k) for s in range(4) for k in range(2)]


def test_forward_is_the_model() -> None:
    """The outputs are those of the uncut model, bit by bit"""
    model, x = a_model(), torch.randn(10, 4, dtype=torch.float64)
    pieces = list(x.tensor_split(4))
    outputs = ex.forward([model[:2], model[2:4], model[4:]], pieces)
    assert all(torch.equal(o, model(piece)) for o, piece in zip(outputs, pieces, strict=True))
    assert torch.allclose(torch.cat(list(outputs)), model(x), rtol=1e-12, atol=0)


def test_forward_goes_by_the_clock() -> None:
    """Stages are called in the order of the clock cycles"""
    calls = []
    stages = [nn.Identity() for _ in range(3)]
    for s, stage in enumerate(stages):
        stage.register_forward_hook(lambda _, inputs, __, s=s: calls.append((s, int(inputs[0]))))
    ex.forward(stages, [torch.tensor(k) for k in range(4)])
    assert calls == [(s, t - s) for t in range(6) for s in range(3) if 0 <= t - s < 4]


def test_bubble() -> None:
    """The bubble is (p − 1) / (m + p − 1)"""
    for m, p in [(4, 3), (1, 4), (32, 8), (5, 1)]:
        assert ex.bubble(m, p) == pytest.approx((p - 1) / (m + p - 1))
