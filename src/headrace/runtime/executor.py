"""The interpreter: one rank performs its row of a schedule, whatever the schedule.

    for each action of the row:
        receive what it needs  →  let the stage do it  →  send what it made

Which messages there are follows from the actions. The time in which a rank waits for a message is left out of the
spans, so the gaps in a measured timeline are the bubble.

The two actions of an overlapped pair run one after the other, unless a function is given that runs them at once; then
their spans are the same.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.optim import Optimizer

from headrace.runtime.acting import Acting
from headrace.runtime.failure import PipelineFailure, Stopped
from headrace.runtime.log import LoggedEndpoint
from headrace.runtime.process.clock import Clock
from headrace.runtime.process.ranges import Perform, in_ranges
from headrace.runtime.stage.lanes import LaneSum
from headrace.runtime.stage.stage import Stage
from headrace.runtime.work import Endpoint, Log, Outcome, Work
from headrace.schedule.actions import Action
from headrace.schedule.schedule import Schedule
from headrace.timeline import Span

Overlap = Callable[[Callable[[], None], Callable[[], None]], None]
"""Runs a forward and a backward at once: both must have been called, in this thread, when it returns."""

_EACH_ONCE = "overlap must call both functions that it is given, each once, and return when both ran"


class Executor:
    """Performs rows of schedules with the stages that one rank holds.

    Args:
        rank: whose rows.
        stages: those it holds, by number.
        clock: for the spans.
        sums: of those stages that have replicas on other ranks.
        optimizers: of the stages, for asynchronous schedules.
        overlap: how to run the forward and the backward of a pair at once.
    """

    def __init__(
        self,
        rank: int,
        stages: Mapping[int, Stage],
        clock: Clock,
        sums: Sequence[LaneSum] = (),
        optimizers: Mapping[int, Optimizer] | None = None,
        overlap: Overlap | None = None,
    ) -> None:
        self._rank = rank
        self._stages = stages
        self._clock = clock
        self._sums = sums
        self._optimizers = optimizers or {}
        self._overlap = overlap

    def align(self, endpoint: Endpoint) -> None:
        """Have the same weights as the other ranks that hold a copy of a stage."""
        for lane_sum in self._sums:
            if lane_sum.shared:
                lane_sum.align(endpoint)

    def perform(self, schedule: Schedule, endpoint: Endpoint, work: Work) -> Outcome:
        """Run this rank's row.

        Raises:
            PipelineFailure: an action raised.
            Stopped: another rank failed.
        """
        cells = _cells(schedule, self._rank, joint=self._overlap is not None)
        log = Log(self._rank)
        endpoint = LoggedEndpoint(endpoint, log)
        acting = Acting(self._rank, self._stages, schedule, endpoint, work, self._optimizers)
        perform = in_ranges(acting.perform)
        mark = self._clock.mark
        marks: list[Any] = []
        action: Action | None = None
        sums = self._sums if torch.is_grad_enabled() else ()
        try:
            for stage in self._stages.values():
                stage.prepare(schedule.segments)
            for lane_sum in sums:
                lane_sum.begin()
            self._clock.start()
            for cell in cells:
                action = cell[0]
                received = [acting.receive(action) for action in cell]
                marks.append(mark())
                made = [perform(action, received.pop())] if len(cell) == 1 else self._at_once(perform, cell, received)
                marks.append(mark())
                for action in cell:
                    acting.send(action, made.pop(0))
                del received, made  # or what was sent would live on while the next message is awaited
            action = None
            for lane_sum in sums:
                lane_sum.finish(endpoint)
            seconds = self._clock.seconds(marks)
        except Stopped:
            raise
        except Exception as error:
            raise PipelineFailure.of(self._rank, action, error) from error
        finally:
            for stage in self._stages.values():
                stage.forget()
            for lane_sum in sums:
                lane_sum.abandon()
        log.spans += (
            Span(self._rank, a, seconds[2 * i], seconds[2 * i + 1]) for i, cell in enumerate(cells) for a in cell
        )
        return Outcome(log, acting.results)

    def _at_once(self, perform: Perform, cell: tuple[Action, ...], received: list[Any]) -> list[Any]:
        made: dict[Action, Any] = {}

        def half(which: int) -> Callable[[], None]:
            begun: list[bool] = []

            def begin() -> None:
                if begun:
                    raise ValueError(f"{_EACH_ONCE}: it called the {('first', 'second')[which]} twice")
                begun.append(True)
                made[cell[which]] = perform(cell[which], received[which])

            return begin

        if self._overlap is not None:
            self._overlap(half(0), half(1))
        if len(made) < len(cell):
            raise ValueError(_EACH_ONCE)
        return [made[action] for action in cell]


def _cells(schedule: Schedule, rank: int, *, joint: bool) -> list[tuple[Action, ...]]:
    """What runs at once: pairs only if there is a function for them."""
    return schedule.cells(rank) if joint else [(action,) for action in schedule.rows[rank]]
