"""Exercise 8. The first line of each test is what `python -m course.check 8` prints."""

import pytest
import torch
from torch import nn

import headrace as hr
from course.chosen import load
from headrace.simulate.memory import peak_memory_of

ex = load("ex08_recompute_costs")
ROWS, WIDTH = 10, 8
ONE = ROWS * WIDTH * 8  # bytes of one activation in float64


def test_what_layers_save() -> None:
    """A linear layer saves its input, a tanh its output; parameters do not count"""
    x = torch.randn(ROWS, WIDTH, dtype=torch.float64)
    assert ex.activation_bytes(nn.Linear(WIDTH, WIDTH).double(), x) == ONE
    assert ex.activation_bytes(nn.Tanh(), x) == ONE


def test_memory_counts_once() -> None:
    """What two layers share counts once"""
    x = torch.randn(ROWS, WIDTH, dtype=torch.float64)
    deep = nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(5))).double()
    assert ex.activation_bytes(deep, x) == 6 * ONE  # the input, and five outputs that the next layer reads as well


def test_memory_is_that_of_a_micro_batch() -> None:
    """Half of the rows save half of the bytes"""
    stage = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH)).double()
    x = torch.randn(ROWS, WIDTH, dtype=torch.float64)
    assert ex.activation_bytes(stage, x.clone()) == 2 * ex.activation_bytes(stage, x[: ROWS // 2].clone())


def test_peaks() -> None:
    """Peaks are those of the picture, and headrace's for GPipe"""
    memory = hr.Memory(activations=1000, stage_input=100)
    for m in (1, 4, 16):
        for mode in ("never", "always"):
            found = ex.peak_bytes(1000, 100, m, recompute=mode == "always")
            schedule = hr.schedule.build("gpipe", ranks=3, micro_batches=m, recompute=mode)
            assert found == peak_memory_of(schedule, memory)[0]


def test_slowdown_of_a_long_step() -> None:
    """In a long step recompute costs a third, where B = 2F"""
    assert ex.slowdown("1f1b", 4, 400, "always") == pytest.approx(4 / 3, rel=0.01)


def test_some_recomputes_are_free() -> None:
    """In a short step some recomputes run in the bubble"""
    assert 1 < ex.slowdown("gpipe", 4, 4, "always") < 4 / 3
    assert ex.slowdown("gpipe", 4, 4, "except_last") < ex.slowdown("gpipe", 4, 4, "always")


def test_backward_that_costs_more() -> None:
    """The dearer the backward, the smaller the share of a recompute"""
    assert ex.slowdown("1f1b", 1, 5, "always", forward=1, backward=4) == pytest.approx(6 / 5)


def test_larger_micro_batches() -> None:
    """With recompute larger micro-batches fit"""
    assert ex.largest_micro_batch(10_000, 100, 10, 8, recompute=False) == 12
    assert ex.largest_micro_batch(10_000, 100, 10, 8, recompute=True) == 58
