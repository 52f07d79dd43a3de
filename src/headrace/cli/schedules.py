"""`headrace schedules`: the catalogue, and `headrace schedules check`: a proof of a schedule that someone wrote."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from headrace.cli.exits import Exit
from headrace.cli.output import fail, print_json, stdout, user_arguments
from headrace.costs import Costs
from headrace.report.tables import in_words, table
from headrace.report.units import percent
from headrace.schedule.catalogue import CATALOGUE, build, describe
from headrace.schedule.check import InvalidSchedule, check
from headrace.schedule.text import parse
from headrace.simulate.closed_forms import closed_form
from headrace.simulate.simulator import simulate

# A backward takes about twice as long as a forward; the two kinds of bubble below depend on no more than that.
_FORWARD, _BACKWARD = 1, 2

schedules = typer.Typer(invoke_without_command=True)


@schedules.callback()
def list_schedules(
    context: typer.Context,
    ranks: Annotated[int, typer.Option(help="How many ranks, p.")] = 4,
    micro_batches: Annotated[int, typer.Option(help="How many micro-batches, m.")] = 8,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """List the schedules that can be asked for by name, with their bubble and memory; or check one of your own."""
    if context.invoked_subcommand is not None:
        return
    found = []
    with user_arguments("schedules"):
        for name in CATALOGUE:
            timeline = simulate(build(name, ranks=ranks, micro_batches=micro_batches), Costs(_FORWARD, 1, 1))
            theory = closed_form(name, ranks, micro_batches, _FORWARD, _BACKWARD)
            found.append((name, timeline, theory.formulas if theory else None))
    if as_json:
        keys = ("makespan", "bubble_fraction", "peak_in_flight")
        entries = [
            {
                "name": name,
                "description": describe(name),
                "bubble_fraction": timeline.bubble_fraction,
                "peak_in_flight": timeline.peak_in_flight,
                "formulas": dict(zip(keys, formulas, strict=True)) if formulas else None,
            }
            for name, timeline, formulas in found
        ]
        print_json({"ranks": ranks, "micro_batches": micro_batches, "schedules": entries})
        return
    rows = []
    for name, timeline, formulas in found:
        makespan, bubble, peak = formulas or ("–", "–", "–")
        measured = (percent(timeline.bubble_fraction), in_words(timeline.peak_in_flight))
        rows.append((name, *measured, makespan, bubble, peak))
    console = stdout()
    console.print(f"p = {ranks} ranks, m = {micro_batches} micro-batches, equal stages, a backward twice a forward\n")
    columns = ("schedule", "bubble", "peak in flight", "makespan formula", "bubble formula", "peak formula")
    console.print(table(columns, rows))
    console.print()
    for name, _, _ in found:
        console.print(f"{name}: {describe(name)}")


@schedules.command(name="check")
def check_file(
    *,
    file: Annotated[str, typer.Argument(help="A file in grid notation (see `simulate --text`), or - for stdin.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Prove that a schedule in grid notation is complete and cannot deadlock; exit code 1 and the reason if not."""
    command = "schedules check"
    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8-sig")
        proof = check(parse(text, name=Path(file).stem if file != "-" else "stdin"))
    except OSError as error:
        fail(command, f"FILE {file}: {error.strerror}", Exit.USAGE)
    except InvalidSchedule as refutation:
        if as_json:
            print_json({"valid": False, "reason": str(refutation)})
            raise typer.Exit(Exit.CHECK_FAILED) from None
        fail(command, refutation, Exit.CHECK_FAILED)
    except ValueError as malformed:
        fail(command, f"FILE {file}: {malformed}", Exit.USAGE)
    if as_json:
        depth = {f"{a}-{b}": d for (a, b), d in proof.queue_depth.items()}
        print_json({"valid": True, "peak_in_flight": proof.peak_in_flight, "queue_depth": depth})
        return
    stdout().print(str(proof), soft_wrap=True)
