"""`headrace trace`: a step of a finished run, for the trace viewers that people know."""

import json
from pathlib import Path
from typing import Annotated

import typer

from headrace.cli.output import print_json, stdout, user_arguments
from headrace.files import check_target
from headrace.units import seconds


def trace(
    *,
    run: Annotated[
        Path, typer.Argument(metavar="RUN_DIR", help="The folder of a finished run, as headrace train leaves it.")
    ],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The file to write.", show_default="RUN_DIR/trace.json")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Write a step, predicted and measured, as a trace for Perfetto or chrome://tracing."""
    from headrace.planner.run_profile import read_timelines
    from headrace.report.trace import as_trace

    with user_arguments("trace"):
        if out is not None:
            check_target(out)
        timelines = read_timelines(run)
        path = run / "trace.json" if out is None else out
        path.write_text(json.dumps(as_trace(timelines), allow_nan=False) + "\n", encoding="utf-8")
    measured = timelines.measured
    error = max((clock.error for clock in measured.clocks), default=0.0)
    if as_json:
        print_json(
            {
                "trace": str(path),
                "schedule": timelines.schedule,
                "ranks": measured.ranks,
                "actions": len(measured.spans),
                "messages": len(measured.transfers),
                "clock_error": error,
            }
        )
        return
    clocks = f"; clocks agree with that of rank 0 to {seconds(error)}" if error else ""
    stdout().print(
        f"{timelines.schedule}, {measured.ranks} ranks: {len(measured.spans)} actions and {len(measured.transfers)} "
        f"messages, measured and predicted{clocks}\n{path}: open it in https://ui.perfetto.dev or chrome://tracing",
        soft_wrap=True,
    )
