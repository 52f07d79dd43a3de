"""Write rows of actions as a grid, one column per tick of a clock in which every action takes one tick.

    0F0,0F1,,,0B0,0B1
    ,1F0,1F1,1B0,1B1,

So the text can be read as a picture. `headrace.schedule.text` reads it back.
"""

from collections.abc import Sequence

from headrace.schedule.actions import Action
from headrace.schedule.dependencies import Dependencies


def as_grid(rows: Sequence[Sequence[Action]], stages: int) -> str:
    """One line per row, cells separated by commas, an empty cell where the rank idles.

    Rows that deadlock are written without idle cells, as there is no time to align them to.
    """
    columns = _ticks(rows, stages)
    width = 1 + max((c for row in columns for c in row), default=-1)
    lines = []
    for row, ticks in zip(rows, columns, strict=True):
        cells = [""] * width
        for action, tick in zip(row, ticks, strict=True):
            cells[tick] = str(action)
        lines.append(",".join(cells) + "\n")
    return "".join(lines)


def _ticks(rows: Sequence[Sequence[Action]], stages: int) -> list[list[int]]:
    dependencies = Dependencies(rows, stages)
    ticks: list[list[int]] = [[] for _ in rows]
    ended: dict[Action, int] = {}
    moved = True
    while moved:
        moved = False
        for row, columns in zip(rows, ticks, strict=True):
            while len(columns) < len(row):
                action = row[len(columns)]
                needs = list(dependencies.of(action))
                if any(d not in ended for d in needs):
                    break
                before = [ended[d] for d in needs] + [columns[-1] + 1 if columns else 0]
                columns.append(max(before))
                ended[action] = columns[-1] + 1
                moved = True
    if any(len(c) < len(row) for c, row in zip(ticks, rows, strict=True)):
        return [list(range(len(row))) for row in rows]
    return ticks
