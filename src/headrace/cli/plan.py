"""`headrace plan`: the cut, the schedule and the micro-batches for a model and the ranks there are."""

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.analytic.hardware import hardware_names
from headrace.cli.exits import Exit
from headrace.cli.output import fail, print_json, stdout, user_arguments
from headrace.cli.typed import whole_numbers
from headrace.files import check_target
from headrace.report.tables import first_to_last, in_runs, table
from headrace.train.config import TrainConfig
from headrace.units import percent, seconds, size

if TYPE_CHECKING:
    from headrace.planner import Plan

_DEFAULT = TrainConfig()
_EXPORTS = ("megatron", "torchtitan", "torch")
_UNITS = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40, "kB": 1e3, "MB": 1e6, "GB": 1e9, "B": 1}


def plan(
    *,
    context: typer.Context,
    run: Annotated[
        Path | None,
        typer.Option("--from", help="Plan again, for the run in this folder, with the costs that it measured."),
    ] = None,
    model: Annotated[
        str, typer.Option(help="gpt, transformer-6b, or module:function, which returns model, loss_fn, (x, y).")
    ] = "gpt",
    layers: Annotated[int, typer.Option(help="Transformer blocks of gpt.")] = _DEFAULT.layers,
    dim: Annotated[int, typer.Option(help="Width of gpt.")] = _DEFAULT.dim,
    heads: Annotated[int, typer.Option(help="Attention heads of gpt.")] = _DEFAULT.heads,
    seq: Annotated[int, typer.Option(help="Tokens per row of gpt.")] = _DEFAULT.sequence,
    batch: Annotated[int, typer.Option(help="Rows per step; a module:function brings its own.")] = _DEFAULT.batch,
    ranks: Annotated[int, typer.Option(help="Ranks that there are.")] = _DEFAULT.ranks,
    hardware: Annotated[
        str | None,
        typer.Option(
            help=f"A device that is not here: {', '.join(hardware_names())}, or a TOML file.",
            show_default="it measures",
        ),
    ] = None,
    memory: Annotated[
        str | None, typer.Option(help="Memory of each rank, such as 16GiB.", show_default="that of --hardware")
    ] = None,
    schedules: Annotated[
        str | None,
        typer.Option(
            help="Schedules to choose from, separated by commas.", show_default="all that need nothing of the model"
        ),
    ] = None,
    micro_batches: Annotated[
        str | None, typer.Option(help="Numbers to choose from, separated by commas.", show_default="p to 8p")
    ] = None,
    replicas: Annotated[str, typer.Option(help="Data-parallel degrees to choose from, separated by commas.")] = "1",
    recompute: Annotated[
        str, typer.Option(help="What may be recomputed to fit: never, stage (as a whole), or layer (single ones, too).")
    ] = "layer",
    search: Annotated[bool, typer.Option(help="Look for a faster order of actions than the catalogue's.")] = False,
    optimizer_bytes: Annotated[
        float,
        typer.Option(help="Bytes of optimizer state per byte of trained parameters: 2 for Adam, 0 for plain SGD."),
    ] = 2,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Write the plan to this file.")] = None,
    export: Annotated[
        str | None, typer.Option(help="Print only the cut for megatron or torchtitan, or the schedule for torch.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the plan as JSON.")] = False,
) -> None:
    """Find the fastest step that fits, and say why; exit code 3 if nothing fits."""
    from headrace.cli.model_choice import chosen_model
    from headrace.cli.plan_again import planned_again
    from headrace.planner import NoPlanFits, make_plan
    from headrace.planner.model import described, fingerprint, measured
    from headrace.runtime.process.processes import process_rank

    def planned() -> "tuple[Plan, Any]":
        """A plan for the model, and the memory that it had to fit into."""
        chosen = chosen_model(
            context, model, meta=hardware is not None, batch=batch, layers=layers, dim=dim, heads=heads, sequence=seq
        )
        if hardware is None:
            found = measured(
                chosen.model, (chosen.x, chosen.y), chosen.loss_fn, ranks, numbers, optimizer_bytes=optimizer_bytes
            )
        else:
            found = described(
                chosen.model, (chosen.x, chosen.y), chosen.loss_fn, ranks, numbers, hardware, optimizer_bytes
            )
        request = replace(
            found.request(ranks, limit),
            schedules=names,
            micro_batches=numbers,
            replicas=whole_numbers("--replicas", replicas, like="4,8"),
            recompute=recompute,  # type: ignore[arg-type]
            search=search,
        )
        made = make_plan(request, fingerprint=fingerprint(chosen.model), devices=(found.device,) * ranks)
        return made, request.memory

    with user_arguments("plan"):
        if out is not None:
            check_target(out)
        if export not in (None, *_EXPORTS):
            raise ValueError(f"--export {export} is unknown: choose one of {', '.join(_EXPORTS)}")
        names = None if schedules is None else schedules.split(",")
        numbers = None if micro_batches is None else whole_numbers("--micro-batches", micro_batches, like="4,8")
        limit = None if memory is None else _bytes(memory)
        try:
            if run is None:
                made, within = planned()
            else:
                again = planned_again(context, run, names, numbers, limit, recompute)
                made, within = again.plan, limit
                typer.echo(f"{again}\n", err=as_json or export is not None)
        except NoPlanFits as nothing:
            fail("plan", nothing, Exit.NO_PLAN)
        if process_rank() > 0:
            return
        if out is not None:
            out.write_text(made.to_json() + "\n", encoding="utf-8")
    if export is not None:
        typer.echo(_exported(made, export), nl=False)
    elif as_json:
        print_json(json.loads(made.to_json()))
    else:
        _print(made, within)
    if out is not None:
        typer.echo(f"\nplan written to {out}", err=True)


