"""Files are read strictly: a key that nobody knows is refused, so that nothing is silently ignored."""

from typing import Any


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
