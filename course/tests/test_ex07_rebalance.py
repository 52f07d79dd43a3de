"""Exercise 7. The first line of each test is what `python -m course.check 7` prints."""

import random
from itertools import combinations, pairwise
from time import sleep

import pytest
import torch
from torch import Tensor, nn

import headrace as hr
from course.chosen import load

ex = load("ex07_rebalance")


class Slow(nn.Linear):
    """A layer that takes at least some time, and remembers how often it ran."""

    def __init__(self, seconds: float) -> None:
        super().__init__(4, 4)
        self.seconds, self.calls = seconds, 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        sleep(self.seconds)
        return super().forward(x)


def test_one_layer() -> None:
    """One layer is timed, its output comes back, and no gradient stays"""
    layer, x = Slow(0.01), torch.randn(3, 4)
    seconds, output = ex.layer_seconds(layer, x)
    assert seconds >= 0.01
    assert torch.equal(output, nn.functional.linear(x, layer.weight, layer.bias).detach())
    assert not output.requires_grad
    assert layer.weight.grad is None


def test_profile() -> None:
    """Each layer is measured 1 + repeats times"""
    model = nn.Sequential(Slow(0.0), Slow(0.02), Slow(0.0))
    costs = ex.profile(model, torch.randn(3, 4), repeats=4)
    assert [layer.calls for layer in model] == [5, 5, 5]
    assert costs[1] >= 0.02
    assert all(cost > 0 for cost in costs)


def test_the_first_round_does_not_count() -> None:
    """The first round is left out, and one slow round spoils nothing"""

    class SlowTwice(Slow):
        def forward(self, x: Tensor) -> Tensor:
            self.seconds = 0.3 if self.calls in (0, 2) else 0.0
            return super().forward(x)

    assert ex.profile(nn.Sequential(SlowTwice(0.0)), torch.randn(3, 4), repeats=3)[0] < 0.2


def test_stage_sums() -> None:
    """The cost of a stage is that of its layers"""
    assert ex.stage_sums([1, 2, 3, 4, 5], [2, 1, 2]) == [3, 3, 9]


def test_balance_beats_every_cut() -> None:
    """No cut has a cheaper bottleneck: all of them were tried"""
    draw = random.Random(0)
    for _ in range(50):
        n = draw.randint(1, 9)
        p = draw.randint(1, n)
        costs = [draw.randint(0, 20) for _ in range(n)]
        layers = ex.balance(costs, p)
        assert sum(layers) == n
        assert len(layers) == p
        assert min(layers) > 0
        edges = [(0, *inner, n) for inner in combinations(range(1, n), p - 1)]
        best = min(max(sum(costs[a:b]) for a, b in pairwise(edge)) for edge in edges)
        assert max(sum(costs[a:b]) for a, b in pairwise((0, *(sum(layers[: s + 1]) for s in range(p))))) == best


def test_balance_is_as_good_as_headrace() -> None:
    """On 60 layers in 8 stages the bottleneck is that of hr.partition"""
    draw = random.Random(1)
    costs = [draw.randint(1, 100) for _ in range(60)]
    layers = ex.balance(costs, 8)
    found, expected = iter(costs), iter(costs)
    bottleneck = max(sum(next(found) for _ in range(count)) for count in layers)
    assert bottleneck == max(sum(next(expected) for _ in range(count)) for count in hr.partition(costs, 8))


def test_step_seconds() -> None:
    """A balanced cut of an uneven chain makes the step faster"""
    costs = [3.0, 3.0, 3.0, 3.0, 12.0, 12.0, 3.0, 3.0, 3.0]  # the sum is 45, in 3 stages
    assert ex.step_seconds(costs, [4, 1, 4], 4) == pytest.approx(12 + 12 + 21 * 4)
    assert ex.step_seconds(costs, [3, 3, 3], 16) > 1.2 * ex.step_seconds(costs, ex.balance(costs, 3), 16)
