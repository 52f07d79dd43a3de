"""The bubble against the number of micro-batches, schedule by schedule, beside (p−1)/(m+p−1).

bubble  ┃ ·
        ┃  ·            markers: simulated       dotted line: closed form of GPipe and 1F1B
        ┃    ·   ·
        ┗━━━━━━━━━━━━ m
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.costs import Costs
from headrace.report.plots.canvas import HUES, INK, MARKERS, chart, styled
from headrace.schedule.catalogue import build
from headrace.simulate.simulator import simulate
from headrace.units import percent

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Bubbles:
    """Bubble fractions.

    Attributes:
        ranks: p.
        micro_batches: every m that was asked for.
        simulated: of each schedule one number per m.
        closed_form: (p−1)/(m+p−1) for each m.
    """

    ranks: int
    micro_batches: tuple[int, ...]
    simulated: dict[str, tuple[float, ...]]
    closed_form: tuple[float, ...]


def bubbles(schedules: Sequence[str], ranks: int, micro_batches: Sequence[int], costs: Costs) -> Bubbles:
    """Simulate each schedule with each number of micro-batches.

    Args:
        schedules: names of the catalogue.
        ranks: p.
        micro_batches: numbers of micro-batches, m.
        costs: the same for all stages, whatever share of the model they are, as the bubble does not depend on it.

    Raises:
        ValueError: there is no such schedule, or it does not exist for these numbers.
    """
    found = {
        name: tuple(
            float(simulate(build(name, ranks=ranks, micro_batches=m), costs).bubble_fraction) for m in micro_batches
        )
        for name in schedules
    }
    form = tuple((ranks - 1) / (m + ranks - 1) for m in micro_batches)
    return Bubbles(ranks, tuple(micro_batches), found, form)


def draw_bubbles(found: Bubbles) -> "Figure":
    """The picture: a line with markers per schedule, and the closed form.

    Raises:
        ValueError: matplotlib is not installed.
    """
    with styled():
        figure, axes = chart(
            f"Bubble of {found.ranks} ranks", "micro-batches m", "idle share of all ranks", found.micro_batches
        )
        axes.yaxis.set_major_formatter(lambda share, _: percent(share).replace(".0 ", " "))
        every = sorted(zip(found.micro_batches, found.closed_form, strict=True))
        axes.plot(*zip(*every, strict=True), color=INK, linestyle=":", label="(p−1)/(m+p−1)", zorder=3)
        for index, (name, of_name) in enumerate(found.simulated.items()):
            points = sorted(zip(found.micro_batches, of_name, strict=True))
            axes.plot(
                *zip(*points, strict=True),
                color=HUES[index % len(HUES)],
                marker=MARKERS[index % len(MARKERS)],
                markersize=9 - 3 * (index % 2),  # where two schedules agree, both are seen
                linewidth=1.2,
                label=name,
            )
        axes.set_ylim(bottom=0)
        axes.legend()
        return figure
