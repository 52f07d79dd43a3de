"""Values taken apart and put together again."""

import collections
import dataclasses
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from headrace.runtime.stage.boundary import ONE_TENSOR, Parcel, take_apart
from runtime.reference import same


class Point(NamedTuple):
    x: Any
    y: Any


@dataclasses.dataclass
class Record:
    tensor: Any
    note: Any = "note"


def tensors() -> st.SearchStrategy[Tensor]:
    return st.integers(0, 99).map(torch.tensor)


values = st.recursive(
    tensors() | st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.sampled_from("abc"), inner)
        | st.builds(Point, inner, inner)
        | st.builds(Record, inner, inner)
        | st.dictionaries(st.sampled_from("abc"), inner).map(collections.OrderedDict)
    ),
    max_leaves=8,
)


def alike(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor):
        return isinstance(other, Tensor) and same(one, other)
    if type(one) is not type(other):
        return False
    if isinstance(one, Record):
        return alike(one.tensor, other.tensor) and alike(one.note, other.note)
    if isinstance(one, dict):
        return list(one) == list(other) and all(alike(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(alike, one, other))
    return bool(one == other)


@given(values)
def test_a_value_survives(value: Any) -> None:
    parts, skeleton = take_apart(value, "x")
    assert alike(skeleton.build(parts), value)


def test_one_tensor_is_the_simplest_value() -> None:
    tensor = torch.zeros(2)
    parts, skeleton = take_apart(tensor, "x")
    assert skeleton is ONE_TENSOR
    assert skeleton.build(parts) is tensor


@pytest.mark.parametrize("stranger", [object(), {1, 2}, lambda: None, range(3)])
def test_strangers_are_refused_by_name(stranger: Any) -> None:
    with pytest.raises(
        TypeError, match=f"the output of stage 1 contains a {type(stranger).__name__}: only tensors, None"
    ):
        take_apart({"a": [stranger, torch.zeros(1)]}, "the output of stage 1")


def test_a_parcel_knows_whether_a_gradient_comes_back() -> None:
    parts, skeleton = take_apart((torch.zeros(1), 3, torch.ones(1)), "x")
    assert not Parcel(parts, (False, False), skeleton).wants_gradient
    parcel = Parcel(parts, (False, True), skeleton)
    assert parcel.wants_gradient
    assert alike(parcel.value, (torch.zeros(1), 3, torch.ones(1)))
