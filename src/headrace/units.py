"""Numbers for people: one way to write seconds, bytes, counts and shares, so that every table reads alike."""

from typing import Final, NamedTuple


class TimeUnit(NamedTuple):
    """A unit of time: its sign, and how many seconds it is."""

    sign: str
    in_seconds: float


_TIME_UNITS: Final = (TimeUnit("s", 1), TimeUnit("ms", 1e-3), TimeUnit("µs", 1e-6), TimeUnit("ns", 1e-9))


def time_unit(value: float) -> TimeUnit:
    """The unit in which `value` seconds reads best: the largest that leaves at least 1 of it; s for 0."""
    size = abs(float(value))
    if not size:
        return _TIME_UNITS[0]
    return next((unit for unit in _TIME_UNITS if size >= unit.in_seconds), _TIME_UNITS[-1])


def number(value: float) -> str:
    """`value` with four significant digits, in plain decimals: 33, 0.2727, 12.5, 3,111."""
    value = float(value)
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}"


def seconds(value: float) -> str:
    """A duration in the unit that fits it: 33 s, 12.5 ms, 80 µs."""
    unit = time_unit(value)
    return f"{number(float(value) / unit.in_seconds)} {unit.sign}"


def size(value: float) -> str:
    """Bytes in binary units: 512 B, 16 KiB, 1.5 MiB."""
    value = float(value)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 1024:
            return f"{number(value)} {unit}"
        value /= 1024
    return f"{number(value)} TiB"


def count(value: float) -> str:
    """How many of something: 950, 12.3 k, 4.82 M, 1.5 G."""
    value = float(value)
    for unit in ("", " k", " M"):
        if abs(value) < 1000:
            return f"{value:.3g}{unit}" if unit else f"{value:g}"
        value /= 1000
    return f"{value:,.3g} G" if abs(value) < 1000 else f"{value:,.0f} G"


def percent(share: float) -> str:
    """A share of a whole: 27.3 %."""
    return f"{100 * float(share):.1f} %"
