"""Exercise 10. The first line of each test is what `python -m course.check 10` prints."""

from copy import deepcopy

import pytest
import torch
from torch import nn

import headrace as hr
from course.chosen import load

ex = load("ex10_zero_bubble")
SIZES = [(1, 3), (2, 4), (3, 4), (4, 2), (4, 12), (12, 13)]  # (p, m)


def words(text: str) -> list[str]:
    return text.split()


def rows(p: int, m: int) -> list[list[str]]:
    return [ex.row(rank, p, m) for rank in range(p)]


def catalogue(name: str, p: int, m: int) -> list[list[str]]:
    return [[str(action) for action in row] for row in hr.schedule.build(name, ranks=p, micro_batches=m).rows]


def test_input_gradient() -> None:
    """I of a linear layer is what autograd says, and leaves the weights alone"""
    layer = nn.Linear(4, 3).double()
    x = torch.randn(5, 4, dtype=torch.float64, requires_grad=True)
    grad = torch.randn(5, 3, dtype=torch.float64)
    found = ex.input_gradient(layer, grad)
    assert layer.weight.grad is None
    layer(x).backward(grad)
    assert torch.allclose(found, x.grad, rtol=1e-12, atol=1e-15)


def test_weight_gradient() -> None:
    """W of a linear layer is what autograd says, and adds up"""
    layer, grad = nn.Linear(4, 3).double(), torch.randn(5, 3, dtype=torch.float64)
    same, x = deepcopy(layer), torch.randn(5, 4, dtype=torch.float64)
    for _ in range(2):
        ex.weight_gradient(layer, x, grad)
        same(x).backward(grad)
    assert torch.allclose(layer.weight.grad, same.weight.grad, rtol=1e-12, atol=1e-15)
    assert torch.allclose(layer.bias.grad, same.bias.grad, rtol=1e-12, atol=1e-15)


def test_a_whole_stage() -> None:
    """A stage's I comes first and its W later; together they are autograd's backward"""
    stage = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2)).double()
    same, x = deepcopy(stage), torch.randn(5, 4, dtype=torch.float64, requires_grad=True)
    output, inputs = ex.forward(stage, x.detach())
    assert torch.equal(output, same(x))
    grad = torch.randn_like(output)
    found, postponed = ex.backward_input(stage, inputs, grad)
    assert all(p.grad is None for p in stage.parameters())
    for item in postponed:
        ex.weight_gradient(*item)
    same(x).backward(grad)
    assert torch.allclose(found, x.grad, rtol=1e-12, atol=1e-15)
    for a, b in zip(stage.parameters(), same.parameters(), strict=True):
        assert torch.allclose(a.grad, b.grad, rtol=1e-12, atol=1e-15)


def test_rows_of_the_picture() -> None:
    """The rows are those of the picture"""
    assert ex.row(0, 3, 4) == words("0F0 0F1 0F2 0I0 0W0 0F3 0I1 0W1 0I2 0W2 0I3 0W3")
    assert ex.row(1, 3, 4) == words("1F0 1F1 1I0 1F2 1I1 1W0 1F3 1I2 1W1 1I3 1W2 1W3")
    assert ex.row(2, 3, 4) == words("2F0 2I0 2F1 2I1 2F2 2I2 2W0 2F3 2I3 2W1 2W2 2W3")


def test_rows_of_any_size() -> None:
    """For any p and m they are the catalogue's zb-h1"""
    for p, m in SIZES:
        assert rows(p, m) == catalogue("zb-h1", p, m)


def test_memory_of_one_f_one_b() -> None:
    """No rank holds more than rank 0 of 1F1B: headrace proves it"""
    for p, m in SIZES:
        proof = hr.schedule.check(hr.schedule.parse("\n".join(",".join(row) for row in rows(p, m))))
        assert max(proof.peak_in_flight) == min(p, m)


def test_a_third_of_the_bubble() -> None:
    """With F = I = W a third of the bubble is left: (p − 1)(F + I − W)"""
    assert ex.idle_seconds(catalogue("1f1b", 4, 12), 1, 1, 1) == [9] * 4
    assert ex.idle_seconds(rows(4, 12), 1, 1, 1) == [3] * 4
    assert ex.idle_seconds(rows(4, 12), 3, 2, 1) == [3 * (3 + 2 - 1)] * 4


def test_it_fills_the_bubble() -> None:
    """Where a W is free (W = 0) nothing is won"""
    for these in (rows(3, 6), catalogue("1f1b", 3, 6)):
        assert ex.idle_seconds(these, 1, 2, 0) == [2 * (1 + 2)] * 3


def test_zero_bubble_with_tensors() -> None:
    """Played with tensors, the rows give the loss and the gradients of the plain model"""
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2)).double()
    same = deepcopy(model)
    x, y = torch.randn(10, 4, dtype=torch.float64), torch.randn(10, 2, dtype=torch.float64)
    loss = ex.play(catalogue("zb-h1", 3, 4), [model[:2], model[2:4], model[4:]], nn.functional.mse_loss, x, y)
    expected = nn.functional.mse_loss(same(x), y)
    expected.backward()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-12)
    for a, b in zip(model.parameters(), same.parameters(), strict=True):
        assert torch.allclose(a.grad, b.grad, rtol=1e-12, atol=1e-15)


def test_a_deadlock_is_noticed() -> None:
    """Rows that deadlock are refused with a ValueError"""
    stages = [nn.Sequential(nn.Linear(4, 4)) for _ in range(2)]
    stuck = [words("0F0 0I0 0W0 0F1 0I1 0W1"), words("1F0 1F1 1I0 1W0 1I1 1W1")]
    with pytest.raises(ValueError, match="deadlock"):
        ex.play(stuck, stages, nn.functional.mse_loss, torch.randn(4, 4), torch.randn(4, 4))
