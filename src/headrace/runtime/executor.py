"""The interpreter: one rank performs its row of a schedule, whatever the schedule.

    for each action of the row:
        receive what it needs  →  let the stage do it  →  send what it made

Which messages there are follows from the actions. The time in which a rank waits for a message is left out of the
spans, so the gaps in a measured timeline are the bubble.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from headrace.runtime.acting import Acting
from headrace.runtime.failure import PipelineFailure, Stopped
from headrace.runtime.process.clock import Clock
from headrace.runtime.stage.lanes import LaneSum
from headrace.runtime.stage.stage import Stage
from headrace.runtime.work import Endpoint, Outcome, Work
from headrace.schedule.actions import Action
from headrace.schedule.schedule import Schedule
from headrace.timeline import Span


class Executor:
    """Performs rows of schedules with the stages that one rank holds.

    Args:
        rank: whose rows.
        stages: those it holds, by number.
        clock: for the spans.
        sums: of those stages that have replicas on other ranks.
    """

    def __init__(self, rank: int, stages: Mapping[int, Stage], clock: Clock, sums: Sequence[LaneSum] = ()) -> None:
        self._rank = rank
        self._stages = stages
        self._clock = clock
        self._sums = sums

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
        row = schedule.rows[self._rank]
        acting = Acting(self._rank, self._stages, schedule, endpoint, work)
        mark = self._clock.mark
        marks: list[Any] = []
        action: Action | None = None
        sums = self._sums if torch.is_grad_enabled() else ()
        try:
            for stage in self._stages.values():
                stage.prepare()
            for lane_sum in sums:
                lane_sum.begin()
            self._clock.start()
            for action in row:
                received = acting.receive(action)
                marks.append(mark())
                made = acting.perform(action, received)
                marks.append(mark())
                acting.send(action, made)
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
        spans = [Span(self._rank, a, seconds[2 * i], seconds[2 * i + 1]) for i, a in enumerate(row)]
        return Outcome(spans, acting.results)
