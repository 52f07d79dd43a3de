"""torchgpipe (Kim et al., 2020): AmoebaNet-D (18, 256) on Tesla P40s, as its published benchmark sets it up."""

from typing import Final, NamedTuple

from headrace.analytic.hardware import load_hardware
from headrace.analytic.published.figures import Figure, Reproduction
from headrace.analytic.published.throughput import rows_per_second
from headrace.analytic.published.workloads import images
from headrace.schedule.catalogue.recompute import Recompute


class Setting(NamedTuple):
    """Accelerators, micro-batches, images of a mini-batch, layers of each stage, and the speed-up that they got."""

    n: int
    m: int
    batch: int
    cut: tuple[int, ...]
    speed_up: float


_SETTINGS: Final = (
    Setting(2, 1, 96, (7, 17), 1),
    Setting(4, 1, 160, (3, 4, 5, 12), 1.00),
    Setting(8, 1, 196, (2, 2, 2, 2, 2, 3, 4, 7), 0.93),
    Setting(2, 4, 256, (9, 15), 1.54),
    Setting(4, 4, 360, (3, 6, 7, 8), 1.67),
    Setting(8, 4, 480, (2, 2, 2, 3, 3, 4, 4, 4), 2.62),
    Setting(2, 32, 1280, (9, 15), 1.77),
    Setting(4, 32, 1152, (3, 6, 7, 8), 2.71),
    Setting(8, 32, 1280, (2, 2, 2, 3, 3, 4, 4, 4), 4.95),
)


def reproduce() -> Reproduction:
    """Simulate each setting with its own batch and cut."""
    workload, hardware = images(18, 256), load_hardware("p40")
    figures: list[Figure] = []
    base = 0.0
    for setting in _SETTINGS:
        layers = workload._replace(rows=setting.batch).layers(hardware, setting.m)
        recompute: Recompute = "always" if setting.m == 1 else "except_last"
        found = rows_per_second(layers, hardware, setting.cut, setting.m, recompute)
        base = base or found
        name = f"{workload.name}, m={setting.m}, n={setting.n}"
        figures.append(Figure(name, found / base, setting.speed_up, 0.1 * setting.speed_up))
    return Reproduction("torchgpipe: speed-up of AmoebaNet-D on P40s (Kim et al., 2020)", tuple(figures), _NOTES)


_NOTES: Final = (
    "Speed-ups over n=2, m=1. Batches and cuts are theirs, different for each setting; with several micro-batches the "
    "last one is not recomputed.",
)
