"""`headrace train`: the main job, from profile to Gantt chart."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.chosen import (
    FileOption,
    OptionsOption,
    chosen_schedule,
    planned_schedule,
    recompute_of_layers,
    refuse_typed,
)
from headrace.cli.output import print_json, stdout, user_arguments
from headrace.files import as_json
from headrace.train.config import TrainConfig

if TYPE_CHECKING:
    from headrace.report.explain import Explanation
    from headrace.train.job import Prepared, Result, StepRecord

_DEFAULT = TrainConfig()


def train(
    *,
    context: typer.Context,
    ranks: Annotated[int | None, typer.Option(help="Pipeline ranks, p.", show_default="2, or torchrun's")] = None,
    micro_batches: Annotated[
        int | None, typer.Option(help="Micro-batches per step, m.", show_default=str(_DEFAULT.micro_batches))
    ] = None,
    schedule: Annotated[str, typer.Option(help="A schedule: see headrace schedules.")] = "1f1b",
    schedule_file: FileOption = None,
    option: OptionsOption = None,
    plan: Annotated[
        Path | None, typer.Option(help="A plan of headrace plan for a model of these sizes: its schedule and its cut.")
    ] = None,
    recompute: Annotated[
        str,
        typer.Option(
            help="Recompute: never, always, except_last, layer (each by itself), or stages and layers: 0,block3."
        ),
    ] = "never",
    layers: Annotated[int, typer.Option(help="Transformer blocks, between embedding and head.")] = _DEFAULT.layers,
    dim: Annotated[int, typer.Option(help="Width of the model.")] = _DEFAULT.dim,
    heads: Annotated[int, typer.Option(help="Attention heads.")] = _DEFAULT.heads,
    steps: Annotated[int, typer.Option(help="Training steps.")] = _DEFAULT.steps,
    batch: Annotated[int, typer.Option(help="Rows per step.")] = _DEFAULT.batch,
    seq: Annotated[int, typer.Option(help="Bytes per row.")] = _DEFAULT.sequence,
    lr: Annotated[float, typer.Option(help="Highest learning rate.")] = _DEFAULT.learning_rate,
    device: Annotated[str, typer.Option(help="cpu, cuda, or auto: cuda where there is some.")] = _DEFAULT.device,
    seed: Annotated[int, typer.Option(help="Of initialisation and batches.")] = _DEFAULT.seed,
    data: Annotated[
        Path | None, typer.Option(help="A file or folder of text.", show_default="Python's standard library")
    ] = None,
    replan_after: Annotated[
        int | None, typer.Option(help="After so many steps, plan again with the costs that they have shown.")
    ] = None,
    replan: Annotated[
        str, typer.Option(help="What that may change: schedule, or cut only, which keeps the losses to the last bit.")
    ] = _DEFAULT.replan,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder for config, metrics, timeline, profile, explanation and report.",
            show_default="a new one in runs",
        ),
    ] = None,
    tensorboard: Annotated[
        Path | None, typer.Option(help="Folder for TensorBoard, which the extra `tensorboard` of the package installs.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object at the end.")] = False,
) -> None:
    """Train a byte-level GPT on real text through a pipeline, and say where the time went."""
    from headrace.cli.train_screen import TrainScreen
    from headrace.report.explain import explain
    from headrace.report.page import write_report
    from headrace.runtime.process.processes import process_count, process_rank
    from headrace.train.job import train as run
    from headrace.train.run_files import RunFiles
    from headrace.train.tensorboard import TensorBoard

    with user_arguments("train"):
        processes = process_count()
        size = (processes if processes > 1 else _DEFAULT.ranks, _DEFAULT.micro_batches)
        if schedule_file is not None:
            refuse_typed(context, ("schedule",), "goes without --schedule-file, which says all there is")
        if plan is None:
            stages, by_layers = recompute_of_layers(recompute)
            order = chosen_schedule(schedule, schedule_file, ranks, micro_batches, stages, option or (), size)
        else:
            by_layers = "never"  # but for those of the plan
            order = planned_schedule(context, plan)
        config = TrainConfig(
            ranks=order.ranks,
            micro_batches=order.micro_batches // order.segments,
            schedule=order,
            recompute=by_layers,
            plan=None if plan is None else str(plan),
            layers=layers,
            dim=dim,
            heads=heads,
            sequence=seq,
            batch=batch,
            steps=steps,
            learning_rate=lr,
            warm_up=min(_DEFAULT.warm_up, steps // 10),
            device=device,
            seed=seed,
            data=None if data is None else str(data),
            replan_after=replan_after,
            replan=replan,  # type: ignore[arg-type]
        )
        first = process_rank() == 0
        board = TensorBoard(tensorboard) if tensorboard is not None and first else None
        files = RunFiles(out, config) if first else None
        screen = TrainScreen(config, stdout() if first and not as_json else None)

        def on_ready(prepared: "Prepared") -> None:
            if files is not None:
                files.begin()
            screen.ready(prepared)

        def on_step(record: "StepRecord") -> None:
            screen.step(record)
            if files is not None:
                files.add(record)
            if board is not None:
                board.add(record)

        try:
            with screen:
                result = run(config, on_ready, on_step, screen.replanned)
        finally:
            if board is not None:
                board.close()
            if files is not None:
                files.close()
    explanation = explain(result.prepared.schedule, result.prepared.costs, result.measured)
    screen.result(result, explanation)
    if files is None:
        return
    files.finish(result, explanation.as_data())
    report = write_report(files.folder)
    typer.echo(f"\nto plan again with what this run measured: headrace plan --from {files.folder}", err=True)
    if as_json:
        print_json({**_as_data(result, explanation), "report": str(report)})
    else:
        screen.written(report)


def _as_data(result: "Result", explanation: "Explanation") -> dict[str, object]:
    prepared, again = result.prepared, result.replanned
    predicted = prepared.predicted
    return {
        "schedule": prepared.schedule.name,
        "cut": prepared.cut,
        "recomputed_layers": prepared.recomputed_layers,
        "parameters": prepared.parameters,
        "costs": asdict(prepared.costs),
        "held_out_before": as_json(result.held_out_before),
        "held_out_after": as_json(result.held_out_after),
        "tokens_per_second": result.tokens_per_second,
        "step_seconds": result.step_seconds,
        "makespan": {"predicted": predicted.makespan, "measured": result.makespan},
        "bubble_fraction": {"predicted": predicted.bubble_fraction, "measured": result.bubble_fraction},
        "peak_in_flight": {"predicted": predicted.peak_in_flight, "measured": result.measured.peak_in_flight},
        "replanned": None if again is None else {"gain": again.gain, "own": again.own, "moved": again.worth_it},
        "explanation": explanation.as_data(),
    }
