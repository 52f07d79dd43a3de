"""Schedules as text: the grid that PyTorch's pipelining writes for compute-only schedules.

One row per rank, comma-separated cells, an empty cell where the rank idles:

    0F0,0F1,,,0B0,0B1
    ,1F0,1F1,1B0,1B1,

`Schedule.to_text` writes one column per tick of a clock in which every action takes one tick (see `grid`). Reading
ignores where the idle cells stand: the order within a row is all there is to a schedule. An overlapped pair is
`(0F3;3B1)`, also with PyTorch's OVERLAP_F_B behind it. Cells such as `0REDUCE_GRAD` are passed over: with them PyTorch
notes when data-parallel replicas reduce their gradients, which is no work of the pipeline.

A stage that is on one rank for some micro-batches and on another for others makes a two-way schedule with lanes.
Lines that begin with # are comments; `# segments=2` and `# delay=1` say what rows cannot (see `Schedule`).
"""

import re

from headrace.schedule.actions import Action
from headrace.schedule.check import InvalidSchedule
from headrace.schedule.placement import Placement
from headrace.schedule.schedule import Schedule

_NO_WORK = re.compile(r"|[0-9]+REDUCE_GRAD")
_PAIR = re.compile(r"\(([^;()]*);([^;()]*)\)(?:OVERLAP_F_B)?")
_NOTE = re.compile(r"#\s*(segments|delay)\s*=(.*)")


def parse(text: str, name: str = "custom") -> Schedule:
    """Read a grid. Placement and the number of micro-batches follow from its cells. The result is not yet checked.

    Raises:
        TypeError: `text` is no string.
        ValueError: a cell is malformed (named by row and column, from 1), a stage or a micro-batch is missing, or a
            stage is on two ranks for one micro-batch.
    """
    if not isinstance(text, str):
        raise TypeError(f"text={text!r} must be a string with one line per rank, such as 0F0,0B0; read a file first")
    notes: dict[str, int] = {}
    rows: list[tuple[Action, ...]] = []
    pairs: set[Action] = set()
    holder: dict[tuple[int, int], int] = {}  # of each (stage, micro-batch)
    for line in text.rstrip().splitlines():
        if line.lstrip().startswith("#"):
            notes.update(_note(line))
            continue
        r, row = len(rows), []
        for c, cell in enumerate(line.split(",")):
            try:
                actions = _cell(cell.strip())
            except ValueError as error:
                raise ValueError(f"row {r + 1}, column {c + 1}: {error}") from None
            for action in actions:
                if holder.setdefault((action.stage, action.micro_batch), r) != r:
                    raise InvalidSchedule(
                        f"row {r + 1}, column {c + 1}: rank {r} runs {action}, but rank "
                        f"{holder[action.stage, action.micro_batch]} already holds stage {action.stage}"
                    )
            if len(actions) > 1:
                pairs.add(actions[0])
            row += actions
        if not row:
            raise ValueError(f"row {r + 1} is empty: rank {r} would have nothing to do, so leave it out")
        rows.append(tuple(row))
    if not rows:
        raise ValueError("there is no row: write one line per rank, such as 0F0,0B0")
    _none_missing("stage", "stages", {stage for stage, _ in holder}, "a rank")
    _none_missing("micro-batch", "micro-batches", {k for _, k in holder}, "a forward")
    micro_batches = 1 + max(k for _, k in holder)
    return Schedule(name, tuple(rows), _placement(holder, micro_batches), micro_batches, frozenset(pairs), **notes)


def _cell(cell: str) -> list[Action]:
    if _NO_WORK.fullmatch(cell):
        return []
    pair = _PAIR.fullmatch(cell)
    if pair is None:
        return [Action.parse(cell)]
    return [Action.parse(part.strip()) for part in pair.groups()]


def _note(line: str) -> dict[str, int]:
    match = _NOTE.fullmatch(line.strip())
    if match is None:
        return {}
    name, value = match[1], match[2].strip()
    if not value.isdecimal() or (name == "segments" and int(value) < 1):
        raise ValueError(f"{line.strip()!r}: write a whole number, such as # {name}=1")
    return {name: int(value)}


def _none_missing(one: str, several: str, numbers: set[int], needs: str) -> None:
    """Refuse numbers with a gap, without counting further than there are numbers."""
    absent = next(number for number in range(len(numbers) + 1) if number not in numbers)
    if absent < max(numbers):
        raise ValueError(f"{one} {absent} is missing: {several} are numbered 0…{max(numbers)} and each needs {needs}")


def _placement(holder: dict[tuple[int, int], int], micro_batches: int) -> Placement:
    """The fewest lanes that explain which rank holds which stage for which micro-batch, taken in order."""
    stages = {stage for stage, _ in holder}
    of: list[dict[int, int]] = [{} for _ in range(micro_batches)]  # the ranks of each micro-batch's stages
    for (stage, k), rank in holder.items():
        of[k][stage] = rank
    lanes: list[dict[int, int]] = []
    lane_of = []
    for ranks in of:
        fits = (i for i, lane in enumerate(lanes) if all(lane.get(s, rank) == rank for s, rank in ranks.items()))
        number = next(fits, len(lanes))
        if number == len(lanes):
            lanes.append({})
        lanes[number].update(ranks)
        lane_of.append(number)
    anywhere = {stage: rank for lane in reversed(lanes) for stage, rank in lane.items()}
    full = [tuple(lane.get(stage, anywhere[stage]) for stage in sorted(stages)) for lane in lanes]
    return Placement(full[0], tuple(full[1:]), tuple(lane_of) if len(full) > 1 else ())
