"""One place that refuses impossible counts, so that every entry point says it the same way."""


def at_least(minimum: int, **counts: int) -> None:
    """Refuse each of `counts` that is not a whole number of at least `minimum`, by its name.

    Raises:
        TypeError: a count is not an int.
        ValueError: a count is too small.
    """
    for name, value in counts.items():
        if not isinstance(value, int) or isinstance(value, bool):
            raise TypeError(f"{name}={value!r} must be a whole number, not {type(value).__name__}")
        if value < minimum:
            raise ValueError(f"{name}={value} must be at least {minimum}")
