"""The directive `command-help`: a section for each command of `headrace`, with what its --help prints.

It runs the commands while the site is built, so the reference cannot differ from the program.
"""

from collections.abc import Iterator
from typing import Final

import click
import typer
from docutils import nodes
from docutils.parsers.rst import Directive
from sphinx.application import Sphinx
from typer.testing import CliRunner

from headrace.cli.main import app as headrace

_WIDTH: Final = "90"  # what fits beside the table of contents


class CommandHelp(Directive):
    """`{command-help}`: without arguments, for the whole program."""

    def run(self) -> list[nodes.Node]:
        return [_section(path) for path in _commands(typer.main.get_command(headrace), ())]


def _commands(command: click.Command, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    yield path
    for name, inner in getattr(command, "commands", {}).items():
        yield from _commands(inner, (*path, name))


def _section(path: tuple[str, ...]) -> nodes.section:
    title = " ".join(("headrace", *path))
    section = nodes.section(ids=[nodes.make_id(title)], names=[title])
    section += nodes.title(title, title)
    section += nodes.literal_block(_help(path), _help(path), language="text")
    return section


def _help(path: tuple[str, ...]) -> str:
    shown = CliRunner().invoke(headrace, [*path, "--help"], env={"COLUMNS": _WIDTH}, prog_name="headrace")
    if shown.exit_code:
        raise RuntimeError(f"{path} --help ended with {shown.exit_code}: {shown.output}")
    return "\n".join(line.rstrip() for line in shown.output.strip("\n").splitlines())


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("command-help", CommandHelp)
    return {"parallel_read_safe": True}
