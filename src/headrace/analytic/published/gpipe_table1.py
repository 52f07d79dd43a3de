"""GPipe, Table 1 (Huang et al., 2019): how large a model fits on how many accelerators."""

from typing import Final, NamedTuple

from headrace.analytic.hardware import load_hardware
from headrace.analytic.published.figures import Figure, Reproduction
from headrace.analytic.published.workloads import Workload, images, texts
from headrace.costs import Bytes
from headrace.layer_costs import LayerCosts
from headrace.partition import partition

_GB: Final = 1e9
_GIB: Final = 2**30
_MICRO_BATCHES: Final = 32
_BYTES_PER_PARAMETER: Final = 12


class Column(NamedTuple):
    """A column of the table: the parameters with their last printed digit, both kinds of memory in GB as printed."""

    name: str
    accelerators: int
    size: tuple[int, ...]
    parameters: float
    digit: float
    model_memory: float
    activations: float


_AMOEBANET: Final = (
    Column("Naive-1", 1, (18, 208), 82e6, 1e6, 1.05, 6.26),
    Column("Pipeline-1", 1, (18, 416), 318e6, 1e6, 3.8, 3.46),
    Column("Pipeline-2", 2, (18, 544), 542e6, 1e6, 6.45, 8.11),
    Column("Pipeline-4", 4, (36, 544), 1.05e9, 1e7, 12.53, 15.21),
    Column("Pipeline-8", 8, (72, 512), 1.8e9, 1e8, 24.62, 26.24),
)
_TRANSFORMER: Final = (  # Naive-1 with its two memory cells in the order that makes sense, see the notes
    Column("Naive-1", 1, (3,), 282.2e6, 1e5, 3.15, 11.7),
    Column("Pipeline-1", 1, (13,), 785.8e6, 1e5, 8.8, 6.4),
    Column("Pipeline-8", 8, (103,), 5.3e9, 1e8, 59.5, 50.9),
    Column("Pipeline-32", 32, (415,), 21.0e9, 1e8, 235.1, 199.9),
    Column("Pipeline-128", 128, (1663,), 83.9e9, 1e8, 937.9, 796.1),
)

_NOT_TWELVE: Final = "the paper's is not 12 bytes a parameter"
_OTHER_ACTIVATIONS: Final = (
    "ours are what eager float32 keeps; what their compiler kept, and in how many micro-batches, is not said"
)
_OTHER_BATCH: Final = "32 rows at once would not fit: the paper must have used fewer"


def reproduce() -> Reproduction:
    """Build each model without memory, count it, and add up what training holds."""
    figures: list[Figure] = []
    for column in _AMOEBANET:
        figures += _memory(column, images(*column.size, auxiliary=True), _GB, _OTHER_ACTIVATIONS)
    for column in _TRANSFORMER:
        figures += _memory(column, texts(*column.size), _GIB, _OTHER_BATCH if column.name == "Naive-1" else "")
    return Reproduction("GPipe, Table 1: model sizes and memory (Huang et al., 2019)", tuple(figures), _NOTES)


_NOTES: Final = (
    "AmoebaNet-D counts its auxiliary head. A parameter takes 12 bytes: weight, gradient and RMSProp's mean square.",
    "Which GB the paper means it does not say: AmoebaNet's fit 10^9 bytes, the Transformer's 2^30; ours are in those.",
    "Naive-1 Transformer: the paper's two memory cells look swapped (282.2M × 12 bytes = 3.15); shown as if they were.",
    "Activations are K times the fullest accelerator's: all that one micro-batch keeps, with the inputs of all "
    f"micro-batches at its boundary, and the most that a layer needs while it runs. The paper does not say how many "
    f"micro-batches; ours are {_MICRO_BATCHES}.",
)


def _parameters(column: Column, workload: Workload) -> Figure:
    count = sum(parameter.numel() for parameter in workload.model.parameters())
    scale, unit = (1e9, "B") if column.parameters >= 1e9 else (1e6, "M")
    within = column.digit / 2 / scale
    return Figure(f"{_name(column, workload)}: parameters", count / scale, column.parameters / scale, within, unit)


def _memory(column: Column, workload: Workload, gb: float, note: str) -> list[Figure]:
    """All three figures of a column, `gb` bytes to a GB; `note` is on the activations."""
    name = _name(column, workload)
    count = _parameters(column, workload)
    micro_batches = 1 if column.name == "Naive-1" else _MICRO_BATCHES
    layers = workload.layers(load_hardware("tpu-v3"), micro_batches)
    weights = sum(parameter.numel() for parameter in workload.model.parameters()) * _BYTES_PER_PARAMETER / gb
    as_they_say = column.parameters * _BYTES_PER_PARAMETER / gb
    odd = _NOT_TWELVE if abs(as_they_say / column.model_memory - 1) > 0.1 else ""
    peak = _peak(layers, column.accelerators, micro_batches) / gb
    return [
        count,
        Figure(f"{name}: model memory", weights, column.model_memory, 0.1 * column.model_memory, "GB", odd),
        Figure(f"{name}: activations", peak, column.activations, 0.1 * column.activations, "GB", note),
    ]


def _name(column: Column, workload: Workload) -> str:
    return f"{workload.name}, {column.name}"


def _peak(layers: LayerCosts, accelerators: int, micro_batches: int) -> Bytes:
    """Accelerators times the fullest one's bytes, with recomputation where there are micro-batches."""
    fullest: Bytes = 0
    start = 0
    for count in partition(layers.activations, accelerators):
        stage = slice(start, start + count)
        boundary = layers.output[start - 1] * (micro_batches - 1) if start else 0
        fullest = max(fullest, sum(layers.activations[stage]) + boundary + max(layers.transient[stage]))
        start += count
    return fullest * accelerators
