"""Exercise 9. The first line of each test is what `python -m course.check 9` prints."""

from copy import deepcopy

import pytest
import torch
from torch import Tensor, nn

from course.chosen import load

ex = load("ex09_data_parallel")
mse = nn.functional.mse_loss


def a_model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2)).double()


def a_batch(rows: int) -> tuple[Tensor, Tensor]:
    return torch.randn(rows, 4, dtype=torch.float64), torch.randn(rows, 2, dtype=torch.float64)


def test_all_reduce() -> None:
    """Everyone gets the sum, in the same bits, a hundred times over"""
    n, all_reduce = 3, ex.AllReduce(3)
    tensors = torch.randn(100, n, 5)
    results = [[] for _ in range(n)]

    def work(replica: int) -> None:
        for of_all in tensors:
            own = of_all[replica].clone()
            results[replica].append(all_reduce(replica, own))
            assert torch.equal(own, of_all[replica]), "the tensor that was given has changed"

    ex.in_threads(n, work, all_reduce.barrier)
    for of_all, *sums in zip(tensors, *results, strict=True):
        assert torch.allclose(sums[0], of_all.sum(0), rtol=1e-5, atol=1e-6)
        assert all(torch.equal(sums[0], other) for other in sums)


def test_one_all_reduce() -> None:
    """All gradients travel in one vector, weighted, and come back to their places"""
    model = nn.Linear(3, 2)
    model(torch.ones(1, 3)).sum().backward()
    seen = []

    def all_reduce(replica: int, vector: Tensor) -> Tensor:
        seen.append((replica, tuple(vector.shape)))
        return vector + torch.arange(8.0)

    ex.reduce_gradients(model, 1, 0.5, all_reduce)
    assert seen == [(1, (8,))]
    assert torch.equal(model.weight.grad, 0.5 + torch.arange(6.0).view(2, 3))
    assert torch.equal(model.bias.grad, 0.5 + torch.tensor([6.0, 7.0]))


@pytest.mark.parametrize("n", [1, 2, 3])
def test_replicas_are_one_model(n: int) -> None:
    """Loss and gradients are those of the plain model, on uneven shares too"""
    model, (x, y) = a_model(), a_batch(11)
    plain = deepcopy(model)
    expected = mse(plain(x), y)
    expected.backward()
    replicas = ex.Replicas(model, mse, [2, 2, 1], 2, n)
    loss = replicas.step(x, y)
    assert torch.allclose(loss, expected, rtol=1e-12)
    for copy in replicas.models:
        for a, b in zip(copy.parameters(), plain.parameters(), strict=True):
            assert torch.allclose(a.grad, b.grad, rtol=1e-12, atol=1e-15)


def test_replicas_stay_the_same() -> None:
    """After five steps all replicas still have the same bits"""
    replicas = ex.Replicas(a_model(), mse, [3, 2], 2, 3)
    for _ in range(5):
        replicas.step(*a_batch(8))
        with torch.no_grad():
            for copy in replicas.models:
                for p in copy.parameters():
                    p.sub_(0.1 * p.grad)
                    p.grad = None
    first, *others = [list(copy.parameters()) for copy in replicas.models]
    assert all(torch.equal(a, b) for other in others for a, b in zip(first, other, strict=True))


def test_nobody_waits_for_the_dead() -> None:
    """If one replica fails, the step raises its error"""

    def fragile(output: Tensor, target: Tensor) -> Tensor:
        if target.isnan().any():
            raise ArithmeticError("this target is no number")
        return mse(output, target)

    x, y = a_batch(8)
    y[-1] = float("nan")
    with pytest.raises(ArithmeticError, match="no number"):
        ex.Replicas(a_model(), fragile, [3, 2], 2, 2).step(x, y)
