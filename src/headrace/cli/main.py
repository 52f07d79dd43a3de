"""The command `headrace`: one file per command, gathered here.

Commands that need torch import it inside their function, so that `headrace --help` and the commands that only look at
schedules start in a fraction of a second and work without it.
"""

from typing import Annotated

import typer

from headrace.cli.output import make_output_robust
from headrace.cli.plan import plan
from headrace.cli.play import play
from headrace.cli.plot import plot
from headrace.cli.profile import profile
from headrace.cli.report import report
from headrace.cli.reproduce import reproduce
from headrace.cli.schedules import schedules
from headrace.cli.simulate import simulate
from headrace.cli.trace import trace
from headrace.cli.train import train
from headrace.cli.verify import verify

app = typer.Typer(
    name="headrace",
    help="Pipeline-parallel training of PyTorch models: planned, proved, run and explained.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"headrace {version('headrace')}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    """Pipeline-parallel training of PyTorch models: planned, proved, run and explained."""


# Commands, in the order in which --help lists them. A new one is a file beside this one and a line here.
app.command()(train)
app.command()(plan)
app.command()(profile)
app.command()(trace)
app.command()(verify)
app.command()(simulate)
app.add_typer(schedules, name="schedules")
app.command()(report)
app.add_typer(plot, name="plot")
app.command()(play)
app.command()(reproduce)


def main() -> None:
    """Run the command line; ends the process with one of `headrace.cli.exits.Exit`."""
    make_output_robust()
    app()


if __name__ == "__main__":
    main()
