"""Files that people hand over: one way to read them, so that whatever is wrong with one, the error names it.

What we write for them has to be JSON for other readers, too.
"""

import json
from math import isfinite
from pathlib import Path
from typing import Any, NoReturn


def read_text(path: Path, encoding: str = "utf-8") -> str:
    """The text in a file.

    Raises:
        OSError: it cannot be read.
        ValueError: it is no text; the message names it.
    """
    try:
        return path.read_text(encoding=encoding)
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is no text: its byte {error.start} is not UTF-8") from None


def read_json(path: Path) -> Any:
    """The data in a JSON file.

    Raises:
        OSError: it cannot be read.
        ValueError: it is no JSON; the message names it.
    """
    return from_json(read_text(path), str(path))


def from_json(text: str, what: str) -> Any:
    """The data in a JSON text, which errors call `what`.

    A key twice in one object is refused, as one of its values would be ignored, and so is NaN, which is no JSON.

    Raises:
        ValueError: it is no JSON.
    """
    try:
        return json.loads(text, object_pairs_hook=_once, parse_constant=_refuse)
    except RecursionError:
        raise ValueError(f"{what} is nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"{what} is no JSON: {error}") from None


def check_target(path: Path) -> None:
    """Whether a file can be written to `path`, before it is worth computing what goes into it.

    Raises:
        ValueError: it is a folder, or in none that is there.
    """
    if path.is_dir():
        raise ValueError(f"{path} is a folder: name a file in it")
    if not path.parent.is_dir():
        raise ValueError(f"{path} cannot be written: there is no folder {path.parent}")


def as_json(number: float) -> float | None:
    """`number` as JSON can say it: null for NaN and infinities, such as the loss of a run that diverged."""
    return number if isfinite(number) else None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the key {key!r} is there twice")
        found[key] = value
    return found


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number")
