"""`headrace verify`: the numbers of every pipeline against those of the unsplit model."""

from dataclasses import asdict
from typing import Annotated

import typer

from headrace.cli.exits import Exit
from headrace.cli.output import print_json, stdout, user_arguments
from headrace.cli.typed import whole_numbers
from headrace.report.tables import table


def verify(
    *,
    ranks: Annotated[
        str | None, typer.Option(help="Numbers of ranks, separated by commas.", show_default="1,2,4, or torchrun's")
    ] = None,
    micro_batches: Annotated[str, typer.Option(help="Numbers of micro-batches, separated by commas.")] = "1,3,8",
    schedule: Annotated[str, typer.Option(help="Schedules, separated by commas.")] = "gpipe,1f1b",
    recompute: Annotated[
        str, typer.Option(help="Recompute modes, separated by commas.")
    ] = "never,always,except_last,layer",
    layers: Annotated[int, typer.Option(help="Transformer blocks.")] = 4,
    dim: Annotated[int, typer.Option(help="Width of the model.")] = 32,
    dropout: Annotated[float, typer.Option(help="Dropout; its masks must be the same as well.")] = 0.1,
    batch: Annotated[int, typer.Option(help="Rows of the batch.")] = 11,
    seq: Annotated[int, typer.Option(help="Bytes per row.")] = 24,
    steps: Annotated[int, typer.Option(help="Optimizer steps.")] = 3,
    seed: Annotated[int, typer.Option(help="Of initialisation, data and dropout.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Train a small GPT under every combination and unsplit; exit code 1 if a bit differs."""
    import torch

    from headrace.models.gpt import gpt, next_byte_loss
    from headrace.runtime.process.processes import process_count, process_rank
    from headrace.train.verify import verify as run

    with user_arguments("verify"):
        processes = process_count()
        torch.manual_seed(seed)
        model = gpt(layers, dim, heads=2, sequence=seq, dropout=dropout)
        tokens = torch.randint(0, 256, (batch, seq + 1))
        found = run(
            model,
            next_byte_loss,
            (tokens[:, :-1], tokens[:, 1:]),
            ranks=whole_numbers("--ranks", ranks or (str(processes) if processes > 1 else "1,2,4")),
            micro_batches=whole_numbers("--micro-batches", micro_batches),
            schedules=schedule.split(","),
            recompute=recompute.split(","),
            steps=steps,
        )
    if process_rank() == 0:
        if as_json:
            print_json({"bitwise_equal": bool(found), "comparisons": [asdict(c) for c in found.comparisons]})
        else:
            rows = [
                (
                    f"{c.schedule}, recompute {c.recompute}",
                    c.ranks,
                    c.micro_batches,
                    c.losses,
                    c.gradients,
                    c.parameters,
                    f"{c.whole_batch.largest:.1e}" if dropout == 0 else "–",
                )
                for c in found.comparisons
            ]
            columns = ("schedule", "ranks", "micro-batches", "losses", "gradients", "parameters", "whole batch")
            console = stdout()
            console.print(table(columns, rows))
            console.print(
                f"\n{steps} steps of a GPT with {layers} blocks, dropout {dropout:g}; compared with the unsplit model, "
                "micro-batch by micro-batch.\nwhole batch: largest relative difference of the first gradients to those "
                "of the batch in one piece (rounding)."
            )
    if not found:
        raise typer.Exit(Exit.CHECK_FAILED)
