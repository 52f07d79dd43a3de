"""The pipeline that users hold: a model, cut into stages, that takes training steps like one on a single device."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from headrace.runtime.batch.feed import Feed, same_rows
from headrace.runtime.batch.loss import LossFn, loss_tail, metrics_tail
from headrace.runtime.batch.microbatch import LossWeight, per_update
from headrace.runtime.executor import Overlap
from headrace.runtime.holding import Holding, MakeOptimizer
from headrace.runtime.log import begin_of, joined
from headrace.runtime.model.cut import named_parameters
from headrace.runtime.model.devices import Devices
from headrace.runtime.model.mode import evaluating
from headrace.runtime.model.recompute import Recompute
from headrace.runtime.model.warn import warn_of_batch_statistics, warn_of_nothing_carried
from headrace.runtime.prepare import prepare
from headrace.runtime.results import join_all, results_of, share, share_means
from headrace.runtime.stage.boundary import Value
from headrace.runtime.stage.randomness import drawing_watched, stream
from headrace.runtime.transport.choose import choose_transport
from headrace.runtime.transport.distributed.transport import Links
from headrace.runtime.work import Endpoint, Log, Outcome, Work
from headrace.schedule.actions import RECOMPUTE
from headrace.schedule.schedule import Schedule
from headrace.timeline import Timeline

T = TypeVar("T")

_TRAINING, _EVALUATION = 0, 1


class Pipeline:
    """A model, cut into stages that work like an assembly line.

    Started plainly, all ranks are threads of this process. Started by torchrun (or with torch.distributed
    initialised), this process is one of the ranks, and the same script runs in all of them.

    Args:
        model: a chain of layers; plain nn.Sequentials in it are opened. Its parameters are trained in place, and moved
            only if `devices` says so.
        loss_fn: `loss_fn(output, target)`: the loss of a (micro-)batch as one number.
        ranks: p, how many pipeline ranks; under torchrun the number of processes.
        micro_batches: m, into how many micro-batches each mini-batch is cut.
        schedule: a name of the catalogue, or a `Schedule`. It is proven before anything runs.
        recompute: "never", "always" or "except_last": which micro-batches drop their activations after the forward
            and compute them again for the backward. "layer": every layer does so by itself. Or what always does:
            stages by number and layers by name, such as {0, "block3"}; or a mapping from stages to one of the words.
        cut: how many layers each stage gets, such as `hr.measured_cut(model, x[:8], ranks=p)`; None for equally
            many, which is rarely the fastest.
        devices: one per rank, or one for all, where "cuda" gives each rank its own; None: where the model is.
        loss_weight: what a micro-batch counts for in the loss of the batch: "rows" if `loss_fn` is a mean over rows,
            "sum" if it is a sum, or a function of the target, such as `lambda y: (y != padding).sum()`, if it is a
            mean over whatever that counts.
        optimizer: for asynchronous schedules, whose stages update their weights within a step: a function from the
            list of a stage's (name, parameter) to its optimizer, such as `lambda p: torch.optim.SGD(p, lr=0.1)`. Each
            update takes the mean over the micro-batches since the last one. The optimizers are then in `optimizers`.
        overlap: for schedules with overlapped pairs: a function of two functions, one that does a forward and one that
            does a backward, which runs both at once (on two streams of a GPU, say) in the calling thread. If None,
            they run one after the other.
        input_split, target_split: the dim along which tensors of x and y are cut into micro-batches; "replicate" for
            tensors that every micro-batch gets whole; or a nest of these, shaped like x or y or their beginning.
        output_split: the same for the output of `predict`: where its tensors are joined; "replicate" takes the first.
        sequence_dim: where the tokens of a sequence are in tensors of x, y and the output: schedules with segments
            cut there.
        links: how processes reach each other, see `headrace.runtime.transport.distributed.transport`.

    Raises:
        TypeError, ValueError: an argument does not fit; under torchrun also if it differs between processes.
        InvalidSchedule: the schedule is refuted.
    """

    def __init__(
        self,
        model: nn.Sequential,
        loss_fn: LossFn,
        *,
        ranks: int,
        micro_batches: int,
        schedule: str | Schedule = "1f1b",
        recompute: Recompute = "never",
        cut: Sequence[int] | None = None,
        devices: Devices = None,
        loss_weight: LossWeight = "rows",
        optimizer: MakeOptimizer | None = None,
        overlap: Overlap | None = None,
        input_split: Any = 0,
        target_split: Any = 0,
        output_split: Any = 0,
        sequence_dim: int = 1,
        links: Links = "auto",
    ) -> None:
        self.steps = 0
        """How many steps were taken. Random numbers depend on it: set it when a run is resumed."""

        self._transport, prepared = choose_transport(
            partial(
                prepare, model, loss_fn, ranks, micro_batches, schedule, recompute, cut, devices, loss_weight, optimizer
            ),
            links,
        )
        self.schedule = prepared.schedule
        self._updates = self.schedule.asynchronous
        self._loss_weight = loss_weight
        self.proof = prepared.proof
        self.cut = prepared.model.cut
        self.recomputed_layers = prepared.recomputes
        """Names of the layers that recompute one by one; stages that recompute as a whole have an R in `schedule`."""

        try:
            self._transport.agree(
                micro_batches=micro_batches,
                schedule=self.schedule.to_text(),
                cut=self.cut,
                recompute=self.recomputed_layers,
                model=prepared.model.signature(),
            )
        except BaseException:
            self._transport.close()
            raise
        placement = self.schedule.placement
        held = self._transport.held_ranks
        devices_of = dict(enumerate(prepared.devices))
        again = self.recomputed_layers
        self._holding = Holding(prepared.model, placement, held, devices_of, optimizer, overlap, again)
        self.optimizers = self._holding.optimizers
        """Of an asynchronous schedule: by stage, those that this process holds; a stage without parameters has none."""

        self._feed = Feed(
            placement=placement,
            devices={rank: prepared.devices[rank] for rank in held},
            input_split=input_split,
            target_split=target_split,
            loss_weight=loss_weight,
            segments=self.schedule.segments,
            sequence_dim=sequence_dim,
        )
        if len(placement.lanes) > 1:
            self._transport.run(lambda rank, endpoint: self._holding.executors[rank].align(endpoint))
        self._loss_fn = loss_fn
        self._output_split = output_split
        self._recomputes = bool(again) or any(action.kind == RECOMPUTE for row in self.schedule.rows for action in row)
        self._logs: list[Log] = []
        self._told = False

    # -- training ----------------------------------------------------------------------------------------------------

    def step(self, x: Value = None, y: Value = None) -> Tensor:
        """Forward, loss and backward of one mini-batch; gradients are added to `.grad`.

        Args:
            x: the model's input, any nest with tensors; needed where the first stage is.
            y: the target for the loss, any nest with tensors; needed where the last stage is. Given in more than
                one process, x and y must be the same in all.

        Returns:
            The loss of the whole batch, 0-dim and detached: the same number in every process.

        Raises:
            ValueError: the batch cannot be cut, or x or y is missing.
            PipelineFailure: a rank failed. Gradients that were None before the step are None again; gradients that
                were accumulated in earlier steps are spoilt, so call zero_grad before the next step.
                Updates that an asynchronous schedule made before the failure stay.
        """
        if not torch.is_grad_enabled() or torch.is_inference_mode_enabled():
            raise ValueError("step needs gradients, but was called under no_grad or inference_mode: use evaluate there")
        first, self._told = not self._told, True
        if first:
            warn_of_batch_statistics(self._holding.layers, self.schedule.micro_batches)
        work = self._transport.guarded(lambda: self._training_work(x, y))
        fresh = [p for p in self.parameters() if p.grad is None]
        try:
            with drawing_watched(self._holding.shared_draws, self._recomputes):
                outcomes = self._perform(self.schedule, work)
            losses = {k: {"loss": loss} for k, loss in results_of(outcomes).items()}
            loss = share_means(self._transport, losses, work.shares)["loss"]
        except BaseException as error:
            for parameter in fresh:
                parameter.grad = None
            if isinstance(error, KeyboardInterrupt):  # it may have come between what the transport guards
                self._transport.interrupted(error)
            raise
        self.steps += 1
        self._logs = [outcome.log for _, outcome in sorted(outcomes.items())]
        if first and self.schedule.segments > 1:  # a process may hold none of the layers that carry
            warn_of_nothing_carried(self.schedule.name, any(self._transport.gather(self._holding.carries)))
        return loss

    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> Tensor:
        """Scale all gradients so that their norm, over all ranks together, is at most `max_norm`.

        Returns:
            The norm before, 0-dim: the same number in every process.
        """
        norms = {}
        for index, stage in self._holding.stages.items():
            grads = [p.grad for _, p in named_parameters(stage.layers) if p.grad is not None]
            if grads:
                norms[index] = torch.stack([torch.linalg.vector_norm(grad, norm_type) for grad in grads]).cpu()
        everywhere: dict[int, Tensor] = {}
        for part in self._transport.gather(norms):
            everywhere.update(part)
        # one number per parameter, in model order: the total does not depend on the cut, not even in its last bit
        each = [of_stage for _, of_stage in sorted(everywhere.items())]
        total: Tensor = torch.linalg.vector_norm(torch.cat(each), norm_type) if each else torch.zeros(())
        nn.utils.clip_grads_with_norm_(list(self.parameters()), max_norm, total)
        return total

    # -- without training --------------------------------------------------------------------------------------------

    def evaluate(
        self, x: Value = None, y: Value = None, metrics: Mapping[str, LossFn] | None = None
    ) -> dict[str, Tensor]:
        """The loss of a batch, and what `metrics` say of it, in evaluation mode; training is not affected by it.

        Args:
            x, y: as for `step`, but fewer rows than micro-batches are fine.
            metrics: functions of (output, target) by name, each giving one number that is averaged like the loss.

        Returns:
            {"loss": …} and the metrics, 0-dim tensors: the same numbers in every process.

        Raises:
            ValueError, PipelineFailure: as for `step`.
        """
        if "loss" in (metrics or {}):
            raise ValueError("metrics has an entry called loss, which is the name of the loss itself: rename it")
        functions = {"loss": self._loss_fn, **(metrics or {})}

        def work(m: int) -> Work:
            targets, shares = self._feed.targets(y, m)
            tails = [metrics_tail(functions, t, w) for t, w in zip(targets, shares, strict=True)]
            return Work(
                self._feed.inputs(x, m), tails, shares=shares, batch=self._feed.batch(x), seed=self._seed(_EVALUATION)
            )

        outcomes, done = self._forward_only(lambda: self._feed.rows(x, y), work)
        return share_means(self._transport, results_of(outcomes), done.shares)

    def predict(self, x: Value = None) -> Value:
        """The model's output for x in evaluation mode, without gradients: the same in every process.

        Fewer rows than micro-batches are fine. Tensors of the output are joined along the dims of `output_split`.

        Raises:
            ValueError, PipelineFailure: as for `step`.
        """

        def work(m: int) -> Work:
            keep = [_as_it_is] * m if self._feed.holds_last else []
            return Work(self._feed.inputs(x, m), keep, seed=self._seed(_EVALUATION))

        outcomes, _ = self._forward_only(lambda: self._feed.rows(x, None, target=False), work)
        everywhere = share(self._transport, results_of(outcomes))
        segments = self.schedule.segments, self._feed.sequence_dim
        return join_all(everywhere, self._output_split, *segments)  # alike in every process, so there is nobody to tell

    # -- what it holds -----------------------------------------------------------------------------------------------

    def parameters(self) -> Iterator[nn.Parameter]:
        """The parameters that this process trains: all of them in one process, else those of its own stages."""
        return (parameter for _, parameter in self.named_parameters())

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """The same with the names that the unsplit model gives them; optimizers take these as they are."""
        return self._holding.named_parameters()

    def named_buffers(self) -> Iterator[tuple[str, Tensor]]:
        """The buffers of the layers held here, by the names that the unsplit model gives them."""
        return self._holding.named_buffers()

    def state_dict(self) -> dict[str, Any]:
        """The state of the layers held here, with the keys that the unsplit model's state_dict has."""
        return self._holding.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load what is held here from a state_dict of the unsplit model, or from a part of one that contains it.

        Raises:
            ValueError: a key that is needed is missing, or one belongs to no layer.
        """
        self._holding.load_state_dict(state)

    def train(self, mode: bool = True) -> "Pipeline":
        """Set the layers held here to training mode, as nn.Module.train does."""
        for layer in self._holding.layers.values():
            layer.train(mode)
        return self

    def eval(self) -> "Pipeline":
        """Set the layers held here to evaluation mode."""
        return self.train(False)

    def timeline(self) -> Timeline:
        """What the last `step` did when, on all ranks; under torchrun every process must call it.

        Seconds count from the first start on any rank, by the clock of rank 0: `clocks` of the timeline says how the
        others were moved, and how far that may be wrong.
        """
        offset = self._transport.clock_offset(begin_of(self._logs))
        return joined(self.schedule.ranks, self._transport.gather((self._logs, offset)))

    def on_ranks(self, work: Callable[[int], T]) -> dict[int, T]:
        """Do `work(rank)` in the thread of each rank that this process runs: for instruments that belong to a thread.

        Under torchrun every process must call it.

        Raises:
            PipelineFailure: as for `step`.
        """
        return dict(sorted(self._transport.run(lambda rank, _: work(rank)).items()))

    def close(self) -> None:
        """End the threads and connections; also done when the pipeline is dropped, and at exit."""
        self._transport.close()

    def __enter__(self) -> "Pipeline":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        s = self.schedule
        return f"<Pipeline {s.name}: {s.ranks} ranks, {s.micro_batches} micro-batches, cut {self.cut}>"

    # -- inside ------------------------------------------------------------------------------------------------------

    def _seed(self, purpose: int) -> int:
        return stream(torch.initial_seed(), self.steps, purpose)

    def _training_work(self, x: Value, y: Value) -> Work:
        m = self.schedule.micro_batches
        rows = self._feed.rows(x, y)
        targets, shares = self._feed.targets(y, m)
        tails = [loss_tail(self._loss_fn, t, w) for t, w in zip(targets, shares, strict=True)]
        weights = per_update(shares, self.schedule) if self._updates and self._loss_weight != "sum" else shares
        return Work(
            self._feed.inputs(x, m), tails, shares, weights, rows.get("y", 0), self._feed.batch(x),
            self._seed(_TRAINING),
        )  # fmt: skip

    def _perform(self, schedule: Schedule, work: Work) -> dict[int, Outcome]:
        executors = self._holding.executors
        self._holding.follow()

        def task(rank: int, endpoint: Endpoint) -> Outcome:
            return executors[rank].perform(schedule, endpoint, work)

        return self._transport.run(task)

    def _forward_only(
        self, rows: Callable[[], dict[str, int]], work: Callable[[int], Work]
    ) -> tuple[dict[int, Outcome], Work]:
        """Run the forwards in evaluation mode, with fewer micro-batches if there are fewer rows."""
        everywhere: dict[str, int] = {}
        for part in self._transport.gather(self._transport.guarded(rows)):
            everywhere.update(part)
        same_rows(everywhere)
        if everywhere["x"] == 0:
            raise ValueError("x has 0 rows: there is nothing to evaluate")
        segments = self.schedule.segments
        m = min(self.schedule.micro_batches // segments, everywhere["x"]) * segments
        prepared = self._transport.guarded(lambda: work(m))
        with evaluating(self._holding.modules), torch.no_grad():
            return self._perform(self.schedule.forward_only(m), prepared), prepared


def _as_it_is(output: Value) -> Value:
    return output
