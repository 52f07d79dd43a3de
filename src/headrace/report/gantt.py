"""A timeline as a text picture: one row per rank, time from left to right.

    rank 0  F0 F1 ···[B0  ]···[B1  ]
    rank 1  ···F0 [B0  ]F1 [B1  ]···
         s  0        3        6

Kinds differ by letter and brackets, so that the picture says the same without colour. An action shorter than one
column is drawn where its column holds nothing longer, so a crowded chart shows more of the busy time than of the idle.
Of an overlapped pair, each part gets half of the time in which both run.
"""

from collections.abc import Iterable, Sequence
from itertools import groupby, pairwise
from math import floor, log10
from typing import Final, NamedTuple

from rich.text import Text

from headrace.schedule.actions import KIND_NAMES, Action, Kind
from headrace.timeline import Span, Timeline
from headrace.units import time_unit


class _Look(NamedTuple):
    left: str
    right: str
    styles: tuple[str, str]  # for even and odd micro-batches, so that neighbours stand apart


_LOOKS: Final[dict[Kind, _Look]] = {
    "F": _Look("", "", ("black on cyan", "black on bright_cyan")),
    "B": _Look("[", "]", ("black on yellow", "black on bright_yellow")),
    "I": _Look("(", ")", ("black on green", "black on bright_green")),
    "W": _Look("<", ">", ("black on magenta", "black on bright_magenta")),
    "R": _Look("{", "}", ("white on blue", "white on bright_blue")),
    "U": _Look("", "", ("black on white", "black on bright_white")),
}
_IDLE: Final = "·"
_FEWEST_COLUMNS: Final = 30  # so that each entry of the legend fits


def gantt(timeline: Timeline, width: int = 100) -> Text:
    """The chart of `timeline`, with a time axis and a legend, in lines of at most `width` columns.

    Actions are labelled with kind and micro-batch where that fits, and with the stage before them where a rank
    holds several.

    Raises:
        ValueError: `width` leaves fewer than 30 columns beside the names of the ranks.
    """
    names = [f"rank {rank}" for rank in range(timeline.ranks)]
    margin = 2 + max(map(len, names), default=len("rank 0"))
    columns = width - margin
    if columns < _FEWEST_COLUMNS:
        raise ValueError(
            f"width={width} is too narrow for a chart: give it at least {margin + _FEWEST_COLUMNS} columns"
        )

    rows: list[list[Span]] = [[] for _ in names]
    for span in timeline.spans:
        rows[span.rank].append(span)
    many_stages = any(len({span.action.stage for span in row}) > 1 for row in rows)
    end = float(timeline.makespan)
    scale = _columns_per_second(timeline.spans, end, columns)
    used = max(1, _column(end, scale)) if scale else columns

    chart = Text(no_wrap=True, overflow="ignore")
    for name, row in zip(names, rows, strict=True):
        chart.append(name.ljust(margin), "bold")
        _draw(chart, row, scale, used, many_stages)
        chart.append("\n")
    _axis(chart, end, scale, margin, columns)
    _legend(chart, {span.action.kind for span in timeline.spans}, margin, columns)
    return chart


def _column(seconds: float, scale: float) -> int:
    return floor(float(seconds) * scale + 0.5)


def _columns_per_second(spans: Iterable[Span], end: float, columns: int) -> float:
    """So many that the whole fits, and whole columns per tick where all times are multiples of one tick.

    The tick is the shortest action: with it, equal actions of a simulated schedule come out equally wide.
    """
    if end <= 0:
        return 0
    scale = columns / end
    spans = list(spans)
    tick = float(min((span.end - span.start for span in spans if span.end > span.start), default=0))
    if tick * scale < 1:
        return scale
    for span in spans:
        for moment in (span.start, span.end):
            ticks = float(moment) / tick
            if abs(ticks - round(ticks)) > 1e-6:
                return scale
    return floor(tick * scale + 1e-9) / tick


