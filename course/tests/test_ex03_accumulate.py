"""Exercise 3. The first line of each test is what `python -m course.check 3` prints."""

from copy import deepcopy

import torch
from torch import Tensor, nn

from course.chosen import load

ex = load("ex03_accumulate")
mse = nn.functional.mse_loss


def a_model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2)).double()


def a_batch() -> tuple[Tensor, Tensor]:
    return torch.randn(10, 4, dtype=torch.float64), torch.randn(10, 2, dtype=torch.float64)


def grads(model: nn.Module) -> list[Tensor]:
    return [p.grad for p in model.parameters()]


def close(found: list[Tensor], expected: list[Tensor]) -> bool:
    return all(torch.allclose(a, b, rtol=1e-12, atol=1e-15) for a, b in zip(found, expected, strict=True))


def test_accumulated_is_full() -> None:
    """Accumulated gradients are those of the full batch, though sizes differ"""
    model, (x, y) = a_model(), a_batch()
    full = deepcopy(model)
    expected = mse(full(x), y)
    expected.backward()
    loss = ex.accumulate(model, mse, x, y, 4)
    assert torch.allclose(loss, expected, rtol=1e-12)
    assert not loss.requires_grad
    assert close(grads(model), grads(full))


def test_gradients_add_up() -> None:
    """A second call adds to the gradients of the first"""
    model, (x, y) = a_model(), a_batch()
    ex.accumulate(model, mse, x, y, 2)
    once = [g.clone() for g in grads(model)]
    ex.accumulate(model, mse, x, y, 2)
    assert close(grads(model), [2 * g for g in once])


def test_the_graph_ends_at_the_edge() -> None:
    """A stage's graph ends at its input: the leaf"""
    before = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    stage = nn.Linear(4, 2).double()
    leaf, output = ex.stage_forward(stage, before * 2)
    assert leaf.is_leaf
    assert leaf.requires_grad
    grad = ex.stage_backward(leaf, output, torch.ones_like(output))
    assert torch.equal(grad, torch.ones_like(output) @ stage.weight)
    assert before.grad is None


def test_token_ids_have_no_gradient() -> None:
    """Nothing travels back for token ids"""
    stage = nn.Embedding(5, 3)
    leaf, output = ex.stage_forward(stage, torch.tensor([1, 4, 1]))
    assert ex.stage_backward(leaf, output, torch.ones_like(output)) is None
    assert stage.weight.grad[1].tolist() == [2, 2, 2]


def test_stages_give_the_same_bits() -> None:
    """Cut into stages, loss and gradients are the same, bit by bit"""
    model, (x, y) = a_model(), a_batch()
    uncut = deepcopy(model)
    expected = ex.accumulate(uncut, mse, x, y, 4)
    loss = ex.step([model[:2], model[2:4], model[4:]], mse, x, y, 4)
    assert torch.equal(loss, expected)
    assert all(torch.equal(a, b) for a, b in zip(grads(model), grads(uncut), strict=True))