def _exported(made: "Plan", notation: str) -> str:
    from headrace.planner.exchange import to_megatron, to_torch_csv

    if notation == "megatron":
        return to_megatron(made.cut) + "\n"
    if notation == "torchtitan":
        return json.dumps(made.stages) + "\n"
    with user_arguments("plan"):
        if made.recomputed_layers:
            raise ValueError(
                f"--export torch: the plan recomputes {in_runs(made.layers, made.recomputed_layers)}, which PyTorch's "
                "rows cannot say: plan with --recompute never"
            )
        return to_torch_csv(made.schedule)


def _print(made: "Plan", memory: Any) -> None:
    say = stdout().print
    predicted, device = made.predicted, made.devices[0]
    beside = "" if made.replicas == 1 else f", {made.replicas} replicas"
    say(f"{made.ranks} ranks ({device}){beside}, batch {made.batch}: {made.schedule.name}, m = {made.micro_batches}\n")
    rows = []
    for stage, names in enumerate(made.stages):
        rows.append(
            (
                f"{stage}: {first_to_last(names)}",
                made.schedule.placement.rank_of[stage],
                len(names),
                seconds(predicted.forward[stage]),
                seconds(predicted.backward[stage]),
                "yes" if stage in made.recomputes else in_runs(names, made.recomputed_layers) or "no",
            )
        )
    say(table(("stage", "rank", "layers", "forward", "backward", "recomputes"), rows))
    say(f"\n{predicted}; bubble {percent(predicted.bubble_fraction)}")
    limit = "no limit" if memory is None else f"of {_limit(memory)}"
    say(f"memory of the fullest rank {size(max(predicted.peak_bytes))}, {limit}\n")
    others = [
        (
            other.schedule,
            "does not fit" if other.step_seconds is None else seconds(other.step_seconds),
            "–" if other.peak_bytes is None else size(other.peak_bytes),
        )
        for other in made.alternatives
    ]
    say(table(("rather than", "step", "memory"), others))
    say()
    for other in made.alternatives:
        say(f"{other.schedule}: {other.reason}", soft_wrap=True)


def _limit(memory: Any) -> str:
    return size(memory) if isinstance(memory, (int, float)) else ", ".join(map(size, memory))


def _bytes(text: str) -> float:
    unit = next((unit for unit in _UNITS if text.endswith(unit)), None)
    try:
        return float(text.removesuffix(unit or "")) * _UNITS[unit or "B"]
    except ValueError:
        raise ValueError(f"--memory {text}: write a size such as 16GiB, 500MB or a number of bytes") from None
