"""Files are read strictly: what nobody knows is refused, so that nothing is silently ignored, and so is what cannot be.

A shape says what is expected, and what is read comes out as that:

    {"batch": int, "cut": tuple[tuple[str, ...], ...], "memory": tuple[float, ...] | None, "predicted": Predicted}
"""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, Final, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")

_WORDS: Final = {str: "a text", int: "a whole number", float: "a number", bool: "true or false", NoneType: "null"}
_SHOWN: Final = 60
_MOST: Final = 1e100  # sums of such numbers are finite too


def exactly(data: Any, keys: set[str], what: str) -> None:
    """Refuse an object that has other keys than `keys`; `what` names it in errors.

    Raises:
        ValueError: it is no object, has an unknown key, or lacks one.
    """
    if not isinstance(data, dict):
        raise ValueError(f"{what} must be an object with {', '.join(sorted(keys))}")
    for unknown in sorted(data.keys() - keys):
        raise ValueError(f"{what} has an unknown key {unknown!r}")
    for absent in sorted(keys - data.keys()):
        raise ValueError(f"{what} lacks {absent!r}")


def typed(data: Any, shape: Any, what: str, *, signed: bool = False) -> Any:
    """`data`, as JSON gives it, in the shape that is expected.

    Args:
        data: what was read.
        shape: str, int, float, bool, None, `tuple[shape, ...]`, unions and literals of these, a dataclass, a list with
            the shape of its items, or a dict with a shape for each key.
        what: names it in errors.
        signed: whether numbers may be negative.

    Raises:
        ValueError: it has another shape, or a number is not finite, or negative where that cannot be.
    """
    if isinstance(shape, Mapping):
        exactly(data, set(shape), what)
        return {key: typed(data[key], shape[key], f"{what}: {key}", signed=signed) for key in shape}
    if is_dataclass(shape):
        read = typed(data, _hints_of(shape), what, signed=signed)
        return shape(**read)  # type: ignore[operator]
    origin = get_origin(shape)
    if origin is tuple or isinstance(shape, list):
        if not isinstance(data, list):
            raise ValueError(f"{what} is {_shown(data)}, but must be a list")
        inner = shape[0] if isinstance(shape, list) else get_args(shape)[0]
        return tuple(typed(each, inner, f"{what}: {i}", signed=signed) for i, each in enumerate(data))
    if origin in (Union, UnionType):
        if data is None and NoneType in get_args(shape):
            return None
        (one,) = (each for each in get_args(shape) if each is not NoneType)
        return typed(data, one, what, signed=signed)
    if origin is Literal:
        if data not in get_args(shape):
            raise ValueError(f"{what} is {_shown(data)}, but must be one of {', '.join(map(str, get_args(shape)))}")
        return data
    if isinstance(data, bool) is not (shape is bool) or not isinstance(data, (int, float) if shape is float else shape):
        raise ValueError(f"{what} is {_shown(data)}, but must be {_WORDS[shape]}")
    if isinstance(data, (int, float)):
        if not abs(data) < _MOST:
            raise ValueError(f"{what} is {_shown(data)}, but must be finite, and not beyond {_MOST:g}")
        if data < 0 and not signed:
            raise ValueError(f"{what} is {_shown(data)}, but must be 0 or more")
    return data


def _hints_of(kind: Any) -> dict[str, Any]:
    return _hints(kind)


@cache
def _hints(kind: Any) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {item.name: hints[item.name] for item in fields(kind)}


def _shown(data: Any) -> str:
    text = repr(data)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
