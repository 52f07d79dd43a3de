"""`headrace plot`: curves over the number of micro-batches or ranks, as a table, a picture or JSON."""

import os
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.output import print_json, save_picture, stdout, user_arguments
from headrace.cli.typed import whole_numbers
from headrace.costs import Costs
from headrace.report.plots.bubble import bubbles, draw_bubbles
from headrace.report.plots.canvas import check_file
from headrace.report.plots.memory import PeakMemory, draw_memory, gpipe_formula
from headrace.report.plots.throughput import Point, Throughput, draw_throughput
from headrace.report.tables import table
from headrace.schedule.numbers import at_least
from headrace.units import number, percent, size

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from headrace.cli.model_choice import Chosen

plot = typer.Typer(no_args_is_help=True, help="Draw bubble, memory or throughput as curves.")

_SCHEDULES = "gpipe,1f1b,interleaved,zb-h1,zb-v"
_OUT = typer.Option("--out", "-o", help="Draw a picture: a file ending with .svg, .png or .pdf.")
_JSON = typer.Option("--json", help="Print the numbers of the picture as one JSON object.")
_MODEL = typer.Option(help="gpt, or module:function, which returns model, loss_fn, (x, y).")


@plot.command()
def bubble(
    *,
    ranks: Annotated[int, typer.Option(help="How many ranks, p.")] = 4,
    micro_batches: Annotated[str, typer.Option(help="Numbers of micro-batches, m.")] = "1,2,4,8,16,32,64",
    schedules: Annotated[
        str, typer.Option(help="Schedules, separated by commas.")
    ] = "gpipe,1f1b,interleaved,zb-h1,zb-v",
    forward: Annotated[float, typer.Option(help="Cost of F, on every stage.")] = 1,
    backward_input: Annotated[float, typer.Option(help="Cost of I.")] = 1,
    backward_weight: Annotated[float, typer.Option(help="Cost of W; a whole backward costs I + W.")] = 1,
    transfer: Annotated[float, typer.Option(help="Cost of a hop between ranks.")] = 0,
    out: Annotated[Path | None, _OUT] = None,
    as_json: Annotated[bool, _JSON] = False,
) -> None:
    """Simulate the bubble of schedules against micro-batches, beside (p−1)/(m+p−1)."""
    with user_arguments("plot bubble"):
        _check(out)
        at_least(1, ranks=ranks)
        costs = Costs(forward, backward_input, backward_weight, transfer=transfer)
        found = bubbles(schedules.split(","), ranks, _numbers("--micro-batches", micro_batches), costs)
    columns = [*found.simulated.values(), found.closed_form]
    rows = [(m, *map(percent, of_m)) for m, *of_m in zip(found.micro_batches, *columns, strict=True)]
    names = ["micro-batches", *found.simulated, "(p−1)/(m+p−1)"]
    _show("plot bubble", asdict(found), (names, rows), lambda: draw_bubbles(found), out, as_json)


@plot.command()
def memory(
    *,
    context: typer.Context,
    model: Annotated[str, _MODEL] = "gpt",
    layers: Annotated[int, typer.Option(help="Transformer blocks of gpt.")] = 8,
    dim: Annotated[int, typer.Option(help="Width of gpt.")] = 64,
    heads: Annotated[int, typer.Option(help="Attention heads of gpt.")] = 4,
    seq: Annotated[int, typer.Option(help="Tokens per row of gpt.")] = 64,
    batch: Annotated[int, typer.Option(help="Rows per step, N.")] = 32,
    ranks: Annotated[int, typer.Option(help="How many ranks, K.")] = 4,
    micro_batches: Annotated[str, typer.Option(help="Numbers of micro-batches, M.")] = "1,2,4,8,16,32",
    out: Annotated[Path | None, _OUT] = None,
    as_json: Annotated[bool, _JSON] = False,
) -> None:
    """Run a model under GPipe and count the bytes of its fullest rank, with and without recompute, beside the formula.

    Parameters and gradients are left out, as no micro-batches change them.
    """
    from headrace.cli.model_choice import chosen_model

    with user_arguments("plot memory"):
        _check(out)
        at_least(1, ranks=ranks, batch=batch)
        counts = _numbers("--micro-batches", micro_batches)
        chosen = chosen_model(
            context, model, meta=False, batch=batch, layers=layers, dim=dim, heads=heads, sequence=seq
        )
        found = _peak_memory(chosen, ranks, counts)
    columns = (*found.measured.values(), *found.formula.values())
    rows = [(m, *map(size, of_m)) for m, *of_m in zip(counts, *columns, strict=True)]
    names = ("micro-batches", "everything kept", "recompute", "(L/K)·N", "N + (L/K)·(N/M)")
    _show("plot memory", asdict(found), (names, rows), lambda: draw_memory(found), out, as_json)


def _peak_memory(chosen: "Chosen", ranks: int, counts: list[int]) -> PeakMemory:
    """Measured with real steps; the bytes per row of the formulas are counted from shapes."""
    from headrace.analytic import load_hardware
    from headrace.analytic.estimate import estimate
    from headrace.partition import partition
    from headrace.profiling.rank_bytes import bytes_of_step
    from headrace.runtime.batch.microbatch import count_rows
    from headrace.runtime.pipeline import Pipeline

    rows = count_rows("x", chosen.x)
    costs = estimate(chosen.model, chosen.x, load_hardware("cpu"), loss_fn=chosen.loss_fn, target=chosen.y)
    cut = partition(costs.activations, ranks)
    held = costs.stage_costs(cut).memory
    stages = list(zip(held.per_stage("activations", len(cut)), held.per_stage("stage_input", len(cut)), strict=True))
    measured: dict[str, tuple[float, ...]] = {}
    formula: dict[str, tuple[float, ...]] = {}
    for mode in ("never", "always"):
        peaks = []
        for m in counts:
            with Pipeline(
                chosen.model, chosen.loss_fn, ranks=ranks, micro_batches=m, schedule="gpipe", recompute=mode, cut=cut
            ) as pipe:
                peaks.append(max(bytes_of_step(pipe, chosen.x, chosen.y).values()))
        measured[mode] = tuple(peaks)
        formula[mode] = tuple(
            max(gpipe_formula(kept / rows, passed / rows, rows, m, mode == "always") for kept, passed in stages)
            for m in counts
        )
    what = f"gpipe, K = {ranks} ranks, L = {costs.layers} layers, N = {rows} rows"
    return PeakMemory(what, tuple(counts), measured, formula)


