"""Exercise 4. The first line of each test is what `python -m course.check 4` prints."""

from copy import deepcopy

import pytest
import torch
from torch import nn

from course.chosen import load

ex = load("ex04_recompute")


def a_stage() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Dropout(0.5), nn.Linear(16, 2)).double()


def test_nothing_is_kept() -> None:
    """The first forward keeps no graph, only its input and the random state"""
    x = torch.randn(6, 4, dtype=torch.float64, requires_grad=True)
    output, saved = ex.forward_and_drop(a_stage(), x * 1)
    assert not output.requires_grad
    assert not saved.x.requires_grad


def test_the_same_mask() -> None:
    """The second forward draws the dropout mask of the first"""
    stage, x = a_stage(), torch.randn(6, 4, dtype=torch.float64)
    output, saved = ex.forward_and_drop(stage, x)
    torch.randn(100)
    leaf, again = ex.recompute(stage, saved)
    assert torch.equal(output, again)
    assert leaf.is_leaf
    assert again.requires_grad


def test_later_random_numbers_stay() -> None:
    """What is drawn after a recompute is what would have been drawn without"""
    stage, x = a_stage(), torch.randn(6, 4, dtype=torch.float64)
    _, saved = ex.forward_and_drop(stage, x)
    state = torch.get_rng_state()
    expected = torch.randn(3)
    torch.set_rng_state(state)
    ex.recompute(stage, saved)
    assert torch.equal(torch.randn(3), expected)


def test_later_random_numbers_stay_after_an_error() -> None:
    """… even if the stage raises"""
    stage = a_stage()
    _, saved = ex.forward_and_drop(stage, torch.randn(6, 4, dtype=torch.float64))
    wrong = saved._replace(x=torch.zeros(6, 5, dtype=torch.float64))
    state = torch.get_rng_state()
    expected = torch.randn(3)
    torch.set_rng_state(state)
    with pytest.raises(RuntimeError, match="shapes"):
        ex.recompute(stage, wrong)
    assert torch.equal(torch.randn(3), expected)


def test_gradients_are_the_same_bits() -> None:
    """Gradients are those without recompute, bit by bit, with two micro-batches in flight"""
    stage = a_stage()
    plain = deepcopy(stage)
    xs = [torch.randn(6, 4, dtype=torch.float64) for _ in range(2)]
    torch.manual_seed(1)
    leaves = [x.clone().requires_grad_() for x in xs]
    outputs = [plain(leaf) for leaf in leaves]
    for output in outputs:
        output.backward(torch.ones_like(output))
    torch.manual_seed(1)
    saved = [ex.forward_and_drop(stage, x)[1] for x in xs]
    found = [ex.recompute_backward(stage, s, torch.ones(6, 2, dtype=torch.float64)) for s in saved]
    assert all(torch.equal(f, leaf.grad) for f, leaf in zip(found, leaves, strict=True))
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(stage.parameters(), plain.parameters(), strict=True))
