"""Exercise 5. The first line of each test is what `python -m course.check 5` prints."""

from copy import deepcopy

import pytest
import torch
from torch import Tensor, nn

import headrace as hr
from course.chosen import load

ex = load("ex05_gpipe")
mse = nn.functional.mse_loss


def a_model(dropout: float = 0.0) -> nn.Sequential:
    layers = [nn.Linear(4, 8), nn.Tanh(), nn.Dropout(dropout), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2)]
    return nn.Sequential(*layers).double()


def a_batch() -> tuple[Tensor, Tensor]:
    return torch.randn(10, 4, dtype=torch.float64), torch.randn(10, 2, dtype=torch.float64)


def grads(model: nn.Module) -> list[Tensor]:
    return [p.grad for p in model.parameters()]


def test_one_stage_forward_and_backward() -> None:
    """One stage: forward keeps, backward forgets, both are written down"""
    pipe = ex.GPipe(a_model(), mse, [2, 2, 2], 2)
    x = torch.randn(5, 8, dtype=torch.float64)
    output = pipe.stage_f(1, 0, x)
    assert list(pipe.kept) == [(1, 0)]
    assert not output.requires_grad
    grad = pipe.stage_b(1, 0, torch.ones_like(output))
    assert not pipe.kept
    assert grad.shape == x.shape
    assert pipe.rows == [[], ["1F0", "1B0"], []]


@pytest.mark.parametrize("recompute", [False, True])
def test_same_as_the_plain_model(recompute: bool) -> None:
    """Loss and gradients are those of the plain model"""
    model, (x, y) = a_model(), a_batch()
    plain = deepcopy(model)
    expected = mse(plain(x), y)
    expected.backward()
    loss = ex.GPipe(model, mse, [2, 3, 1], 4, recompute).step(x, y)
    assert torch.allclose(loss, expected, rtol=1e-12)
    assert all(torch.allclose(a, b, rtol=1e-12, atol=1e-15) for a, b in zip(grads(model), grads(plain), strict=True))


def test_recompute_changes_no_bit() -> None:
    """Recompute changes no bit, with dropout"""
    model, (x, y) = a_model(dropout=0.5), a_batch()
    again = deepcopy(model)
    torch.manual_seed(1)
    loss = ex.GPipe(model, mse, [2, 3, 1], 4).step(x, y)
    torch.manual_seed(1)
    assert torch.equal(ex.GPipe(again, mse, [2, 3, 1], 4, recompute=True).step(x, y), loss)
    assert all(torch.equal(a, b) for a, b in zip(grads(model), grads(again), strict=True))


def test_token_ids() -> None:
    """A model that begins with an embedding works: token ids have no gradient"""
    model = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 2))
    ex.GPipe(model, nn.functional.cross_entropy, [1, 1], 3).step(torch.tensor([0, 1, 2, 3, 4]), torch.ones(5).long())
    assert all(p.grad is not None for p in model.parameters())


def test_it_is_gpipe() -> None:
    """Headrace proves the order, and it is the catalogue's gpipe"""
    pipe = ex.GPipe(a_model(), mse, [2, 3, 1], 4)
    pipe.step(*a_batch())
    schedule = hr.schedule.parse("\n".join(",".join(row) for row in pipe.rows))
    assert hr.schedule.check(schedule).peak_in_flight == (4, 4, 4)
    assert schedule.rows == hr.schedule.build("gpipe", ranks=3, micro_batches=4).rows


def test_it_learns() -> None:
    """Fifty steps down the gradient bring the loss down"""
    model, (x, y) = a_model(), a_batch()
    pipe = ex.GPipe(model, mse, [2, 3, 1], 4)
    losses = []
    for _ in range(50):
        losses.append(pipe.step(x, y).item())
        with torch.no_grad():
            for p in model.parameters():
                p.sub_(0.2 * p.grad)
                p.grad = None
    assert losses[-1] < 0.7 * losses[0]
