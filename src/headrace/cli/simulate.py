"""`headrace simulate`: what a schedule would cost, without running anything."""

import re
from dataclasses import asdict
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from headrace.cli.chosen import FileOption, OptionsOption, chosen_schedule, refuse_typed
from headrace.cli.output import print_json, save_picture, stdout, user_arguments
from headrace.costs import Costs
from headrace.report.gantt import gantt
from headrace.report.plots.canvas import check_file
from headrace.report.plots.gantt import draw_gantt
from headrace.report.tables import in_words, ranks_table, table
from headrace.schedule.actions import RECOMPUTE
from headrace.schedule.catalogue import CATALOGUE
from headrace.schedule.schedule import Schedule
from headrace.search import Found, InFlight
from headrace.search import search as run_search
from headrace.simulate.closed_forms import ClosedForm, closed_form
from headrace.simulate.simulator import simulate as run_simulation
from headrace.timeline import Timeline
from headrace.units import percent, seconds

_SIZE = (4, 8)
_NOT_ITS_ORDER = {"drain", "stages_per_rank", "segments"}
"""Options that closed forms know of; others make another order than theirs."""

_MOST = 10**100
_EXPONENT = re.compile(r"[eE][+-]?([0-9_]+)$")

_PER_STAGE = "seconds: one number, or one per stage separated by commas"


