"""Which schedule a command was asked for: a name with options, or a file in grid notation."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, get_args

import typer

from headrace.files import read_text
from headrace.planner import read_plan
from headrace.schedule.catalogue import build
from headrace.schedule.catalogue.recompute import Mode, add_recompute
from headrace.schedule.check import InvalidSchedule
from headrace.schedule.schedule import Schedule
from headrace.schedule.text import parse

FileOption = Annotated[
    str | None,
    typer.Option("--schedule-file", help="A schedule in grid notation instead (see `simulate --text`), or -."),
]
OptionsOption = Annotated[
    list[str] | None, typer.Option("--option", help="Of the schedule, such as stages_per_rank=2; can be repeated.")
]


def read_schedule(file: str) -> Schedule:
    """The schedule in `file`, or on stdin if that is "-"; named after the file.

    Raises:
        InvalidSchedule: a stage is on two ranks for one micro-batch.
        ValueError: it cannot be read; the message names the file.
    """
    try:
        text = sys.stdin.read() if file == "-" else read_text(Path(file), "utf-8-sig")
    except OSError as error:
        raise ValueError(f"FILE {file}: {error.strerror}") from None
    try:
        return parse(text, name="stdin" if file == "-" else Path(file).stem)
    except InvalidSchedule:
        raise
    except ValueError as error:
        raise ValueError(f"FILE {file}: {error}") from None


def chosen_schedule(
    name: str,
    file: str | None,
    ranks: int | None,
    micro_batches: int | None,
    recompute: str,
    options: Sequence[str],
    defaults: tuple[int, int],
) -> Schedule:
    """The schedule that the command line asks for.

    Args:
        name, file, ranks, micro_batches, recompute, options: what was typed; None where nothing was.
        defaults: ranks and micro-batches for a name where nothing was typed.

    Raises:
        ValueError: something does not fit.
    """
    if file is None:
        return build(
            name,
            ranks=defaults[0] if ranks is None else ranks,
            micro_batches=defaults[1] if micro_batches is None else micro_batches,
            recompute=recompute_mode(recompute),
            **dict(map(_option, options)),
        )
    if options:
        raise ValueError("--option goes with a schedule's name; a file says all there is")
    order = read_schedule(file)
    of_file = order.micro_batches // order.segments
    for option, typed, found in (("--ranks", ranks, order.ranks), ("--micro-batches", micro_batches, of_file)):
        if typed is not None and typed != found:
            raise ValueError(f"{option} {typed}, but the schedule in {file} is for {found}: leave {option} out")
    mode = recompute_mode(recompute)
    return order if mode == "never" else add_recompute(order, mode)


def planned_schedule(context: typer.Context, plan: Path) -> Schedule:
    """The schedule of a plan, which says all there is.

    Args:
        context: says which options were typed.
        plan: the file.

    Raises:
        ValueError: the plan cannot be read, or something that it says was typed as well.
    """
    refuse_typed(
        context,
        ("schedule", "schedule_file", "ranks", "micro_batches", "option", "recompute"),
        f"goes without --plan: the plan in {plan} says what it is",
    )
    try:
        return read_plan(plan).schedule
    except OSError as error:
        raise ValueError(f"--plan {plan}: {error.strerror}") from None


def refuse_typed(context: typer.Context, options: Sequence[str], why: str) -> None:
    """Refuse options that would be ignored, even where what was typed is their default.

    Raises:
        ValueError: one of `options` was typed; the message names it and says `why`.
    """
    for name in options:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            raise ValueError(f"--{name.replace('_', '-')} {why}")


def recompute_mode(text: str) -> Any:
    """`never`, `always` and `except_last` as they are; `0,2` as the stages that recompute."""
    return text if text in get_args(Mode) else _stages(text) or text


def recompute_of_layers(text: str) -> tuple[str, Any]:
    """What of `--recompute` the schedule has as R, and what layers do one by one.

    `0,block3` is stage 0 and the layer block3; `layer` is every layer.
    """
    if text == "layer":
        return "never", text
    if text in get_args(Mode):
        return text, "never"
    parts = [part.strip() for part in text.split(",")]
    stages = [part for part in parts if part.isdecimal()]
    layers = tuple(part for part in parts if not part.isdecimal())
    return ",".join(stages) or "never", layers or "never"


def _stages(text: str) -> set[int]:
    parts = text.split(",")
    return {int(part) for part in parts} if all(part.strip().isdecimal() for part in parts) else set()


def _option(text: str) -> tuple[str, Any]:
    name, found, value = text.partition("=")
    if not found:
        raise ValueError(f"--option {text}: write a name and a value, such as stages_per_rank=2")
    words = {"true": True, "false": False}
    try:
        return name, words[value] if value in words else int(value)
    except ValueError:
        return name, value
