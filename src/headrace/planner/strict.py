"""Files are read strictly: what nobody knows is refused, so that nothing is silently ignored, and so is what cannot be.

A shape says what is expected, and what is read comes out as that:

    {"batch": int, "cut": tuple[tuple[str, ...], ...], "memory": tuple[float, ...] | None, "predicted": Predicted}
"""

from dataclasses import fields, is_dataclass
from functools import cache
from types import NoneType
from typing import Any, Final, Literal, get_args, get_origin, get_type_hints

_WORDS: Final = {str: "a text", int: "a whole number", float: "a number", bool: "true or false", NoneType: "null"}
_SHOWN: Final = 60
_MOST: Final = 1e100  # sums of such numbers are finite too


class _Wrong(Exception):
    """What is wrong, and where: the path grows on the way out, so that nothing is named while all is right."""

    def __init__(self, said: str) -> None:
        super().__init__(said)
        self.path: list[str] = []


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
    try:
        return _typed(data, shape, signed)
    except _Wrong as wrong:
        raise ValueError(f"{': '.join((what, *reversed(wrong.path)))} {wrong}") from None


def _typed(data: Any, shape: Any, signed: bool) -> Any:
    if isinstance(shape, dict):
        _exactly(data, shape)
        return {key: _inside(data[key], of_key, signed, key) for key, of_key in shape.items()}
    if is_dataclass(shape):
        return shape(**_typed(data, _hints_of(shape), signed))  # type: ignore[operator]
    if isinstance(shape, list):
        if not isinstance(data, list):
            raise _Wrong(f"is {_shown(data)}, but must be a list")
        return tuple(_inside(each, shape[0], signed, i) for i, each in enumerate(data))
    if shape in _WORDS:
        return _plain(data, shape, signed)
    origin, inner = get_origin(shape), get_args(shape)
    if origin is tuple:
        return _typed(data, [inner[0]], signed)
    if origin is Literal:
        if data not in inner:
            raise _Wrong(f"is {_shown(data)}, but must be one of {', '.join(map(str, inner))}")
        return data
    if data is None and NoneType in inner:
        return None
    (one,) = (each for each in inner if each is not NoneType)
    return _typed(data, one, signed)


def _inside(data: Any, shape: Any, signed: bool, where: object) -> Any:
    try:
        return _typed(data, shape, signed)
    except _Wrong as wrong:
        wrong.path.append(str(where))
        raise


def _plain(data: Any, shape: Any, signed: bool) -> Any:
    if isinstance(data, bool) is not (shape is bool) or not isinstance(data, (int, float) if shape is float else shape):
        raise _Wrong(f"is {_shown(data)}, but must be {_WORDS[shape]}")
    if isinstance(data, (int, float)):
        if not abs(data) < _MOST:
            raise _Wrong(f"is {_shown(data)}, but must be finite, and not beyond {_MOST:g}")
        if data < 0 and not signed:
            raise _Wrong(f"is {_shown(data)}, but must be 0 or more")
    return data


def _exactly(data: Any, shape: dict[str, Any]) -> None:
    """Refuse an object that has other keys than `shape`."""
    if not isinstance(data, dict):
        raise _Wrong(f"must be an object with {', '.join(sorted(shape))}")
    if data.keys() == shape.keys():
        return
    for unknown in sorted(data.keys() - shape.keys()):
        raise _Wrong(f"has an unknown key {unknown!r}")
    for absent in sorted(shape.keys() - data.keys()):
        raise _Wrong(f"lacks {absent!r}")


def _hints_of(kind: Any) -> dict[str, Any]:
    return _hints(kind)


@cache
def _hints(kind: Any) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {item.name: hints[item.name] for item in fields(kind)}


def _shown(data: Any) -> str:
    text = repr(data)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
