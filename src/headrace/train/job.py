"""The main job: a byte-level GPT learns real text through a real pipeline, and says where the time went."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from headrace.costs import Costs
from headrace.data import Batches, load
from headrace.layer_costs import stage_sums
from headrace.models.gpt import gpt, next_byte_loss
from headrace.partition import partition
from headrace.planner import Plan, read_plan
from headrace.planner.model import fingerprint, refuse_stale
from headrace.planner.replan import Replanned, replan
from headrace.planner.run_profile import RunProfile
from headrace.profiling import LayerProfile, profile_as_rank
from headrace.profiling.rehearsal import rehearsed
from headrace.runtime.pipeline import Pipeline
from headrace.runtime.process.processes import from_first
from headrace.schedule.schedule import Schedule
from headrace.simulate import simulate_as_run
from headrace.timeline import Timeline
from headrace.train.clock import StepClock
from headrace.train.config import TrainConfig
from headrace.train.learning_rate import learning_rate
from headrace.train.move import moved


@dataclass(frozen=True)
class Prepared:
    """What is known before the first step, or before those that follow a re-planning.

    Attributes:
        notes: about the text.
        profile: seconds of each layer.
        schedule: of the steps.
        cut: layers per stage.
        recomputed_layers: those that recompute one by one.
        costs: seconds and bytes of each stage.
        predicted: the timeline of a step, from these costs.
        parameters: how many numbers each stage learns.
    """

    notes: tuple[str, ...]
    profile: LayerProfile
    schedule: Schedule
    cut: tuple[int, ...]
    recomputed_layers: tuple[str, ...]
    costs: Costs
    predicted: Timeline
    parameters: tuple[int, ...]


@dataclass(frozen=True)
class StepRecord:
    """One step: a line of metrics.jsonl.

    Attributes:
        step: from 1.
        loss: before the update, in nats per byte.
        learning_rate: of the update.
        gradient_norm: before clipping.
        seconds: of the whole step, update included.
        tokens_per_second: of this step.
        bubble_fraction: of the pipeline's part of it.
        held_out_loss: in nats per byte, where it was evaluated after this step.
    """

    step: int
    loss: float
    learning_rate: float
    gradient_norm: float
    seconds: float
    tokens_per_second: float
    bubble_fraction: float
    held_out_loss: float | None = None


@dataclass(frozen=True)
class Result:
    """What came out.

    Attributes:
        prepared: what was known of the last steps before them: of those after the re-planning, if there was one.
        run: what a planner may want to know of it.
        replanned: what re-planning came to, where it was asked for.
        held_out_before, held_out_after: loss on held-out text, in nats per byte.
        tokens_per_second: trained, evaluation and re-planning left out.
        step_seconds: the median of whole steps, update included; like all that follows, of the last steps.
        measured: the timeline of the step of median makespan.
        makespan: the median of the pipeline's part of a step, in seconds.
        bubble_fraction: the median.
    """

    prepared: Prepared
    run: RunProfile
    replanned: Replanned | None
    held_out_before: float
    held_out_after: float
    tokens_per_second: float
    step_seconds: float
    measured: Timeline
    makespan: float
    bubble_fraction: float


def train(
    config: TrainConfig,
    on_ready: Callable[[Prepared], None] = lambda _: None,
    on_step: Callable[[StepRecord], None] = lambda _: None,
    on_replan: Callable[[Replanned, Prepared], None] = lambda _, __: None,
) -> Result:
    """Run the job; under torchrun, in every process.

    Args:
        config: what to do.
        on_ready: called once, before the first step.
        on_step: called after every step.
        on_replan: called when it was planned again, whether or not there was something to gain, with what the steps
            that follow run.

    Raises:
        ValueError, OSError: the configuration or the data does not fit.
        PipelineFailure: a rank failed.
    """
    torch.manual_seed(config.seed)
    text = load(config.data)
    batches = Batches(text, batch=config.batch, sequence=config.sequence, seed=config.seed)
    held_out = list(batches.held_out_batches(config.evaluation_batches))
    model = gpt(layers=config.layers, dim=config.dim, heads=config.heads, sequence=config.sequence)
    device = _device(config.device)
    model.to(device)
    order = config.order()
    rows = -(-config.batch // config.micro_batches)
    x, y = (part[:rows].to(device) for part in batches.batch(0))
    profile = profile_as_rank(model, x, config.ranks, loss_fn=next_byte_loss, target=y)
    (layers,) = rehearsed(model, batches.batch(0), next_byte_loss, [profile.layer_costs(rows)], config.ranks)
    plan = None if config.plan is None else _planned(config, model)
    cut = partition(layers.seconds, order.stages) if plan is None else plan.cut
    make_optimizer = partial(torch.optim.AdamW, lr=config.learning_rate, betas=(0.9, 0.95), weight_decay=0.1)
    pipe = Pipeline(
        model,
        next_byte_loss,
        ranks=config.ranks,
        micro_batches=config.micro_batches,
        schedule=config.schedule,
        recompute=config.recompute if plan is None else plan.recomputed_layers,
        cut=cut,
        devices=device,
    )
    try:
        devices = (device,) * config.ranks
        mark, again = fingerprint(model), pipe.recomputed_layers
        run = RunProfile(layers, config.batch, order, cut, mark, devices, recomputed_layers=again)
        prepared = _prepared(text.notes, profile, run, run.costs)
        on_ready(prepared)
        before = after = _held_out_loss(pipe, held_out)
        optimizer: torch.optim.Optimizer = make_optimizer(pipe.named_parameters())
        clock = StepClock()
        replanned: Replanned | None = None
        for step in range(config.steps):
            if step == config.replan_after:
                replanned = from_first(replan(run, clock.typical(), change=config.replan))
                if replanned.worth_it:
                    order, cut, again = (better := replanned.plan).schedule, better.cut, better.recomputed_layers
                    pipe, optimizer = moved(
                        pipe, optimizer, model, next_byte_loss, make_optimizer, schedule=order, cut=cut,
                        recompute=again, devices=device,
                    )  # fmt: skip
                    run = replace(run, schedule=order, cut=cut, recomputed_layers=again)
                    prepared = _prepared(text.notes, profile, run, replanned.costs)
                    clock.begin_again()
                on_replan(replanned, prepared)
            start = time.perf_counter()
            rate = learning_rate(step, config.steps, config.warm_up, config.learning_rate)
            for group in optimizer.param_groups:
                group["lr"] = rate
            loss = pipe.step(*batches.batch(step))
            norm = pipe.clip_grad_norm_(config.clip)
            optimizer.step()
            optimizer.zero_grad()
            clock.add(time.perf_counter() - start, pipe.timeline())
            seconds, timeline = clock.latest
            due = step + 1 == config.steps or (step + 1) % config.evaluate_every == 0
            now = _held_out_loss(pipe, held_out) if due else None
            after = after if now is None else now
            on_step(
                StepRecord(
                    step=step + 1,
                    loss=float(loss),
                    learning_rate=rate,
                    gradient_norm=float(norm),
                    seconds=seconds,
                    tokens_per_second=config.batch * config.sequence / seconds,
                    bubble_fraction=timeline.bubble_fraction,
                    held_out_loss=now,
                )
            )
    finally:
        pipe.close()
    return Result(
        prepared=prepared,
        run=run,
        replanned=replanned,
        held_out_before=before,
        held_out_after=after,
        tokens_per_second=config.batch * config.sequence * config.steps / clock.total,
        step_seconds=clock.step_seconds,
        measured=clock.typical(),
        makespan=clock.makespan,
        bubble_fraction=clock.bubble_fraction,
    )


def _planned(config: TrainConfig, model: nn.Sequential) -> Plan:
    """The plan, if it is one for this job."""
    plan = read_plan(Path(config.plan or ""))
    refuse_stale(plan, model, config.batch)
    if plan.schedule != config.order():
        raise ValueError(f"the plan in {config.plan} has another schedule than this job: take it from the plan, too")
    return plan


def _held_out_loss(pipe: Pipeline, batches: list[tuple[Tensor, Tensor]]) -> float:
    return statistics.fmean(float(pipe.evaluate(x, y)["loss"]) for x, y in batches)


def _prepared(notes: tuple[str, ...], profile: LayerProfile, run: RunProfile, costs: Costs) -> Prepared:
    parameters = tuple(stage_sums(profile.parameters, run.cut))
    predicted = simulate_as_run(run.schedule, costs)
    return Prepared(notes, profile, run.schedule, run.cut, run.recomputed_layers, costs, predicted, parameters)


def _device(name: str) -> str:
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        raise ValueError("device='cuda', but torch sees no CUDA device on this machine: use cpu or auto")
    return name
