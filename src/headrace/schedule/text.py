"""Schedules as text: the grid that PyTorch's pipelining writes for compute-only schedules.

One row per rank, comma-separated cells, an empty cell where the rank idles:

    0F0,0F1,,,0B0,0B1
    ,1F0,1F1,1B0,1B1,

`Schedule.to_text` writes one column per tick of a clock in which every action takes one tick (see `grid`). Reading
ignores where the idle cells stand: the order within a row is all there is to a schedule. It also passes over cells
such as `0REDUCE_GRAD`, with which PyTorch notes when data-parallel replicas reduce their gradients: that is no work of
the pipeline.
"""

import re

from headrace.schedule.actions import Action
from headrace.schedule.check import InvalidSchedule
from headrace.schedule.placement import Placement
from headrace.schedule.schedule import Schedule

_NO_WORK = re.compile(r"|[0-9]+REDUCE_GRAD")


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
