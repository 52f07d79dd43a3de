"""`headrace play`: a page in which to move a pipeline."""

from pathlib import Path
from typing import Annotated

import typer

from headrace.cli.output import print_json, stdout, user_arguments


def play(
    out: Annotated[Path, typer.Option("--out", "-o", help="The file to write.")] = Path("play.html"),
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Write a page in which sliders move a pipeline: schedule, costs, memory. It works offline in any browser."""
    from headrace.report.play import play_page

    text = play_page()
    with user_arguments("play"):
        try:
            out.write_text(text, encoding="utf-8")
        except OSError as error:
            raise ValueError(f"--out {out}: {error.strerror}") from None
    if as_json:
        print_json({"page": str(out), "bytes": len(text.encode())})
    else:
        stdout().print(f"page written to {out}: open it in a browser", soft_wrap=True)
