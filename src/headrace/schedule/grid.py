"""Write rows of actions as a grid, one column per tick of a clock in which every action takes one tick.

    0F0,0F1,,,0B0,0B1
    ,1F0,1F1,1B0,1B1,

So the text can be read as a picture. An overlapped pair is one cell, `(0F3;3B1)`. `headrace.schedule.text` reads it
back.
"""

from typing import TYPE_CHECKING

from headrace.schedule.actions import Action
from headrace.schedule.dependencies import Dependencies

if TYPE_CHECKING:
    from headrace.schedule.schedule import Schedule


def as_grid(schedule: "Schedule") -> str:
    """One line per row, cells separated by commas, an empty cell where the rank idles.

    Rows that deadlock are written without idle cells, as there is no time to align them to.
    """
    cells = [schedule.cells(rank) for rank in range(schedule.ranks)]
    columns = _ticks(cells, schedule)
    width = 1 + max((c for row in columns for c in row), default=-1)
    lines = _notes(schedule)
    for row, ticks in zip(cells, columns, strict=True):
        written = [""] * width
        for cell, tick in zip(row, ticks, strict=True):
            written[tick] = str(cell[0]) if len(cell) == 1 else f"({';'.join(map(str, cell))})"
        lines.append(",".join(written) + "\n")
    return "".join(lines)


def _notes(schedule: "Schedule") -> list[str]:
    """What the rows cannot say, if it is not as usual: `# segments=2`, `# delay=1`."""
    notes = {"segments": schedule.segments if schedule.segments != 1 else None, "delay": schedule.delay}
    return [f"# {name}={value}\n" for name, value in notes.items() if value is not None]


def _ticks(cells: list[list[tuple[Action, ...]]], schedule: "Schedule") -> list[list[int]]:
    dependencies = Dependencies(schedule.rows, schedule.stages, schedule.segments, schedule.pairs)
    ticks: list[list[int]] = [[] for _ in cells]
    ended: dict[Action, int] = {}
    moved = True
    while moved:
        moved = False
        for row, columns in zip(cells, ticks, strict=True):
            while len(columns) < len(row):
                cell = row[len(columns)]
                needs = dependencies.of(cell[0])
                if any(d not in ended for d in needs):
                    break
                before = [ended[d] for d in needs] + [columns[-1] + 1 if columns else 0]
                columns.append(max(before))
                ended.update((action, columns[-1] + 1) for action in cell)
                moved = True
    if any(len(c) < len(row) for c, row in zip(ticks, cells, strict=True)):
        return [list(range(len(row))) for row in cells]
    return ticks
