"""`headrace profile`: what each layer of a model takes and keeps here, and what a message takes."""

import json
from pathlib import Path
from typing import Annotated

import typer

from headrace.cli.output import print_json, stdout, user_arguments
from headrace.costs import spread
from headrace.files import check_target
from headrace.report.tables import table
from headrace.train.config import TrainConfig
from headrace.units import seconds, size

_DEFAULT = TrainConfig()


def profile(
    *,
    context: typer.Context,
    model: Annotated[str, typer.Option(help="gpt, or module:function, which returns model, loss_fn, (x, y).")] = "gpt",
    layers: Annotated[int, typer.Option(help="Transformer blocks of gpt.")] = _DEFAULT.layers,
    dim: Annotated[int, typer.Option(help="Width of gpt.")] = _DEFAULT.dim,
    heads: Annotated[int, typer.Option(help="Attention heads of gpt.")] = _DEFAULT.heads,
    seq: Annotated[int, typer.Option(help="Tokens per row of gpt.")] = _DEFAULT.sequence,
    batch: Annotated[int, typer.Option(help="Rows per step; a module:function brings its own.")] = _DEFAULT.batch,
    ranks: Annotated[int, typer.Option(help="Ranks that share this machine.")] = _DEFAULT.ranks,
    micro_batches: Annotated[int, typer.Option(help="Into how many the batch is cut.")] = _DEFAULT.micro_batches,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Write the costs to this file, as JSON.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Measure each layer's forward, backward and bytes, and the links between ranks."""
    from headrace.cli.model_choice import chosen_model
    from headrace.planner.model import measured
    from headrace.runtime.process.processes import process_rank

    with user_arguments("profile"):
        if out is not None:
            check_target(out)
        chosen = chosen_model(
            context, model, meta=False, batch=batch, layers=layers, dim=dim, heads=heads, sequence=seq
        )
        found = measured(chosen.model, (chosen.x, chosen.y), chosen.loss_fn, ranks, [micro_batches])
        if process_rank() > 0:
            return
        costs = found.sizes[0]
        slowness = spread("slowness", found.slowness, ranks, "ranks")
        data = {
            "version": 1,
            "latency": found.latency,
            "bandwidth": found.bandwidth,
            "slowness": slowness,
            "layers": costs.as_data(),
        }
        if out is not None:
            out.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")
    if as_json:
        print_json(data)
        return
    say = stdout().print
    rows = [
        (
            name,
            seconds(costs.forward[i]),
            seconds(costs.backward_input[i]),
            seconds(costs.backward_weight[i]),
            size(costs.parameters[i]),
            size(costs.activations[i]),
            size(costs.for_weight[i]),
            size(costs.output[i]),
        )
        for i, name in enumerate(costs.names)
    ]
    say(f"{costs.rows} rows, one of {ranks} ranks\n")
    say(table(("layer", "F", "I", "W", "parameters", "activations", "kept for W", "message"), rows))
    if len(set(slowness)) > 1:
        others = ", ".join(f"{times:.2f} × as long on rank {rank}" for rank, times in enumerate(slowness))
        say(f"\nseconds are those of rank 0: {others}")
    rate = "however many bytes it has" if found.bandwidth is None else f"{size(found.bandwidth)} per second"
    say(f"\na message between ranks: {seconds(found.latency)}, {rate}")
    if out is not None:
        typer.echo(f"\ncosts written to {out}", err=True)