def simulate(
    *,
    context: typer.Context,
    schedule: Annotated[str, typer.Option(help=f"One of {', '.join(CATALOGUE)}.")] = "1f1b",
    schedule_file: FileOption = None,
    ranks: Annotated[int | None, typer.Option(help="How many ranks, p.", show_default="4")] = None,
    micro_batches: Annotated[int | None, typer.Option(help="How many micro-batches, m.", show_default="8")] = None,
    recompute: Annotated[
        str, typer.Option(help="Recompute forwards: never, always, except_last, or the stages, such as 0,1.")
    ] = "never",
    option: OptionsOption = None,
    forward: Annotated[str, typer.Option(help=f"Cost of F in {_PER_STAGE}.")] = "1",
    backward: Annotated[str | None, typer.Option(help=f"Cost of B in {_PER_STAGE}.", show_default="2")] = None,
    backward_input: Annotated[str | None, typer.Option(help="Cost of I, the input-gradient part of B.")] = None,
    backward_weight: Annotated[str | None, typer.Option(help="Cost of W, the weight-gradient part of B.")] = None,
    recompute_cost: Annotated[str | None, typer.Option(help="Cost of R; that of F if not given.")] = None,
    transfer: Annotated[str, typer.Option(help="Seconds of a hop between ranks: one number, or one per hop.")] = "0",
    pair: Annotated[
        str | None, typer.Option(help=f"Cost of an overlapped pair in {_PER_STAGE}.", show_default="both parts")
    ] = None,
    message: Annotated[str, typer.Option(help="Bytes of a message: one number, or one per hop.")] = "0",
    bandwidth: Annotated[str | None, typer.Option(help="Bytes per second of a link.", show_default="no limit")] = None,
    one_at_a_time: Annotated[
        bool, typer.Option("--one-at-a-time", help="A link carries one message at a time.")
    ] = False,
    update: Annotated[str, typer.Option(help=f"Cost of the optimizer's update in {_PER_STAGE}.")] = "0",
    reduce: Annotated[str, typer.Option(help=f"Cost of reducing gradients over replicas in {_PER_STAGE}.")] = "0",
    search: Annotated[
        bool, typer.Option("--search", help="Find a better one with the placement of --schedule.")
    ] = False,
    time_limit: Annotated[float | None, typer.Option(help="Seconds that --search may take.")] = None,
    exact: Annotated[bool, typer.Option("--exact", help="Let --search go on until the optimum is proven.")] = False,
    in_flight: Annotated[
        str | None, typer.Option(help="Most micro-batches in flight for --search: one number, or one per rank.")
    ] = None,
    width: Annotated[
        int | None, typer.Option(help="Columns of the chart; as wide as the terminal if not given.")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw the chart as a picture, too: a file ending with .svg, .png or .pdf.")
    ] = None,
    text: Annotated[bool, typer.Option("--text", help="Print only the schedule, in grid notation.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Simulate a schedule: Gantt chart, makespan, bubble and micro-batches in flight, beside the closed form."""
    with user_arguments("simulate"):
        if text and as_json:
            raise ValueError("--text and --json are two forms of output: give one of them")
        if not search and (exact or time_limit is not None or in_flight is not None):
            raise ValueError("--time-limit, --exact and --in-flight are options of --search: give it too")
        if schedule_file is not None:
            refuse_typed(context, ("schedule",), "goes without --schedule-file, which says all there is")
        if (bandwidth is None) != (message == "0"):
            raise ValueError("--message and --bandwidth go together: bytes ÷ bytes per second")
        if plot is not None:
            check_file(plot)
        order = chosen_schedule(schedule, schedule_file, ranks, micro_batches, recompute, option or (), _SIZE)
        costs = Costs(
            forward=_numbers("--forward", forward),
            **_backward(backward, backward_input, backward_weight),
            recompute=None if recompute_cost is None else _numbers("--recompute-cost", recompute_cost),
            transfer=_numbers("--transfer", transfer),
            pair=None if pair is None else _numbers("--pair", pair),
            message=_numbers("--message", message),
            bandwidth=None if bandwidth is None else _numbers("--bandwidth", bandwidth),
            one_at_a_time=one_at_a_time,
            update=_numbers("--update", update),
            reduce=_numbers("--reduce", reduce),
        )
        found = _search(order, costs, in_flight, time_limit, exact) if search else None
        if found is not None:
            order = found.schedule
        timeline = run_simulation(order, costs)
        console = stdout()
        chart = gantt(timeline, console.width if width is None else width) if not (text or as_json) else None
        if plot is not None:
            title = f"{order.name}, {order.ranks} ranks, {order.micro_batches} micro-batches"
            save_picture(plot, draw_gantt(timeline, title))
    by_the_book = schedule_file is None and not search and {o.partition("=")[0] for o in option or ()} <= _NOT_ITS_ORDER
    theory = _theory(order, costs) if by_the_book else None
    if text:
        typer.echo(order.to_text(), nl=False)
    elif as_json:
        print_json({**_as_data(order, timeline, theory), **_search_as_data(found)})
    else:
        console.print(
            f"{order.name}: {order.ranks} ranks, {order.micro_batches} micro-batches, {order.actions} actions\n"
        )
        console.print(chart, crop=False)
        _print_summary(console, timeline, theory)
        if found is not None:
            _print_search(console, found)


def _search(order: Schedule, costs: Costs, in_flight: str | None, time_limit: float | None, exact: bool) -> Found:
    """What a search finds with the placement and the micro-batches of `order`.

    Raises:
        ValueError: `order` recomputes, the limits are too tight, or what --exact needs is not installed.
    """
    if any(action.kind == RECOMPUTE for row in order.rows for action in row):
        raise ValueError("--search recomputes nothing: leave --recompute out")
    if order.segments > 1 or order.asynchronous:
        raise ValueError(f"--search cannot better {order.name}: it cuts no sequences and updates at the end of a step")
    memory = None
    if in_flight is not None:
        try:
            limits = [int(part) for part in in_flight.split(",")]
        except ValueError:
            raise ValueError(f"--in-flight {in_flight}: write one whole number, or one per rank") from None
        memory = InFlight(limits if len(limits) > 1 else limits[0])
    micro_batches = order.micro_batches
    try:
        return run_search(
            costs, order.placement, micro_batches=micro_batches, memory=memory, time_limit=time_limit, exact=exact
        )
    except ImportError as missing:
        raise ValueError(str(missing)) from missing


def _numbers(option: str, text: str) -> Any:
    """Read `1`, `0.5`, `1/3` or `1,2,3`, without rounding.

    Raises:
        ValueError: it is none of these, or negative; the message names `option`.
    """
    found = []
    for part in text.split(","):
        try:
            value = _fraction(part.strip())
        except (ValueError, ZeroDivisionError):
            raise ValueError(f"{option} {text}: {part!r} is not a number; write {_PER_STAGE}") from None
        except OverflowError:
            raise ValueError(f"{option} {text}: {part!r} is out of all range; write {_PER_STAGE}") from None
        if value < 0:
            raise ValueError(f"{option} {text}: a cost cannot be negative")
        found.append(value.numerator if value.denominator == 1 else value)
    return found if len(found) > 1 else found[0]


def _fraction(text: str) -> Fraction:
    """Exactly; but the digits of an exponent are not written out before it is known that they can be.

    Raises:
        ValueError, ZeroDivisionError: it is no number.
        OverflowError: it is none that anything could take.
    """
    exponent = _EXPONENT.search(text)
    if exponent is not None and len(exponent[1]) > 2:
        raise OverflowError
    value = Fraction(text)
    if value > _MOST:
        raise OverflowError
    return value


def _backward(whole: str | None, inputs: str | None, weights: str | None) -> dict[str, Any]:
    """The two parts of the backward; a whole B counts as two equal halves.

    Raises:
        ValueError: both the whole and its parts are given, or one part without the other.
    """
    if inputs is None and weights is None:
        cost = _numbers("--backward", "2" if whole is None else whole)
        half = [Fraction(c) / 2 for c in cost] if isinstance(cost, list) else Fraction(cost) / 2
        return {"backward_input": half, "backward_weight": half}
    if whole is not None:
        raise ValueError("--backward is the sum of --backward-input and --backward-weight: give it, or those two")
    if inputs is None or weights is None:
        absent = "--backward-input" if inputs is None else "--backward-weight"
        raise ValueError(f"{absent} is missing: a backward costs its two parts together, so give both, or --backward")
    return {
        "backward_input": _numbers("--backward-input", inputs),
        "backward_weight": _numbers("--backward-weight", weights),
    }


def _theory(schedule: Schedule, costs: Costs) -> ClosedForm | None:
    """The closed form where it applies: equal stages, transfers that take no time, no recompute."""
    per_stage = costs.per_stage(schedule.stages)
    forward, backward = set(per_stage["F"]), set(per_stage["B"])
    if len(forward) > 1 or len(backward) > 1 or any(costs.per_hop(schedule.stages)) or costs.bandwidth is not None:
        return None
    if any(per_stage["U"]) or costs.reduce:
        return None
    if any(action.kind == RECOMPUTE for row in schedule.rows for action in row):
        return None
    f, b = forward.pop(), backward.pop()
    if not f + b:
        return None
    weight = per_stage["W"][0] if len(set(per_stage["W"])) == 1 else None
    return closed_form(
        schedule.name,
        schedule.ranks,
        schedule.micro_batches,
        f,
        b,
        weight=weight,
        stages_per_rank=schedule.stages // schedule.ranks,
        segments=schedule.segments,
    )


def _as_data(schedule: Schedule, timeline: Timeline, theory: ClosedForm | None) -> dict[str, object]:
    return {
        "schedule": schedule.name,
        "ranks": schedule.ranks,
        "micro_batches": schedule.micro_batches,
        "makespan": timeline.makespan,
        "bubble_fraction": timeline.bubble_fraction,
        "peak_in_flight": timeline.peak_in_flight,
        "busy": timeline.busy,
        "closed_form": None if theory is None else asdict(theory),
        "spans": timeline.as_data(),
    }


def _search_as_data(found: Found | None) -> dict[str, object]:
    if found is None:
        return {}
    names = ("lower_bound", "gap", "proven", "seconds", "how")
    return {"search": {name: getattr(found, name) for name in names}}


def _print_search(console: Console, found: Found) -> None:
    gap = "none: this is the optimum" if found.proven else percent(found.gap)
    console.print(f"\nlower bound {seconds(found.lower_bound)}, gap {gap}")
    console.print(f"found in {seconds(found.seconds)}: {found.how}", soft_wrap=True)


def _print_summary(console: Console, timeline: Timeline, theory: ClosedForm | None) -> None:
    columns = ["", "simulated"]
    rows = [
        ["makespan", seconds(timeline.makespan)],
        ["bubble fraction", percent(timeline.bubble_fraction)],
        ["peak in flight", in_words(timeline.peak_in_flight)],
    ]
    if theory is not None:
        columns += ["closed form", "formula"]
        values = (seconds(theory.makespan), percent(theory.bubble_fraction), in_words(theory.peak_in_flight))
        rows = [[*row, value, formula] for row, value, formula in zip(rows, values, theory.formulas, strict=True)]
    console.print()
    console.print(table(columns, rows))
    console.print()
    console.print(ranks_table(timeline))
