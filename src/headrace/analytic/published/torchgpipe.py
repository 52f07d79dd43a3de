"""torchgpipe (Kim et al., 2020): GPipe for PyTorch, AmoebaNet-D (18, 256) on Tesla P40s."""

from typing import Final

from headrace.analytic.hardware import load_hardware
from headrace.analytic.published.figures import Figure, Reproduction
from headrace.analytic.published.throughput import normalised_throughput
from headrace.analytic.published.workloads import images

_ACCELERATORS: Final = (2, 4, 8)
_MICRO_BATCHES: Final = (1, 4, 32)
_PUBLISHED: Final = ((1, 1.00, 0.93), (1.54, 1.67, 2.62), (1.77, 2.71, 4.95))


def reproduce() -> Reproduction:
    """Simulate it for each n and m."""
    workload = images(18, 256)
    ours = normalised_throughput(workload, load_hardware("p40"), _ACCELERATORS, _MICRO_BATCHES)
    figures = [
        Figure(f"{workload.name}, m={m}, n={n}", one, other, 0.1 * other)
        for m, row, theirs in zip(_MICRO_BATCHES, ours, _PUBLISHED, strict=True)
        for n, one, other in zip(_ACCELERATORS, row, theirs, strict=True)
    ]
    return Reproduction("torchgpipe: speed-up of AmoebaNet-D on P40s (Kim et al., 2020)", tuple(figures), _NOTES)


_NOTES = (
    "Speed-ups over n=2, m=1, with a mini-batch of 128 throughout; they chose the batch for each setting.",
    "torchgpipe does not recompute the last micro-batch; ours recomputes all.",
)
