"""GPipe, Table 3 (Huang et al., 2019): throughput on GPUs without fast links."""

from typing import Final

from headrace.analytic.hardware import load_hardware
from headrace.analytic.published.figures import Figure, Reproduction
from headrace.analytic.published.throughput import normalised_throughput
from headrace.analytic.published.workloads import images, texts

_ACCELERATORS: Final = (2, 4, 8)
_AMOEBANET: Final = (1, 1.7, 2.7)
_TRANSFORMER: Final = (1, 1.8, 3.3)


def reproduce() -> Reproduction:
    """Simulate both models for each K, with 32 micro-batches."""
    hardware = load_hardware("p100-pcie")
    figures = []
    for workload, published in ((images(18, 128), _AMOEBANET), (texts(24), _TRANSFORMER)):
        (ours,) = normalised_throughput(workload, hardware, _ACCELERATORS, (32,))
        for k, one, other in zip(_ACCELERATORS, ours, published, strict=True):
            figures.append(Figure(f"{workload.name}, M=32, K={k}", one, other, 0.1 * other))
    return Reproduction("GPipe, Table 3: throughput without fast links (Huang et al., 2019)", tuple(figures), _NOTES)


_NOTES = (
    "Throughput is normalised to K=2; batches of 128 images and 32 sequences.",
    "A message goes to the host and from there, over PCIe 3.0 x16 twice: 8 GB/s.",
)
