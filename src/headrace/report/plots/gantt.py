"""A timeline as a picture: ranks as rows, a hue per micro-batch, as the papers draw schedules.

             0    1    2    3    4    5    6
    rank 0  [0 ][1 ]//////////[ 0     ][ 1     ]        light: forward, full: backward, dark: weight gradient
    rank 1  ////[0 ][ 0     ][1 ][ 1     ]//////        hatched: idle

Kinds differ by lightness and, where it fits, by letter, so that the picture says the same without colour. Two actions
that overlap share the height of their row.
"""

from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from statistics import median_low
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from headrace.report.plots.canvas import HUES, INK, QUIET, styled
from headrace.schedule.actions import Action, Kind
from headrace.timeline import Span, Timeline
from headrace.units import number, percent, seconds, time_unit

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Inches.
_LEFT, _RIGHT, _TOP, _BOTTOM = 0.62, 0.2, 0.36, 0.7
_ROW, _TALLEST = 0.36, 12.0
_COLUMN: Final = 0.18  # of the typical forward, so that two digits fit
_NARROWEST, _WIDEST = 6.0, 22.0

_SHADES: Final[dict[Kind, float]] = {"F": 0.62, "B": 0.0, "I": 0.0, "W": -0.42, "R": 0.84, "U": 0.0}
"""How far a hue goes to white (1) or to black (−1)."""
_UPDATE: Final = "#555555"
_IDLE: Final[dict[str, Any]] = {"facecolor": "#f6f6f6", "edgecolor": "#bdbdbd", "hatch": "////", "linewidth": 0}
_NAMES: Final[dict[Kind, str]] = {
    "F": "forward",
    "B": "backward",
    "I": "input gradient",
    "W": "weight gradient",
    "R": "recompute",
    "U": "update",
}
"""In the order of the legend; shorter than elsewhere, so that all of it fits below a narrow picture."""
_BOX: Final = 0.88  # of a row's height
_FONT: Final = 7.0  # points


class _Box(NamedTuple):
    """A span, where it is drawn: rows count from the top, and a box is 1 high or half of that."""

    span: Span
    bottom: float
    height: float


def draw_gantt(timeline: Timeline, title: str = "") -> "Figure":
    """The picture of `timeline`, simulated or measured; its title ends with makespan and bubble.

    Raises:
        ValueError: matplotlib is not installed.
    """
    with styled():
        from matplotlib.figure import Figure

        spans = [span for span in timeline.spans if span.end > span.start]
        end = float(timeline.makespan) or 1.0
        width = _width(spans, end)
        row = min(_ROW, _TALLEST / max(1, timeline.ranks))
        size = (_LEFT + width + _RIGHT, _TOP + row * max(1, timeline.ranks) + _BOTTOM)
        figure = Figure(figsize=size)
        axes = figure.add_axes(
            (
                _LEFT / size[0],
                _BOTTOM / size[1],
                width / size[0],
                row * max(1, timeline.ranks) / size[1],
            )
        )
        says = f"{seconds(timeline.makespan)}, bubble {percent(timeline.bubble_fraction)}"
        axes.set_title(f"{title}: {says}" if title else says)
        _axes(axes, timeline.ranks, end)
        boxes = _boxes(spans)
        _draw_boxes(axes, boxes)
        _write_labels(axes, [box for box in boxes if box.height * row * 72 > 1.3 * _FONT], width * 72 / end)
        _legend(figure, [kind for kind in _NAMES if any(span.action.kind == kind for span in spans)])
        return figure


def _width(spans: Sequence[Span], end: float) -> float:
    """Inches of the time axis: so many that the number of a typical forward fits, within reason."""
    forwards = [float(span.end - span.start) for span in spans if span.action.kind == "F"]
    typical = median_low(forwards) if forwards else end
    return min(max(_NARROWEST, _COLUMN * end / typical), _WIDEST)


def _axes(axes: "Axes", ranks: int, end: float) -> None:
    from matplotlib.patches import Rectangle

    unit = time_unit(end)
    axes.set_xlim(0, end)
    axes.set_ylim(max(1, ranks), 0)
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", length=0)
    axes.set_yticks([rank + 0.5 for rank in range(ranks)], labels=[f"rank {rank}" for rank in range(ranks)])
    axes.xaxis.set_major_formatter(lambda at, _: number(at / unit.in_seconds))
    ticks = axes.xaxis.get_major_locator().tick_values(0, end / unit.in_seconds)
    axes.set_xticks(
        [float(tick) * unit.in_seconds for tick in ticks if 0 <= tick <= end / unit.in_seconds * (1 + 1e-9)]
    )
    axes.set_xlabel(f"time in {unit.sign}", loc="right", labelpad=1)
    for rank in range(ranks):
        axes.add_patch(Rectangle((0, rank + (1 - _BOX) / 2), end, _BOX, **_IDLE))


