"""`headrace schedules`: the catalogue, and `headrace schedules check`: a proof of a schedule that someone wrote."""

from typing import Annotated

import typer

from headrace.cli.chosen import read_schedule
from headrace.cli.exits import Exit
from headrace.cli.output import fail, print_json, stdout, user_arguments
from headrace.report.catalogue import Entry, Refused, entries
from headrace.report.tables import table
from headrace.schedule.check import InvalidSchedule, check
from headrace.schedule.numbers import at_least
from headrace.units import percent

schedules = typer.Typer(invoke_without_command=True)


@schedules.callback()
def list_schedules(
    context: typer.Context,
    ranks: Annotated[int, typer.Option(help="How many ranks, p.")] = 4,
    micro_batches: Annotated[int, typer.Option(help="How many micro-batches, m.")] = 8,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """List the schedules that can be asked for by name, with bubble, memory and messages; or check one of your own."""
    if context.invoked_subcommand is not None:
        return
    with user_arguments("schedules"):
        at_least(1, ranks=ranks, micro_batches=micro_batches)
    found = list(entries(ranks, micro_batches))
    if as_json:
        print_json({"ranks": ranks, "micro_batches": micro_batches, "schedules": list(map(_as_data, found))})
        return
    console = stdout()
    console.print(
        f"p = {ranks} ranks, m = {micro_batches} micro-batches; a rank takes as long for F as for I and for W\n"
    )
    columns = ("schedule", "stages a rank", "bubble", "peak", "messages", "copies", "needs")
    console.print(table(columns, [_row(entry) for entry in found if isinstance(entry, Entry)]))
    console.print(
        "\npeak: activations that the fullest rank holds, in micro-batches of a p-th of the model\n"
        "copies: how often the parameters are held, as replicas or as versions\n"
    )
    for entry in found:
        console.print(f"{entry.name}: {entry.description}", soft_wrap=True)
        if isinstance(entry, Refused):
            console.print(f"    not for these numbers: {entry.reason}", soft_wrap=True)


def _row(entry: Entry) -> tuple[object, ...]:
    bubble = percent(entry.timeline.bubble_fraction)
    peak = f"{float(entry.peak):g}"
    return entry.name, entry.stages_per_rank, bubble, peak, entry.messages, entry.copies, entry.needs or "–"


def _as_data(entry: Entry | Refused) -> dict[str, object]:
    if isinstance(entry, Refused):
        return {"name": entry.name, "description": entry.description, "refused": entry.reason}
    return {
        "name": entry.name,
        "description": entry.description,
        "needs": entry.needs,
        "stages_per_rank": entry.stages_per_rank,
        "bubble_fraction": entry.timeline.bubble_fraction,
        "peak": entry.peak,
        "peak_in_flight": entry.proof.peak_in_flight,
        "messages": entry.messages,
        "copies": entry.copies,
    }


@schedules.command(name="check")
def check_file(
    *,
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="A file in grid notation (see `simulate --text`), or - for stdin.")
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Prove that a schedule in grid notation is complete and cannot deadlock; exit code 1 and the reason if not."""
    command = "schedules check"
    try:
        proof = check(read_schedule(file))
    except InvalidSchedule as refutation:
        if as_json:
            print_json({"valid": False, "reason": str(refutation)})
            raise typer.Exit(Exit.CHECK_FAILED) from None
        fail(command, refutation, Exit.CHECK_FAILED)
    except ValueError as malformed:
        fail(command, malformed, Exit.USAGE)
    if as_json:
        depth = {f"{a}-{b}": d for (a, b), d in proof.queue_depth.items()}
        print_json({"valid": True, "peak_in_flight": proof.peak_in_flight, "queue_depth": depth})
        return
    stdout().print(str(proof), soft_wrap=True)
