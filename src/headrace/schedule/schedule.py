"""A schedule is data: for each rank, the ordered list of actions that it performs.

The checker, the simulator, the charts and the runtime all read this one object; sends and receives
are derived from it (see `messages`), never written in it.
"""

from dataclasses import dataclass, replace
from functools import cached_property

from headrace.schedule.actions import FORWARD, UPDATE, Action
from headrace.schedule.dependencies import Dependencies
from headrace.schedule.grid import as_grid
from headrace.schedule.placement import Placement


@dataclass(frozen=True)
class Schedule:
    """What each rank does, in order.

    Attributes:
        name: what people call it, such as "1f1b".
        rows: one tuple of actions per rank.
        placement: which rank holds which stage.
        micro_batches: how many micro-batches (m) flow through in one step. If the sequences are cut as well, each
            segment counts: an action's number is micro-batch · segments + segment, and m counts these.
        pairs: the forwards that overlap with a backward, which is the next action of the row: `(0F3;3B1)`.
        segments: in how many pieces the sequences of a micro-batch are cut (S); 1 if they are whole.
        delay: of asynchronous schedules, whose rows have U: how many updates behind its own group the weights are
            that a micro-batch reads on every stage; None if it reads the newest that its stage has.

    A Schedule may be wrong – that is what `check` is for. The runtime runs none unchecked.
    """

    name: str
    rows: tuple[tuple[Action, ...], ...]
    placement: Placement
    micro_batches: int
    pairs: frozenset[Action] = frozenset()
    segments: int = 1
    delay: int | None = None

    @property
    def ranks(self) -> int:
        """How many ranks there are (p)."""
        return len(self.rows)

    @property
    def stages(self) -> int:
        """How many stages there are (S)."""
        return self.placement.stages

    @property
    def actions(self) -> int:
        """How many actions there are on all ranks together."""
        return sum(map(len, self.rows))

    @cached_property
    def asynchronous(self) -> bool:
        """Whether stages update their weights within the step, so that it is not the mathematics of one device."""
        return any(action.kind == UPDATE for row in self.rows for action in row)

    def cells(self, rank: int) -> list[tuple[Action, ...]]:
        """The row of `rank` in units that run at once: an action, or the two of an overlapped pair."""
        cells: list[tuple[Action, ...]] = []
        for action in self.rows[rank]:
            if self.pairs and cells and len(cells[-1]) == 1 and cells[-1][0] in self.pairs:
                cells[-1] = (cells[-1][0], action)
            else:
                cells.append((action,))
        return cells

    def to_text(self) -> str:
        """The grid notation, one line per rank; `parse` reads it back."""
        notes = {"segments": self.segments if self.segments != 1 else None, "delay": self.delay}
        dependencies = Dependencies(self.rows, self.stages, self.segments, self.pairs)
        return as_grid([self.cells(rank) for rank in range(self.ranks)], dependencies, notes)

    def forward_only(self, micro_batches: int) -> "Schedule":
        """What is left of this schedule when nothing is learned: its forwards of the first `micro_batches`.

        The order of what remains is a sub-order of a proven schedule with no wait added, so it is proven too.
        """
        rows = tuple(tuple(a for a in row if a.kind == FORWARD and a.micro_batch < micro_batches) for row in self.rows)
        return replace(
            self,
            name=f"{self.name} (forward only)",
            rows=rows,
            placement=replace(self.placement, lane_of=self.placement.lane_of[:micro_batches]),
            micro_batches=micro_batches,
            pairs=frozenset(),
            delay=None,
        )
