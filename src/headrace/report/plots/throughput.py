"""Throughput against the number of ranks: planned for each, and measured where it was run."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.report.plots.canvas import HUES, QUIET, chart, styled
from headrace.units import number

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Point:
    """One number of ranks.

    Attributes:
        ranks: K.
        plan: the schedule and its options, in words.
        predicted: rows per second, by the simulated step of the plan.
        measured: rows per second of steps that were run; None if none was.
    """

    ranks: int
    plan: str
    predicted: float
    measured: float | None


@dataclass(frozen=True)
class Throughput:
    """Rows per second.

    Attributes:
        what: the model and where it runs, in words.
        points: one per number of ranks.
    """

    what: str
    points: tuple[Point, ...]


def draw_throughput(found: Throughput) -> "Figure":
    """The picture: planned, measured, and the line of as many times the first as there are ranks.

    Raises:
        ValueError: matplotlib is not installed.
    """
    with styled():
        points = sorted(found.points, key=lambda point: point.ranks)
        ranks = [point.ranks for point in points]
        figure, axes = chart(
            f"Throughput of {found.what}", "ranks K, and what is planned for them", "rows per second", ranks
        )
        axes.set_xticks(ranks, labels=["\n".join([str(point.ranks), *point.plan.split(", ")]) for point in points])
        first = points[0].predicted / ranks[0]
        axes.plot(ranks, [first * k for k in ranks], color=QUIET, linestyle=":", label="in proportion to K")
        axes.plot(ranks, [point.predicted for point in points], color=HUES[0], marker="o", label="planned")
        run = [(point.ranks, point.measured) for point in points if point.measured is not None]
        if run:
            axes.plot(*zip(*run, strict=True), color=HUES[5], marker="s", linestyle="none", label="measured here")
        axes.set_yscale("log", base=2)
        axes.yaxis.set_major_formatter(lambda rate, _: number(rate))
        axes.legend(loc="upper left")
        return figure
