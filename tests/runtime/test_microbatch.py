"""Cutting, weighing and joining, by themselves."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from headrace.runtime.batch.microbatch import count_rows, join, rows_per_micro_batch, split, weights


@given(st.integers(1, 50), st.integers(1, 50))
def test_sizes_are_those_of_tensor_split(rows: int, micro_batches: int) -> None:
    micro_batches = min(rows, micro_batches)
    x = torch.arange(rows)
    parts = split("x", x, micro_batches)
    assert [len(part) for part in parts] == rows_per_micro_batch(rows, micro_batches)
    assert torch.equal(join(parts), x)
    assert sum(weights(rows, parts, "rows")) == pytest.approx(1)


def test_parts_are_views_and_the_rest_goes_to_every_one() -> None:
    x = {"t": torch.arange(4), "n": 3, "none": None, "whole": torch.zeros(9)}
    parts = split("x", x, 2, {"t": 0, "n": 0, "none": 0, "whole": "replicate"})
    assert [part["n"] for part in parts] == [3, 3]
    assert all(part["none"] is None and part["whole"] is x["whole"] for part in parts)
    assert parts[1]["t"].data_ptr() == x["t"][2:].data_ptr()  # type: ignore[index]


@pytest.mark.parametrize("spec", [-1, 1])
def test_other_dims(spec: int) -> None:
    x = torch.arange(6).view(2, 3)
    assert count_rows("x", x, spec) == 3
    assert [part.tolist() for part in split("x", x, 2, spec)] == [[[0, 1], [3, 4]], [[2], [5]]]


@pytest.mark.parametrize(
    ("spec", "error", "complaint"),
    [
        (2, ValueError, r"x has shape \(2, 3\) and no dim 2 to cut along"),
        (-3, ValueError, "no dim -3"),
        ("all", TypeError, "the split spec of x contains 'all': use a dim"),
        (True, TypeError, "the split spec of x contains True"),
        (None, TypeError, "split spec"),
        ([0, 0], TypeError, "is no prefix of x"),
        ("replicate", TypeError, "x is a Tensor without a tensor to cut"),
    ],
)
def test_wrong_specs(spec: object, error: type[Exception], complaint: str) -> None:
    with pytest.raises(error, match=complaint):
        count_rows("x", torch.zeros(2, 3), spec)


def test_weights() -> None:
    targets = [torch.tensor([1, 1]), torch.tensor([1, 0]), torch.tensor([0])]
    assert weights(5, targets, "rows") == [0.4, 0.4, 0.2]
    assert weights(5, targets, "sum") == [1, 1, 1]
    assert weights(5, targets, torch.sum) == [2 / 3, 1 / 3, 0]
    assert weights(5, targets, lambda y: int(y.sum())) == [2 / 3, 1 / 3, 0]


def test_what_cannot_be_joined_is_told() -> None:
    with pytest.raises(ValueError, match=r"shape \(\) and no dim 0 to join"):
        join([torch.tensor(1), torch.tensor(2)])
    with pytest.raises(ValueError, match="changes its structure between micro-batches"):
        join([(torch.zeros(1),), [torch.zeros(1)]])


def test_joining_keeps_what_is_no_tensor() -> None:
    joined = join([{"x": torch.zeros(1, 2), "n": 1, "none": None}, {"x": torch.ones(2, 2), "n": 2, "none": None}])
    assert joined["x"].tolist() == [[0, 0], [1, 1], [1, 1]]
    assert (joined["n"], joined["none"]) == (1, None)
