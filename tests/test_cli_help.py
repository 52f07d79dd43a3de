"""`--help` shows what was written for it, and commands name alike what is alike."""

from collections.abc import Iterator

import click
import pytest
import typer
from typer.testing import CliRunner

from headrace.cli.main import app


def commands(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    yield path, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from commands(inner, (*path, name))


COMMANDS = dict(commands(typer.main.get_command(app)))


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_no_word_of_a_help_text_is_taken_for_markup(path: tuple[str, ...]) -> None:
    shown = CliRunner().invoke(app, [*path, "--help"], env={"COLUMNS": "600"}).output
    for parameter in COMMANDS[path].params:
        text = getattr(parameter, "help", None)
        assert text is None or text in shown


def test_the_file_to_write_is_out_everywhere() -> None:
    names = {
        name for command in COMMANDS.values() for each in command.params for name in each.opts if "-o" in each.opts
    }
    assert names == {"-o", "--out"}


def test_arguments_are_in_capitals() -> None:
    arguments = [each for command in COMMANDS.values() for each in command.params if each.param_type_name == "argument"]
    assert {each.metavar for each in arguments} == {"RUN_DIR", "FILE", "NAME"}
