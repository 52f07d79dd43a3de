"""Exercise 1. The first line of each test is what `python -m course.check 1` prints."""

import pytest
import torch
from torch.nn import functional

from course.chosen import load

ex = load("ex01_micro_batches")


def test_sizes_differ_by_at_most_one() -> None:
    """Sizes differ by at most one row, the larger ones first"""
    assert ex.sizes(8, 4) == [2, 2, 2, 2]
    assert ex.sizes(10, 4) == [3, 3, 2, 2]
    assert ex.sizes(5, 5) == [1, 1, 1, 1, 1]


def test_no_micro_batch_is_empty() -> None:
    """More micro-batches than rows are refused with a ValueError"""
    with pytest.raises(ValueError, match=r".+"):
        ex.sizes(3, 4)


def test_split_keeps_rows_and_order() -> None:
    """The pieces put together again are the batch"""
    x = torch.randn(10, 3)
    pieces = ex.split(x, 4)
    assert [len(piece) for piece in pieces] == [3, 3, 2, 2]
    assert torch.equal(torch.cat(pieces), x)


def test_split_copies_nothing() -> None:
    """The pieces are views: they share the memory of the batch"""
    x = torch.randn(10, 3)
    assert {p.untyped_storage().data_ptr() for p in ex.split(x, 4)} == {x.untyped_storage().data_ptr()}


def test_weights_are_shares() -> None:
    """Weights are shares of the whole"""
    assert ex.loss_weights([3, 3, 2, 2]) == pytest.approx([0.3, 0.3, 0.2, 0.2])


def test_loss_over_rows() -> None:
    """A loss that is a mean over rows comes out as that of the whole batch"""
    x, y = torch.randn(10, 4, dtype=torch.float64), torch.randn(10, 4, dtype=torch.float64)
    xs, ys = x.tensor_split(4), y.tensor_split(4)
    whole = functional.mse_loss(x, y)
    assert ex.batch_loss(functional.mse_loss, xs, ys).item() == pytest.approx(whole.item(), rel=1e-12)
    mean_of_means = sum(functional.mse_loss(a, b) for a, b in zip(xs, ys, strict=True)) / 4
    assert mean_of_means.item() != pytest.approx(whole.item(), rel=1e-6)


def test_loss_over_tokens() -> None:
    """A loss that leaves padding out is weighted by the tokens that are left"""
    padding = -100
    x, y = torch.randn(7, 5, dtype=torch.float64), torch.tensor([1, 0, padding, padding, 3, 4, 2])
    whole = functional.cross_entropy(x, y, ignore_index=padding)
    found = ex.batch_loss(
        functional.cross_entropy, x.tensor_split(3), y.tensor_split(3), count=lambda t: int((t != padding).sum())
    )
    assert found.item() == pytest.approx(whole.item(), rel=1e-12)
