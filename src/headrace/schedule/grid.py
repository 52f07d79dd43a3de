"""Write rows of actions as a grid, one column per tick of a clock in which every action takes one tick.

    0F0,0F1,,,0B0,0B1
    ,1F0,1F1,1B0,1B1,

So the text can be read as a picture. An overlapped pair is one cell, `(0F3;3B1)`. `headrace.schedule.text` reads it
back.
"""

from collections.abc import Mapping, Sequence

from headrace.schedule.actions import Action
from headrace.schedule.dependencies import Dependencies

Cells = Sequence[Sequence[tuple[Action, ...]]]
"""For each rank, what it does in one tick: an action, or the two of a pair."""


def as_grid(cells: Cells, dependencies: Dependencies, notes: Mapping[str, int | None]) -> str:
    """One line per row, cells separated by commas, an empty cell where the rank idles.

    Rows that deadlock are written without idle cells, as there is no time to align them to.

    Args:
        cells: of each rank.
        dependencies: what each action waits for.
        notes: what the rows cannot say, such as `# segments=2`, in lines before them; None to say nothing.
    """
    columns = _ticks(cells, dependencies)
    width = 1 + max((c for row in columns for c in row), default=-1)
    lines = [f"# {name}={value}\n" for name, value in notes.items() if value is not None]
    for row, ticks in zip(cells, columns, strict=True):
        written = [""] * width
        for cell, tick in zip(row, ticks, strict=True):
            written[tick] = str(cell[0]) if len(cell) == 1 else f"({';'.join(map(str, cell))})"
        lines.append(",".join(written) + "\n")
    return "".join(lines)


def _ticks(cells: Cells, dependencies: Dependencies) -> list[list[int]]:
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