def _boxes(spans: Sequence[Span]) -> list[_Box]:
    """One box a span; of two neighbours in a row that overlap, the first gets the upper half."""
    rows: dict[int, list[Span]] = {}
    for span in spans:
        rows.setdefault(span.rank, []).append(span)
    boxes = []
    for rank, row in rows.items():
        top, whole = rank + (1 - _BOX) / 2, [(0.0, _BOX)] * len(row)
        for index, (one, other) in enumerate(pairwise(row)):
            overlap = min(one.end, other.end) - max(one.start, other.start)
            if overlap > 0.01 * min(one.end - one.start, other.end - other.start):
                whole[index : index + 2] = [(0.0, _BOX / 2), (_BOX / 2, _BOX / 2)]
        boxes += [_Box(span, top + shift, height) for span, (shift, height) in zip(row, whole, strict=True)]
    return boxes


def _draw_boxes(axes: "Axes", boxes: Sequence[_Box]) -> None:
    from matplotlib.collections import PolyCollection

    corners = []
    for (_, _, start, end), bottom, height in boxes:
        left, right, top = float(start), float(end), bottom + height
        corners.append([(left, bottom), (right, bottom), (right, top), (left, top)])
    edge = 0.6 if len(boxes) < 2000 else 0.0
    colours = [colour(box.span.action) for box in boxes]
    axes.add_collection(PolyCollection(corners, facecolors=colours, edgecolors="white", linewidths=edge))


def colour(action: Action) -> str:
    """A hue for the micro-batch, a shade for the kind; after eight micro-batches hues come again."""
    return _UPDATE if action.kind == "U" else _shade(HUES[action.micro_batch % len(HUES)], _SHADES[action.kind])


@cache
def _shade(hue: str, towards: float) -> str:
    """`hue` on its way to white (1) or black (−1)."""
    aim, share = (255, towards) if towards > 0 else (0, -towards)
    parts = (int(hue[i : i + 2], 16) for i in (1, 3, 5))
    return "#" + "".join(f"{round(part + (aim - part) * share):02x}" for part in parts)


def _write_labels(axes: "Axes", boxes: Sequence[_Box], points: float) -> None:
    """Write one form of label wherever it fits: the longest that fits everywhere, or else the bare number.

    Args:
        points: of a second.
    """
    room = [float(span.end - span.start) * points - 2 for span, _, _ in boxes]
    many_stages = len({(s.rank, s.action.stage) for s, _, _ in boxes}) > len({s.rank for s, _, _ in boxes})
    forms = ["{a.stage}{a.kind}{a.micro_batch}"] if many_stages else []
    labels: list[str] = []
    for form in [*forms, "{a.kind}{a.micro_batch}", "{a.micro_batch}"]:
        labels = [form.format(a=span.action) for span, _, _ in boxes]
        if all(_length(label) <= fits for label, fits in zip(labels, room, strict=True)):
            break
    for (span, bottom, height), label, fits in zip(boxes, labels, room, strict=True):
        if _length(label) <= fits:
            axes.text(
                float(span.start + span.end) / 2,
                bottom + height / 2,
                label,
                size=_FONT,
                color=_readable_on(colour(span.action)),
                ha="center",
                va="center_baseline",
            )


@cache
def _length(label: str) -> float:
    """Points that `label` takes."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import TextPath

    return float(TextPath((0, 0), label, size=_FONT, prop=FontProperties(family="DejaVu Sans")).get_extents().width)


def _readable_on(background: str) -> str:
    red, green, blue = (int(background[i : i + 2], 16) / 255 for i in (1, 3, 5))
    return INK if 0.299 * red + 0.587 * green + 0.114 * blue > 0.5 else "white"


def _legend(figure: "Figure", kinds: Sequence[Kind]) -> None:
    from matplotlib.patches import Patch

    fills = {kind: _UPDATE if kind == "U" else _shade(QUIET, _SHADES[kind]) for kind in kinds}
    entries = [Patch(facecolor=fill, label=f"{kind} {_NAMES[kind]}", linewidth=0) for kind, fill in fills.items()]
    entries.append(Patch(label="idle", **_IDLE))
    figure.legend(
        handles=entries,
        loc="lower left",
        bbox_to_anchor=(_LEFT / figure.get_figwidth(), 0.0),
        borderaxespad=0.3,
        borderpad=0.2,
        ncols=len(entries),
        fontsize=8,
        handlelength=1.4,
        columnspacing=1.4,
        title="a hue per micro-batch",
        title_fontsize=8,
        alignment="left",
    )
