"""`headrace report`: one HTML file that says what a run did."""

from pathlib import Path
from typing import Annotated

import typer

from headrace.cli.output import print_json, stdout, user_arguments
from headrace.files import check_target


def report(
    run: Annotated[
        Path, typer.Argument(metavar="RUN_DIR", help="The folder of a finished run, as headrace train leaves it.")
    ],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The file to write.", show_default="RUN_DIR/report.html")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object with the path.")] = False,
) -> None:
    """Write a page about a run: timeline, memory, cut, loss, and what would be faster. It opens without a network."""
    from headrace.report.page import write_report

    with user_arguments("report"):
        if out is not None:
            check_target(out)
        path = write_report(run, out)
    if as_json:
        print_json({"report": str(path)})
    else:
        stdout().print(f"report written to {path}", soft_wrap=True)
