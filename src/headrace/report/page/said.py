"""What a report says in tables and sentences, as HTML."""

from collections.abc import Iterator
from itertools import accumulate
from typing import Final

from headrace.costs import Seconds
from headrace.layer_costs import stage_sums
from headrace.planner.plan import Plan
from headrace.report.explain import HEAD, Explanation, differences_rows, in_a_sentence
from headrace.report.page.html import paragraph, settings, table
from headrace.report.page.run import Run
from headrace.report.tables import first_to_last
from headrace.schedule.actions import BACKWARD, BACKWARD_INPUT, BACKWARD_WEIGHT, FORWARD, Kind
from headrace.simulate.measured import as_it_ran, seconds_of
from headrace.timeline import Timeline
from headrace.units import seconds, size

_NOT_ASKED: Final = ("version", "grid")
_SPELLED: Final = {"micro_batches": "micro-batches", "warm_up": "warm-up"}


def in_one_line(run: Run) -> str:
    """What was run, where, and with what."""
    asked, profile = run.config, run.profile
    model = f"GPT of {asked['layers']} blocks, width {asked['dim']}" if {"layers", "dim"} <= asked.keys() else ""
    rows = f"batches of {profile.batch} rows" + (f" × {asked['sequence']} bytes" if "sequence" in asked else "")
    devices = ", ".join(dict.fromkeys(profile.devices))
    made = f"headrace {profile.headrace}, torch {profile.torch}, on {devices}"
    return " · ".join(filter(None, (f"run {run.name}", model, rows, made)))


def differences_said(explanation: Explanation) -> Iterator[str]:
    """From predicted to measured, part by part."""
    yield paragraph(f"{in_a_sentence(explanation)}.".capitalize())
    rows = differences_rows(explanation)
    if rows:
        yield table(HEAD, rows, "Actions that move the step by a hundredth or more, each alone")


def cut_table(run: Run) -> str:
    """Each stage's ranks, layers, parameters and seconds."""
    profile, schedule = run.profile, run.profile.schedule
    predicted, measured = _per_stage(run, run.predicted), _per_stage(run, run.measured)
    weights = stage_sums(profile.layers.parameters, profile.cut)
    ends = list(accumulate(profile.cut))
    rows = []
    for stage, count in enumerate(profile.cut):
        names = profile.layers.names[ends[stage] - count : ends[stage]]
        ranks = ", ".join(map(str, schedule.placement.replicas_of(stage)))
        times = [_seconds(which[stage][i]) for i in (0, 1) for which in (predicted, measured)]
        rows.append((stage, ranks, f"{count}: {first_to_last(names)}", size(weights[stage]), *times))
    head = ("stage", "rank", "layers", "parameters", "forward predicted", "measured", "backward predicted", "measured")
    return table(head, rows, words=(2,))


def alternatives_said(run: Run) -> Iterator[str]:
    """What a plan chose over, and what planning again would gain."""
    if run.plan is not None:
        yield paragraph("The run followed a plan.")
        yield _alternatives(run.plan, "What the plan chose over")
    if isinstance(run.again, str):
        yield paragraph(run.again)
        return
    yield paragraph(f"With the costs that the step has shown: {run.again}.")
    yield _alternatives(run.again.plan, "What planning again chooses over")
    yield paragraph(
        "headrace plan --from RUN_DIR -o plan.json, RUN_DIR being the folder of this run, writes that plan, and "
        "headrace train --plan plan.json runs it; --micro-batches, --memory and --schedules give more to choose from.",
        "note",
    )


def asked_for(run: Run) -> str:
    """The configuration."""
    asked = ((name, value) for name, value in run.config.items() if name not in _NOT_ASKED)
    return settings((_SPELLED.get(name, name.replace("_", " ")), _value(value)) for name, value in asked)


def _alternatives(plan: Plan, caption: str) -> str:
    promised = plan.predicted
    chosen = (
        f"{plan.schedule.name} with m={plan.micro_batches}",
        seconds(promised.step_seconds),
        size(max(promised.peak_bytes, default=0)),
        "the plan",
    )
    others = [
        (
            other.schedule,
            "does not fit" if other.step_seconds is None else seconds(other.step_seconds),
            "–" if other.peak_bytes is None else size(other.peak_bytes),
            other.reason,
        )
        for other in plan.alternatives
    ]
    return table(("schedule", "step", "memory", "why not"), [chosen, *others], caption, words=(0, 3))


def _per_stage(run: Run, timeline: Timeline) -> list[tuple[Seconds | None, Seconds | None]]:
    """Forward and whole backward of each stage."""
    found = seconds_of(as_it_ran(run.profile.schedule, timeline)[1])
    return [(found.get((stage, FORWARD)), _backward(found, stage)) for stage in range(run.profile.schedule.stages)]


def _backward(found: dict[tuple[int, Kind], Seconds], stage: int) -> Seconds | None:
    whole = found.get((stage, BACKWARD))
    if whole is not None or (stage, BACKWARD_INPUT) not in found:
        return whole
    return found[stage, BACKWARD_INPUT] + found.get((stage, BACKWARD_WEIGHT), 0)


def _seconds(value: Seconds | None) -> str:
    return "–" if value is None else seconds(value)


def _value(value: object) -> str:
    return "–" if value is None else ", ".join(map(str, value)) if isinstance(value, list) else str(value)
