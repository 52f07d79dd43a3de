"""Throughput from an architecture and a description of hardware, as GPipe and torchgpipe report it.

architecture ─ estimate(hardware) ─▶ layers ─ partition ─▶ stages ─ simulate(gpipe, recompute) ─▶ rows per second
"""

from collections.abc import Sequence

from headrace.analytic.hardware import Hardware
from headrace.analytic.published.workloads import Workload
from headrace.layer_costs import LayerCosts
from headrace.partition import partition
from headrace.schedule.catalogue import build
from headrace.schedule.catalogue.recompute import Recompute
from headrace.simulate.simulator import simulate


def normalised_throughput(
    workload: Workload,
    hardware: Hardware,
    accelerators: Sequence[int],
    micro_batches: Sequence[int],
    *,
    compiled: bool = False,
) -> list[list[float]]:
    """Rows per second of GPipe with a balanced cut and every forward recomputed.

    Args:
        workload: what is trained.
        hardware: of each accelerator.
        accelerators: K, from left to right.
        micro_batches: M, from top to bottom; the mini-batch stays the same.
        compiled: whether a compiler fuses what it can.

    Returns:
        A row for each M, all divided by the first number of the first one.
    """
    table = []
    for m in micro_batches:
        layers = workload.layers(hardware, m, compiled=compiled)
        with_recompute = [once + again for once, again in zip(layers.seconds, layers.forward, strict=True)]
        table.append([rows_per_second(layers, hardware, partition(with_recompute, k), m) for k in accelerators])
    return [[value / table[0][0] for value in row] for row in table]


def rows_per_second(
    layers: LayerCosts, hardware: Hardware, cut: Sequence[int], micro_batches: int, recompute: Recompute = "always"
) -> float:
    """Of GPipe, where `layers` are for one micro-batch."""
    costs = hardware.linked(layers.stage_costs(cut))
    order = build("gpipe", ranks=len(cut), micro_batches=micro_batches, recompute=recompute)
    return layers.rows * micro_batches / float(simulate(order, costs).makespan)