def _draw(chart: Text, row: Sequence[Span], scale: float, used: int, many_stages: bool) -> None:
    """Append one rank's row: who owns each column is settled first, then runs of one owner become blocks."""
    owner: list[int | None] = [None] * used
    short: list[tuple[int, int]] = []
    for index, (begin, stop) in enumerate(_halved(row)):
        start, end = max(0, _column(begin, scale)), _column(stop, scale)
        if end > start:
            owner[start:end] = [index] * (min(end, used) - start)
        else:
            short.append((min(start, used - 1), index))
    for column, index in short:
        if owner[column] is None:
            owner[column] = index
    for index_or_none, cells in groupby(owner):
        length = len(list(cells))
        if index_or_none is None:
            chart.append(_IDLE * length, "dim")
        else:
            action = row[index_or_none].action
            chart.append(_block(action, length, many_stages), _LOOKS[action.kind].styles[action.micro_batch % 2])


def _halved(row: Sequence[Span]) -> list[tuple[float, float]]:
    """Start and end of each span; of two that are the same time, its first and its second half."""
    times = [(span.start, span.end) for span in row]
    for index, (one, other) in enumerate(pairwise(times)):
        if one == other and one[0] < one[1]:
            middle = (one[0] + one[1]) / 2
            times[index], times[index + 1] = (one[0], middle), (middle, one[1])
    return times


def _block(action: Action, length: int, many_stages: bool) -> str:
    """`action` drawn in `length` columns: in brackets if they fit, and never with half of a number."""
    look = _LOOKS[action.kind]
    short = f"{action.kind}{action.micro_batch}"
    labels = [str(action), action.kind] if many_stages else [short, action.kind]
    for label in labels:
        room = length - len(look.left) - len(look.right)
        if len(label) <= room:
            return f"{look.left}{label.ljust(room)}{look.right}"
        if len(label) <= length:
            return label.ljust(length)
    return action.kind.ljust(length)


def _axis(chart: Text, end: float, scale: float, margin: int, columns: int) -> None:
    """Append the line of times: round numbers, each beginning at the column that it names."""
    unit = time_unit(end)
    last = end / unit.in_seconds
    line = " " * columns
    for text, at in _ticks(last, scale * unit.in_seconds):
        start = min(at, columns - len(text))
        if not line[max(0, start - 1) : start + len(text)].strip():
            line = line[:start] + text + line[start + len(text) :]
    chart.append(f"{unit.sign.rjust(margin - 2)}  {line.rstrip()}\n", "dim")


def _ticks(last: float, scale: float) -> list[tuple[str, int]]:
    """Labels and columns of 0, step, 2 · step … up to `last`, far enough apart to be read."""
    if not scale:
        return [("0", 0)]
    wanted = 8 / scale
    power = 10.0 ** floor(log10(wanted))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= wanted * (1 - 1e-9))
    decimals = max(0, -floor(log10(step) + 1e-9))
    return [(f"{i * step:.{decimals}f}", _column(i * step, scale)) for i in range(floor(last / step + 1e-9) + 1)]


def _legend(chart: Text, kinds: set[Kind], margin: int, columns: int) -> None:
    """Append what the blocks mean, in as many lines as it takes."""
    entries = [(f"{look.left}{kind}{look.right}", look.styles[0], KIND_NAMES[kind]) for kind, look in _LOOKS.items()]
    shown = [entry for kind, entry in zip(_LOOKS, entries, strict=True) if kind in kinds]
    chart.append(" " * margin)
    at = 0
    for sign, style, name in [*shown, (_IDLE, "dim", "idle")]:
        length = len(sign) + 1 + len(name)
        if at:
            apart = at + 3 + length > columns
            chart.append("\n" + " " * margin if apart else "   ")
            at = 0 if apart else at + 3
        chart.append(sign, style)
        chart.append(f" {name}")
        at += length
