"""`headrace reproduce`: published tables, computed here, beside what was published."""

from dataclasses import asdict
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Final

import typer

from headrace.cli.output import print_json, stdout, user_arguments
from headrace.report.tables import table
from headrace.units import number

if TYPE_CHECKING:
    from headrace.analytic.published.figures import Figure, Reproduction

TABLES: Final = {
    "gpipe-table1": "gpipe_table1",
    "gpipe-table2": "gpipe_table2",
    "gpipe-table3": "gpipe_table3",
    "torchgpipe": "torchgpipe",
    "zero-bubble": "zero_bubble",
}
"""The module of each, in `headrace.analytic.published`; imported when asked for, as it needs torch."""


def reproduce(
    name: Annotated[str, typer.Argument(metavar="NAME", help=f"One of {', '.join(TABLES)}.")],
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Compute a published table from architecture, hardware and simulation, and print ours beside theirs."""
    with user_arguments("reproduce"):
        if name not in TABLES:
            raise ValueError(f"NAME {name} is none of {', '.join(TABLES)}")
    found: Reproduction = import_module(f"headrace.analytic.published.{TABLES[name]}").reproduce()
    if as_json:
        figures = [{**asdict(f), "deviation": f.deviation, "agrees": f.agrees} for f in found.figures]
        print_json({"name": name, "title": found.title, "figures": figures, "notes": found.notes})
        return
    console = stdout()
    console.print(f"{found.title}\n")
    reasons = list(dict.fromkeys(figure.note for figure in found.figures if figure.note))
    console.print(table(("", "ours", "theirs", "off", "within", ""), [_row(f, reasons) for f in found.figures]))
    console.print()
    for place, reason in enumerate(reasons):
        console.print(f"{_mark(place)} {reason}", soft_wrap=True)
    for note in found.notes:
        console.print(note, soft_wrap=True)


def _row(figure: "Figure", reasons: list[str]) -> tuple[str, ...]:
    """A figure that need not agree has the mark of its reason instead of a verdict."""
    verdict = _mark(reasons.index(figure.note)) if figure.note else "yes" if figure.agrees else "NO"
    ours, theirs = (f"{number(value)} {figure.unit}".rstrip() for value in (figure.ours, figure.theirs))
    return figure.name, ours, theirs, f"{100 * figure.deviation:+.1f} %", f"±{figure.within:.2g}", verdict


def _mark(place: int) -> str:
    return f"({place + 1})"
