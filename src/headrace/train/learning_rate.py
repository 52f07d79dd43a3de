"""Linear warm-up, then half a cosine down to a twentieth (Loshchilov and Hutter, 2017, without restarts)."""

from math import cos, pi
from typing import Final

_FLOOR: Final = 0.05


def learning_rate(step: int, steps: int, warm_up: int, highest: float) -> float:
    """The rate of `step`, counted from 0, of a job of `steps`."""
    if step < warm_up:
        return highest * (step + 1) / warm_up
    progress = (step - warm_up) / max(1, steps - 1 - warm_up)
    return highest * (_FLOOR + (1 - _FLOOR) * (1 + cos(pi * min(1.0, progress))) / 2)
