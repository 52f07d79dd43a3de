"""The interpreter: one rank performs its row of a schedule, whatever the schedule.

    for each action of the row:
        receive what it needs  →  let the stage do it  →  send what it made

Which messages there are follows from the actions. The time in which a rank waits for a message is left out of the
spans, so the gaps in a measured timeline are the bubble.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch

from headrace.runtime.batch.feed import same_batch, same_rows
from headrace.runtime.failure import PipelineFailure, Stopped
from headrace.runtime.process.clock import Clock
from headrace.runtime.stage.boundary import Parcel, Value
from headrace.runtime.stage.stage import Stage
from headrace.schedule.actions import BACKWARD, FORWARD, RECOMPUTE, Action
from headrace.schedule.messages import Message
from headrace.schedule.schedule import Schedule
from headrace.timeline import Span


class Endpoint(Protocol):
    """One rank's end of a transport, for one step. Payloads are parcels (activations) and gradients."""

    def send(self, message: Message, payload: Any) -> None:
        """Hand a message on; never waits for the receiver."""

    def receive(self, message: Message) -> Any:
        """Wait for a message; raises Stopped if another rank failed."""


@dataclass(frozen=True)
class Work:
    """What a rank needs beyond its messages in one step.

    Attributes:
        inputs: on the rank of the first stage, one parcel per micro-batch.
        tails: on the rank of the last stage, for each micro-batch what turns the model's output into the result
            that is kept: when training, its loss.
        weights: on the rank of the last stage, when training, what each loss is multiplied with.
        rows: on the rank of the last stage, how many the targets have; 0 if that need not be those of the input.
        batch: on the rank of the last stage, the fingerprint of the input that it was given; 0 if it was given none.
        seed: of the step's random numbers.
    """

    inputs: Sequence[Parcel] = ()
    tails: Sequence[Callable[[Value], Any]] = ()
    weights: Sequence[float] = ()
    rows: int = 0
    batch: int = 0
    seed: int = 0


@dataclass
class Outcome:
    """What a step left on a rank: the spans, and on the rank of the last stage the results by micro-batch."""

    spans: list[Span] = field(default_factory=list)
    results: dict[int, Value] = field(default_factory=dict)


class Executor:
    """Performs rows of schedules with the stages that one rank holds.

    Args:
        rank: whose rows.
        stages: those it holds, by number.
        last_stage: the number of the model's last stage.
        clock: for the spans.
    """

    def __init__(self, rank: int, stages: Mapping[int, Stage], last_stage: int, clock: Clock) -> None:
        self._rank = rank
        self._stages = stages
        self._last_stage = last_stage
        self._clock = clock

    def perform(self, schedule: Schedule, endpoint: Endpoint, work: Work) -> Outcome:
        """Run this rank's row.

        Raises:
            PipelineFailure: an action raised.
            Stopped: another rank failed.
        """
        row = schedule.rows[self._rank]
        step = _Step(self._stages, self._last_stage, row, endpoint, work)
        mark = self._clock.mark
        marks: list[Any] = []
        action: Action | None = None
        try:
            for stage in self._stages.values():
                stage.prepare()
            self._clock.start()
            for action in row:
                received = step.receive(action)
                marks.append(mark())
                made = step.perform(action, received)
                marks.append(mark())
                step.send(action, made)
                del received, made  # or what was sent would live on while the next message is awaited
            seconds = self._clock.seconds(marks)
        except Stopped:
            raise
        except Exception as error:
            raise PipelineFailure.of(self._rank, action, error) from error
        finally:
            for stage in self._stages.values():
                stage.forget()
        spans = [Span(self._rank, a, seconds[2 * i], seconds[2 * i + 1]) for i, a in enumerate(row)]
        return Outcome(spans, step.results)


class _Step:
    """One step of one rank: what its actions receive, do and send."""

    def __init__(
        self, stages: Mapping[int, Stage], last: int, row: Sequence[Action], endpoint: Endpoint, work: Work
    ) -> None:
        self.results: dict[int, Value] = {}
        self._stages = stages
        self._last = last
        self._endpoint = endpoint
        self._work = work
        self._recomputed = {(stage, k) for stage, kind, k in row if kind == RECOMPUTE}
        # Whether a gradient must flow into and out of (stage, micro-batch) is known from its forward, at both ends
        # of the boundary alike: where it need not, no message is sent.
        self._gradient_comes: dict[tuple[int, int], bool] = {}
        self._gradient_wanted: dict[tuple[int, int], bool] = {}

    def receive(self, action: Action) -> Any:
        stage, kind, k = action
        if kind == FORWARD:
            if stage == 0:
                return self._work.inputs[k]
            return self._endpoint.receive(Message("activation", stage, k))
        if kind == BACKWARD:
            if stage == self._last:
                return (
                    torch.tensor(self._work.weights[k], dtype=self.results[k].dtype, device=self.results[k].device),
                )
            if self._gradient_comes[stage, k]:
                return self._endpoint.receive(Message("gradient", stage, k))
        return ()

    def perform(self, action: Action, received: Any) -> Any:
        index, kind, k = action
        stage = self._stages[index]
        if kind == FORWARD:
            tail = self._work.tails[k] if index == self._last else None
            recompute = (index, k) in self._recomputed
            self._gradient_wanted[index, k] = received.wants_gradient
            if tail is not None and received.rows and self._work.rows:
                same_rows({"x": received.rows, "y": self._work.rows})
            if tail is not None and received.batch and self._work.batch:
                same_batch(received.batch, self._work.batch)
            made = stage.forward(k, received, seed=self._work.seed, tail=tail, recompute=recompute)
            if tail is not None and self._work.weights and torch.is_grad_enabled() and self._work.weights[k]:
                _refuse_without_graph(made)
            return replace(made, rows=received.rows, batch=received.batch)
        if kind == RECOMPUTE:
            return stage.recompute(k)
        if kind == BACKWARD:
            return stage.backward(k, received)
        raise NotImplementedError(f"{action}: the runtime does not split a backward into I and W yet; use B")

    def send(self, action: Action, made: Any) -> None:
        stage, kind, k = action
        if kind == FORWARD:
            if stage == self._last:
                self.results[k] = made.value
            else:
                self._gradient_comes[stage, k] = made.wants_gradient
                self._endpoint.send(Message("activation", stage + 1, k), made)
        elif kind == BACKWARD and stage > 0 and self._gradient_wanted[stage, k]:
            self._endpoint.send(Message("gradient", stage - 1, k), made)


def _refuse_without_graph(loss: Parcel) -> None:
    if not loss.wants_gradient:
        raise ValueError(
            "the loss depends on no parameter that requires grad, so nothing would be trained: loss_fn detaches it, or "
            "all layers are frozen"
        )
