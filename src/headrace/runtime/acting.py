"""One step of one rank: what each of its actions receives, does and sends."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from headrace.runtime.batch.feed import same_batch, same_rows
from headrace.runtime.stage.boundary import Parcel, Value
from headrace.runtime.stage.stage import Stage
from headrace.runtime.stage.versions import Versions
from headrace.runtime.work import Endpoint, Work
from headrace.schedule.actions import (
    BACKWARD,
    BACKWARD_INPUT,
    ENDS_BACKWARD,
    FORWARD,
    GIVES_INPUT_GRADIENT,
    RECOMPUTE,
    UPDATE,
    Action,
)
from headrace.schedule.joined import split_in
from headrace.schedule.messages import Message
from headrace.schedule.schedule import Schedule
from headrace.schedule.versions import version_read


class Acting:
    """A rank at work on its row of `schedule`.

    Attributes:
        results: what the last stage made, by micro-batch, as far as this rank holds it.
    """

    def __init__(
        self,
        rank: int,
        stages: Mapping[int, Stage],
        schedule: Schedule,
        endpoint: Endpoint,
        work: Work,
        optimizers: Mapping[int, Optimizer],
    ) -> None:
        self.results: dict[int, Value] = {}
        self._stages = stages
        self._last = schedule.stages - 1
        self._holder = schedule.placement.rank
        self._endpoint = endpoint
        self._work = work
        self._recomputed = {(stage, k) for stage, kind, k in schedule.rows[rank] if kind == RECOMPUTE}
        self._split = split_in(schedule.rows[rank])
        self._versions: dict[int, Versions] = {}
        if schedule.asynchronous:
            row, reads = schedule.rows[rank], version_read(schedule, rank)
            self._versions = {i: Versions(i, s.layers, optimizers.get(i), row, reads) for i, s in stages.items()}
        # Whether a gradient must flow into and out of (stage, micro-batch) is known from its forward, at both ends
        # of the boundary alike: where it need not, no message is sent.
        self._gradient_comes: dict[tuple[int, int], bool] = {}
        self._gradient_wanted: dict[tuple[int, int], bool] = {}

    def receive(self, action: Action) -> Any:
        """What `action` needs from elsewhere: a parcel, gradients, or nothing."""
        stage, kind, k = action
        if kind == FORWARD:
            if stage == 0:
                return self._work.inputs[k]
            return self._endpoint.receive(self._holder(stage - 1, k), Message("activation", stage, k))
        if kind in GIVES_INPUT_GRADIENT:
            if stage == self._last:
                return (
                    torch.tensor(self._work.weights[k], dtype=self.results[k].dtype, device=self.results[k].device),
                )
            if self._gradient_comes[stage, k]:
                return self._endpoint.receive(self._holder(stage + 1, k), Message("gradient", stage, k))
        return ()

    def perform(self, action: Action, received: Any) -> Any:
        """Let the stage do `action`; what it made."""
        index, kind, k = action
        versions = self._versions.get(index)
        if versions is None:
            return self._perform(action, received)
        if kind == UPDATE:
            return versions.update()
        with versions.reading(k):
            made = self._perform(action, received)
        if kind in ENDS_BACKWARD:
            versions.collect(k)
        versions.used(k)
        return made

    def _perform(self, action: Action, received: Any) -> Any:
        index, kind, k = action
        stage = self._stages[index]
        if kind == FORWARD:
            return self._forward(stage, k, received)
        if kind == RECOMPUTE:
            return stage.recompute(k)
        if kind == BACKWARD:
            return stage.backward(k, received)
        if kind == BACKWARD_INPUT:
            return stage.backward_input(k, received)
        return stage.backward_weight(k)

    def send(self, action: Action, made: Any) -> None:
        """Hand on what `action` made to the rank that needs it."""
        stage, kind, k = action
        if kind == FORWARD:
            if stage == self._last:
                self.results[k] = _by_itself(made.value)
            else:
                self._gradient_comes[stage, k] = made.wants_gradient
                self._endpoint.send(self._holder(stage + 1, k), Message("activation", stage + 1, k), made)
        elif kind in GIVES_INPUT_GRADIENT and stage > 0 and self._gradient_wanted[stage, k]:
            self._endpoint.send(self._holder(stage - 1, k), Message("gradient", stage - 1, k), made)

    def _forward(self, stage: Stage, k: int, received: Parcel) -> Parcel:
        work = self._work
        tail = work.tails[k] if stage.index == self._last else None
        recompute, split = (stage.index, k) in self._recomputed, (stage.index, k) in self._split
        self._gradient_wanted[stage.index, k] = received.wants_gradient
        if tail is not None:
            if received.rows and work.rows:
                same_rows({"x": received.rows, "y": work.rows})
            if received.batch and work.batch:
                same_batch(received.batch, work.batch)
        made = stage.forward(k, received, seed=work.seed, tail=tail, recompute=recompute, split=split)
        if tail is not None and work.weights and torch.is_grad_enabled() and work.weights[k]:
            _refuse_without_graph(made)
        return replace(made, rows=received.rows, batch=received.batch)


def _by_itself(result: Value) -> Value:
    """A loss apart from the memory that it was computed in: `mse_loss` leaves one as large as the output."""
    if isinstance(result, Tensor) and not result.dim() and result.untyped_storage().nbytes() > result.element_size():
        return result.clone()
    return result


def _refuse_without_graph(loss: Parcel) -> None:
    if not loss.wants_gradient:
        raise ValueError(
            "the loss depends on no parameter that requires grad, so nothing would be trained: loss_fn detaches it, or "
            "all layers are frozen"
        )
