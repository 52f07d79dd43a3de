"""What a device can do, and how long work takes on it.

    seconds = max( FLOPs ÷ (peak · efficiency(FLOPs)),  bytes moved ÷ memory bandwidth )

the roofline (Williams et al., 2009): a part of a layer is bound by its arithmetic or by its memory, and whatever is
cheaper hides behind the other. Peaks and bandwidths are those of data sheets; the efficiency is a curve through points
(FLOPs, share of the peak), straight over log(FLOPs) and level beyond its ends:

    share  0.6 ┤          ╭────        small layers fill neither the units nor the time that a launch takes
               │       ╭──╯
               │ ──────╯
               └──┬────┬──┬────▶ FLOPs

The shipped curves are one rule of thumb for all accelerators. Whoever has measured puts the own points in a file.
"""

import math
import tomllib
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

from headrace.costs import Bytes, Costs, Seconds
from headrace.files import read_text

_DTYPES: Final = ("float64", "float32", "float16", "bfloat16")


@dataclass(frozen=True)
class Hardware:
    """One device, and the link to the next one.

    Attributes:
        name: for people.
        source: where the numbers are from.
        peak: FLOPs per second, by dtype: float64, float32, float16, bfloat16.
        efficiency: points (FLOPs, share of the peak reached), by rising FLOPs.
        memory: bytes.
        bandwidth: bytes per second between memory and units.
        link_bandwidth: bytes per second from one device to another, one way.
        link_latency: seconds that a message takes besides.

    Raises:
        TypeError, ValueError: a number is none, or not more than 0, or a dtype is unknown.
    """

    name: str
    source: str
    peak: Mapping[str, float]
    efficiency: tuple[tuple[float, float], ...]
    memory: Bytes
    bandwidth: float
    link_bandwidth: float
    link_latency: Seconds

    def __post_init__(self) -> None:
        for name in ("name", "source"):
            if not isinstance(getattr(self, name), str):
                raise TypeError(f"{name}={getattr(self, name)!r} must be text")
        if not isinstance(self.peak, Mapping) or not self.peak:
            raise ValueError(f"peak={self.peak!r} must give FLOPs per second for one of {', '.join(_DTYPES)}")
        unknown = ", ".join(sorted(set(self.peak) - set(_DTYPES)))
        if unknown:
            raise ValueError(f"peak has unknown {unknown}: write {', '.join(_DTYPES)}")
        for name in ("memory", "bandwidth", "link_bandwidth", "link_latency"):
            _positive(name, getattr(self, name))
        for dtype, flops in self.peak.items():
            _positive(f"peak.{dtype}", flops)
        object.__setattr__(self, "efficiency", _curve(self.efficiency))

    def seconds(self, flops: float, moved: Bytes, dtype: str = "float32") -> Seconds:
        """What work takes: the roofline.

        Args:
            flops: additions and multiplications.
            moved: bytes read and written.
            dtype: of the operands.

        Raises:
            ValueError: the device does not say how fast it is with this dtype.
        """
        if dtype not in self.peak:
            raise ValueError(f"{self.name} has no peak for {dtype}, only for {', '.join(self.peak)}")
        computing = flops / (self.peak[dtype] * self.share(flops)) if flops else 0.0
        return max(computing, moved / self.bandwidth)

    def share(self, flops: float) -> float:
        """How much of the peak work of so many FLOPs reaches."""
        at = bisect_right(self.efficiency, flops, key=lambda point: point[0])
        if at in (0, len(self.efficiency)):
            return self.efficiency[max(at - 1, 0)][1]
        (low, before), (high, after) = self.efficiency[at - 1 : at + 1]
        return before + (after - before) * math.log(flops / low) / math.log(high / low)

    def linked(self, costs: Costs) -> Costs:
        """`costs` with messages that take what this link takes, one at a time."""
        return replace(costs, transfer=self.link_latency, bandwidth=self.link_bandwidth, one_at_a_time=True)


def load_hardware(name_or_path: str | Path) -> Hardware:
    """A device that is shipped, such as "a100-80g", or one described in a TOML file.

    Raises:
        ValueError: there is no such name or file, or the file does not describe a device; the message names it and
            the key.
    """
    text = str(name_or_path)
    if text in hardware_names():
        content = (files("headrace.analytic") / "devices" / f"{text}.toml").read_text(encoding="utf-8")
    elif text.endswith(".toml"):
        try:
            content = read_text(Path(text))
        except OSError as error:
            raise ValueError(f"hardware {text}: {error.strerror}") from None
    else:
        raise ValueError(f"hardware {text!r} is none of {', '.join(hardware_names())}, nor the path of a .toml file")
    try:
        return _read(tomllib.loads(content))
    except (ValueError, TypeError) as error:
        raise ValueError(f"hardware {text}: {error}") from None


def hardware_names() -> tuple[str, ...]:
    """The devices that are shipped."""
    found = (files("headrace.analytic") / "devices").iterdir()
    return tuple(sorted(file.name.removesuffix(".toml") for file in found if file.name.endswith(".toml")))


def _read(table: dict[str, Any]) -> Hardware:
    wanted = {field.name for field in fields(Hardware)}
    unknown = ", ".join(sorted(set(table) - wanted))
    if unknown:
        raise ValueError(f"unknown {unknown}; a device has {', '.join(sorted(wanted))}")
    absent = ", ".join(sorted(wanted - set(table)))
    if absent:
        raise ValueError(f"{absent} missing")
    return Hardware(**table)


def _curve(points: Any) -> tuple[tuple[float, float], ...]:
    try:
        curve = tuple((float(flops), float(share)) for flops, share in points)
    except (TypeError, ValueError):
        raise ValueError(f"efficiency={points!r} must be points [FLOPs, share of the peak]") from None
    if not curve:
        raise ValueError("efficiency has no point: [[1, 0.5]] says half of the peak, always")
    sizes = [flops for flops, _ in curve]
    if sizes != sorted(set(sizes)) or sizes[0] <= 0:
        raise ValueError(f"efficiency={points!r} must have rising FLOPs, more than 0")
    if not all(0 < share <= 1 for _, share in curve):
        raise ValueError(f"efficiency={points!r} must have shares in (0, 1]")
    return curve


def _positive(name: str, value: object) -> None:
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise TypeError(f"{name}={value!r} must be a number")
    if not 0 < value < math.inf:
        raise ValueError(f"{name}={value!r} must be finite and more than 0")
