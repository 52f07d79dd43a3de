"""What a search gives: a schedule, and how good it is at most."""

from dataclasses import dataclass

from headrace.schedule.schedule import Schedule
from headrace.search.play import Objective


@dataclass(frozen=True)
class Found:
    """A schedule and what is known of it.

        0 ──────────── lower_bound ──────── value
                            ├──── gap ────────┤     no schedule is to the left of lower_bound

    Attributes:
        schedule: it passes `check` and is within the memory that was asked for.
        makespan: seconds, as `simulate` has it.
        objective: what was to be short, "makespan" or "span".
        value: its seconds; for "makespan" the same as `makespan`.
        lower_bound: seconds below which `value` cannot come for any schedule of the same placement and memory.
        gap: (value − lower_bound) ÷ value; 0 for a proven optimum.
        proven: whether `schedule` is an optimum: value and lower bound are the same.
        seconds: how long the search took.
        how: how the schedule and the bound were come by, in words.
    """

    schedule: Schedule
    makespan: float
    objective: Objective
    value: float
    lower_bound: float
    gap: float
    proven: bool
    seconds: float
    how: str
