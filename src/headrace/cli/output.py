"""Where output goes: tables and charts to stdout, messages to stderr, and failures end with their exit code."""

import json
import shutil
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import typer
from rich.console import Console

from headrace.cli.exits import Exit
from headrace.report.plots.canvas import save

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_PIPED_WIDTH = 120
_LEAST_WIDTH = 60


def stdout() -> Console:
    """The console for results: as wide as the terminal, or 120 columns (or $COLUMNS) without colour in a pipe."""
    width = max(_LEAST_WIDTH, shutil.get_terminal_size((_PIPED_WIDTH, 24)).columns)
    return Console(width=width, highlight=False, markup=False)


def print_json(value: object) -> None:
    """Write one JSON object to stdout; whole Fractions become ints, others floats."""
    typer.echo(json.dumps(value, default=_plain_number, ensure_ascii=False, allow_nan=False))


def _plain_number(value: Any) -> int | float:
    if isinstance(value, Fraction):
        return value.numerator if value.denominator == 1 else float(value)
    raise TypeError(f"{value!r} has no JSON form")


def save_picture(path: Path, figure: "Figure") -> None:
    """Write a picture, and say so on stderr.

    Raises:
        ValueError, OSError: it cannot be written.
    """
    save(figure, path)
    typer.echo(f"picture written to {path}", err=True)


def fail(command: str, message: object, code: Exit) -> NoReturn:
    """Say on stderr why `command` ends, and end it with `code`."""
    typer.echo(f"headrace {command}: {message}", err=True)
    raise typer.Exit(code)


@contextmanager
def user_arguments(command: str) -> Iterator[None]:
    """Within, a ValueError, TypeError or OSError is the user's: it ends `command` with exit code 2 and its message.

    Where a rank failed, or a layer while it was measured, the exit code is 4, and the message has the traceback.

    Wrap only what turns arguments into objects, lest a mistake of ours pass for one of theirs.
    """
    try:
        yield
    except (ValueError, TypeError, OSError) as error:
        fail(command, "\n".join((str(error), *getattr(error, "__notes__", ()))), Exit.USAGE)
    except Exception as error:
        from headrace.runtime.failure import PipelineFailure  # torch is there by now

        if isinstance(error, PipelineFailure):
            fail(command, error, Exit.WORKER_FAILED)
        if hasattr(error, "__notes__"):  # which says what of the user's raised it
            fail(command, "".join(traceback.format_exception(error)), Exit.WORKER_FAILED)
        raise


def make_output_robust() -> None:
    """Let a terminal or pipe that cannot encode a character show `?` rather than end the command."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="replace")
