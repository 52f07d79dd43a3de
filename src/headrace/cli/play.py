"""`headrace play`: a page in which to move a pipeline."""

from pathlib import Path
from typing import Annotated

import typer

from headrace.cli.output import print_json, stdout, user_arguments


def play(
    output: Annotated[Path, typer.Option("--output", "-o", help="Where the page is written.")] = Path("play.html"),
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Write a page in which sliders move a pipeline: schedule, costs, memory. It works offline in any browser."""
    from headrace.report.play import play_page

    text = play_page()
    with user_arguments("play"):
        try:
            output.write_text(text, encoding="utf-8")
        except OSError as error:
            raise ValueError(f"--output {output}: {error.strerror}") from None
    if as_json:
        print_json({"page": str(output), "bytes": len(text.encode())})
    else:
        stdout().print(f"page written to {output}: open it in a browser", soft_wrap=True)