@plot.command()
def throughput(
    *,
    context: typer.Context,
    model: Annotated[str, _MODEL] = "gpt",
    layers: Annotated[int, typer.Option(help="Transformer blocks of gpt.")] = 8,
    dim: Annotated[int, typer.Option(help="Width of gpt.")] = 128,
    heads: Annotated[int, typer.Option(help="Attention heads of gpt.")] = 4,
    seq: Annotated[int, typer.Option(help="Tokens per row of gpt.")] = 128,
    batch: Annotated[int, typer.Option(help="Rows per step; a module:function brings its own.")] = 32,
    ranks: Annotated[str, typer.Option(help="Numbers of ranks, K.")] = "1,2,4,8",
    run: Annotated[
        str | None,
        typer.Option(help="Numbers of ranks to run here; 0 for none.", show_default="as many as there are cores"),
    ] = None,
    steps: Annotated[int, typer.Option(help="Steps of each run.")] = 8,
    hardware: Annotated[
        str | None, typer.Option(help="A device that is not here, such as v100-16g, or a TOML file; else it measures.")
    ] = None,
    schedules: Annotated[
        str | None,
        typer.Option(
            help="Schedules to choose from, separated by commas.", show_default="all that need nothing of the model"
        ),
    ] = None,
    out: Annotated[Path | None, _OUT] = None,
    as_json: Annotated[bool, _JSON] = False,
) -> None:
    """Plan for each number of ranks and, where there are cores enough, run the plan: rows per second of either.

    On a CPU every rank has one processor thread, so that K ranks use K cores.
    """
    import torch

    from headrace.cli.model_choice import chosen_model

    with user_arguments("plot throughput"):
        _check(out)
        counts = _numbers("--ranks", ranks)
        cores = 0 if hardware is not None else os.cpu_count() or 1
        here = [k for k in counts if k <= cores] if run is None else whole_numbers("--run", run)
        if hardware is not None and any(here):
            raise ValueError(f"--run {run}: {hardware} is not here; leave --run or --hardware out")
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            chosen = chosen_model(
                context,
                model,
                meta=hardware is not None,
                batch=batch,
                layers=layers,
                dim=dim,
                heads=heads,
                sequence=seq,
            )
            names = None if schedules is None else schedules.split(",")
            points = [_throughput_at(k, chosen, hardware, names, steps if k in here else 0) for k in counts]
        finally:
            torch.set_num_threads(threads)
        found = Throughput(f"{model} on {hardware or 'this machine'}", tuple(points))
    rows = [
        (p.ranks, p.plan, number(p.predicted), "–" if p.measured is None else number(p.measured)) for p in found.points
    ]
    columns = ("ranks", "plan", "rows per second, planned", "measured")
    _show("plot throughput", asdict(found), (columns, rows), lambda: draw_throughput(found), out, as_json)


def _throughput_at(
    ranks: int, chosen: "Chosen", hardware: str | None, schedules: list[str] | None, steps: int
) -> Point:
    """Planned with what the layers take beside as many others as there are cores; run if there are `steps`."""
    from dataclasses import replace

    from headrace.planner import make_plan
    from headrace.planner.model import described, measured
    from headrace.runtime.batch.microbatch import count_rows
    from headrace.train.throughput import rows_per_second

    batch = chosen.x, chosen.y
    if hardware is None:
        counts = [m for m in (ranks, 2 * ranks, 4 * ranks, 8 * ranks) if m <= count_rows("x", chosen.x)]
        company = min(ranks, max(2, os.cpu_count() or 1))  # two at least, so that a link is measured
        found = measured(chosen.model, batch, chosen.loss_fn, company, counts or None)
    else:
        found = described(chosen.model, batch, chosen.loss_fn, ranks, None, hardware)
    plan = make_plan(replace(found.request(ranks), schedules=schedules))
    return Point(
        ranks=ranks,
        plan=f"{plan.schedule.name}, m = {plan.micro_batches}"
        + (", recompute" if plan.recomputes or plan.recomputed_layers else ""),
        predicted=plan.batch / plan.predicted.step_seconds,
        measured=rows_per_second(chosen.model, chosen.loss_fn, batch, plan, steps) if steps else None,
    )


def _check(out: Path | None) -> None:
    if out is not None:
        check_file(out)


def _numbers(option: str, text: str) -> list[int]:
    found = whole_numbers(option, text)
    if min(found) < 1:
        raise ValueError(f"{option} {text}: every number must be 1 or more")
    return found


def _show(
    command: str,
    data: dict[str, object],
    for_people: tuple[object, object],
    draw: "Callable[[], Figure]",
    out: Path | None,
    as_json: bool,
) -> None:
    """Print the numbers, and draw them if there is a file to draw into."""
    if as_json:
        print_json(data)
    else:
        stdout().print(table(*for_people))  # type: ignore[arg-type]
    if out is not None:
        with user_arguments(command):
            save_picture(out, draw())
