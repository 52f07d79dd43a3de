"""Peak memory against the number of micro-batches, measured, beside the formulas of the GPipe paper.

With N rows a batch, L layers on K ranks and M micro-batches, a rank of GPipe holds at the most (Huang et al., 2019)

    keeping everything   (L/K) · N                 activations of its layers for the whole batch
    with recompute       N + (L/K) · (N/M)         the stage's inputs, and the activations of one micro-batch

times bytes per row: the first N those of what passes between two stages, the others those that a layer keeps.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from headrace.costs import Bytes
from headrace.report.plots.canvas import HUES, chart, styled
from headrace.units import size

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_LINES: Final = (
    ("everything kept", "never", HUES[5], "o", "(L/K)·N"),
    ("recompute", "always", HUES[0], "s", "N + (L/K)·(N/M)"),
)


@dataclass(frozen=True)
class PeakMemory:
    """Bytes of the fullest rank besides parameters and their gradients, for each number of micro-batches.

    Attributes:
        what: the model and the schedule, in words.
        micro_batches: each M.
        measured: by recompute, "never" and "always": one number per M.
        formula: the same by the formulas.
    """

    what: str
    micro_batches: tuple[int, ...]
    measured: dict[str, tuple[Bytes, ...]]
    formula: dict[str, tuple[Bytes, ...]]


def gpipe_formula(kept: Bytes, passed: Bytes, rows: int, micro_batches: int, recompute: bool) -> Bytes:
    """The bytes that a rank of GPipe holds for its backwards at the most.

    Args:
        kept: bytes that the rank's L/K layers keep per row.
        passed: bytes per row of what the rank gets from the one before.
        rows: N.
        micro_batches: M.
        recompute: whether activations are dropped and computed again.
    """
    return passed * rows + kept * rows / micro_batches if recompute else kept * rows


def draw_memory(found: PeakMemory) -> "Figure":
    """The picture: markers are measured, lines are formulas.

    Raises:
        ValueError: matplotlib is not installed.
    """
    with styled():
        figure, axes = chart(f"Peak memory of {found.what}", "micro-batches M", "", found.micro_batches)
        top = max(map(max, (*found.measured.values(), *found.formula.values())))
        unit = next(2**power for power in (30, 20, 10, 0) if top >= 2**power)
        axes.set_ylabel(f"{size(unit).removeprefix('1 ')} of the fullest rank")
        for name, mode, hue, marker, formula in _LINES:
            lines = [[value / unit for value in of[mode]] for of in (found.formula, found.measured)]
            axes.plot(found.micro_batches, lines[0], color=hue, linestyle=":", label=f"{name}: {formula}")
            axes.plot(
                found.micro_batches,
                lines[1],
                color=hue,
                marker=marker,
                markersize=8,
                markerfacecolor="none",  # where both are equal, both are seen
                linestyle="none",
                label=f"{name}: measured",
            )
        axes.set_ylim(bottom=0)
        axes.legend()
        return figure
