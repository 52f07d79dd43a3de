"""Tables for people, all in one look. What they say is decided by whoever prints them."""

from collections.abc import Collection, Iterable, Sequence
from typing import Final

from rich import box
from rich.table import Table

from headrace.timeline import Timeline
from headrace.units import percent, seconds

_SHORT: Final = 24
"""Names of so many characters stay in one piece."""


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], title: str | None = None) -> Table:
    """A table whose first column holds names and whose others hold numbers, aligned to the right.

    Raises:
        ValueError: a row has another number of cells than there are columns.
    """
    made = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    lines = [tuple(map(str, row)) for row in rows]
    for row in lines:
        if len(row) != len(columns):
            raise ValueError(f"a row has {len(row)} cells, but the table has {len(columns)} columns: {row!r}")
    short = all(len(row[0]) <= _SHORT for row in lines)
    for index, column in enumerate(columns):
        # where a terminal is narrow: nothing is cut off, and of a name that people type nothing goes to a second line
        made.add_column(column, justify="right" if index else "left", overflow="fold", no_wrap=not index and short)
    for row in lines:
        made.add_row(*row)
    return made


def ranks_table(timeline: Timeline, title: str | None = None) -> Table:
    """Rank by rank: seconds busy and idle, idle time ÷ makespan, and the most micro-batches in flight."""
    makespan = timeline.makespan
    rows = []
    for rank, (busy, peak) in enumerate(zip(timeline.busy, timeline.peak_in_flight, strict=True)):
        idle = makespan - busy
        rows.append((rank, seconds(busy), seconds(idle), percent(idle / makespan if makespan else 0), peak))
    return table(("rank", "busy", "idle", "bubble", "peak in flight"), rows, title)


def in_words(per_rank: Sequence[int]) -> str:
    """One number per rank, short: "8 on every rank", or "4, 3, 2, 1" from rank 0 on."""
    if len(per_rank) > 1 and len(set(per_rank)) == 1:
        return f"{per_rank[0]} on every rank"
    if len(per_rank) <= 8:
        return ", ".join(map(str, per_rank))
    return f"{', '.join(map(str, per_rank[:3]))}, …, {per_rank[-1]}"


def first_to_last(names: Sequence[str]) -> str:
    """The layers of a stage, one or more of them, short: "head", or "block0 … block3"."""
    return names[0] if len(names) == 1 else f"{names[0]} … {names[-1]}"


def in_runs(names: Sequence[str], chosen: Collection[str]) -> str:
    """Those of a stage's layers that are chosen, neighbours together: "block0 … block2, block5"."""
    runs: list[list[str]] = [[]]
    for name in names:
        if name in chosen:
            runs[-1].append(name)
        elif runs[-1]:
            runs.append([])
    return ", ".join(first_to_last(run) if len(run) > 2 else ", ".join(run) for run in runs if run)
