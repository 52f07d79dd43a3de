"""Schedules as text: the grid that PyTorch's pipelining writes for compute-only schedules.

One row per rank, comma-separated cells, an empty cell where the rank idles:

    0F0,0F1,,,0B0,0B1
    ,1F0,1F1,1B0,1B1,

We write one column per tick of a clock in which every action takes one tick, so that the grid can be read as a
picture. Reading ignores where the idle cells stand: the order within a row is all there is to a schedule. It also
passes over cells such as `0REDUCE_GRAD`, with which PyTorch notes when data-parallel replicas reduce their gradients:
that is no work of the pipeline.
"""

import re

from headrace.schedule.actions import Action
from headrace.schedule.check import InvalidSchedule
from headrace.schedule.dependencies import Dependencies
from headrace.schedule.placement import Placement
from headrace.schedule.schedule import Schedule

_NO_WORK = re.compile(r"|[0-9]+REDUCE_GRAD")


def to_text(schedule: Schedule) -> str:
    """The grid of a schedule, one line per rank, ending in a newline; `parse` reads it back.

    Rows of a schedule that deadlocks are written without idle cells, as there is no time to align them to.
    """
    columns = _ticks(schedule)
    width = 1 + max((c for row in columns for c in row), default=-1)
    lines = []
    for row, ticks in zip(schedule.rows, columns, strict=True):
        cells = [""] * width
        for action, tick in zip(row, ticks, strict=True):
            cells[tick] = str(action)
        lines.append(",".join(cells) + "\n")
    return "".join(lines)


def _ticks(schedule: Schedule) -> list[list[int]]:
    dependencies = Dependencies(schedule)
    ticks: list[list[int]] = [[] for _ in schedule.rows]
    ended: dict[Action, int] = {}
    moved = True
    while moved:
        moved = False
        for row, columns in zip(schedule.rows, ticks, strict=True):
            while len(columns) < len(row):
                action = row[len(columns)]
                needs = list(dependencies.of(action))
                if any(d not in ended for d in needs):
                    break
                before = [ended[d] for d in needs] + [columns[-1] + 1 if columns else 0]
                columns.append(max(before))
                ended[action] = columns[-1] + 1
                moved = True
    if any(len(c) < len(row) for c, row in zip(ticks, schedule.rows, strict=True)):
        return [list(range(len(row))) for row in schedule.rows]
    return ticks


def parse(text: str, name: str = "custom") -> Schedule:
    """Read a grid. Placement and the number of micro-batches follow from its cells. The result is not yet checked.

    Raises:
        ValueError: a cell is malformed (named by row and column, from 1), a stage is missing or is on two ranks.
    """
    rows = []
    holder: dict[int, int] = {}
    for r, line in enumerate(text.rstrip().splitlines()):
        row = []
        for c, cell in enumerate(line.split(",")):
            if _NO_WORK.fullmatch(cell.strip()):
                continue
            try:
                action = Action.parse(cell.strip())
            except ValueError as error:
                raise ValueError(f"row {r + 1}, column {c + 1}: {error}") from None
            if holder.setdefault(action.stage, r) != r:
                raise InvalidSchedule(
                    f"row {r + 1}, column {c + 1}: rank {r} runs {action}, but rank {holder[action.stage]} "
                    f"already holds stage {action.stage}"
                )
            row.append(action)
        if not row:
            raise ValueError(f"row {r + 1} is empty: rank {r} would have nothing to do, so leave it out")
        rows.append(tuple(row))
    if not rows:
        raise ValueError("there is no row: write one line per rank, such as 0F0,0B0")
    absent = next(stage for stage in range(len(holder) + 1) if stage not in holder)
    if absent < max(holder):
        raise ValueError(f"stage {absent} is missing: stages are numbered 0…{max(holder)} and each needs a rank")
    placement = Placement(tuple(holder[stage] for stage in sorted(holder)))
    micro_batches = 1 + max(action.micro_batch for row in rows for action in row)
    return Schedule(name, tuple(rows), placement, micro_batches)
