"""The report of a run: which sections it has, and what is drawn in them."""

from collections.abc import Iterator
from math import isfinite
from pathlib import Path
from typing import Any, Final

from headrace.planner.replan import Replanned
from headrace.report.breakdown import breakdown
from headrace.report.page.charts import breakdown_group, curve_line, gantt_chart, memory_chart
from headrace.report.page.html import Fact, facts, paragraph
from headrace.report.page.page import asset, page, section
from headrace.report.page.run import Run, read
from headrace.report.page.said import (
    alternatives_said,
    asked_for,
    cut_table,
    differences_said,
    in_one_line,
)
from headrace.schedule.actions import UPDATE
from headrace.simulate.critical_path import waits
from headrace.units import percent, seconds, size

REPORT: Final = "report.html"
"""What the report of a run is called in its folder."""


def write_report(folder: Path, path: Path | None = None) -> Path:
    """Write the report of the run in `folder` to `path`, or into the folder; returns where it is.

    Raises:
        ValueError: the folder holds no finished run, or one of another version.
        OSError: it cannot be written.
    """
    path = folder / REPORT if path is None else path
    path.write_text(run_page(read(folder)), encoding="utf-8")
    return path


def run_page(run: Run) -> str:
    """The HTML file about `run`."""
    schedule = run.profile.schedule
    numbers = f"{schedule.ranks} ranks, {run.profile.micro_batches} micro-batches"
    data = _data(run)
    return page(
        title=f"{schedule.name}: {numbers}",
        lead=paragraph(in_one_line(run), "lead") + facts(_facts(run, data)),
        sections=_sections(run),
        data=data,
        scripts=[asset("report.js")],
        footer=paragraph("Made by headrace report. This file needs nothing else, and no network."),
    )


def _data(run: Run) -> dict[str, Any]:
    """What the scripts draw; the names are those of the sections."""
    schedule = run.profile.schedule
    steps = (("predicted", run.predicted, 0.0), ("measured", run.measured, run.latency))
    waited = {name: waits(timeline, schedule, slack) for name, timeline, slack in steps}
    charts = [gantt_chart(name, timeline, schedule, waited[name]) for name, timeline, _ in steps]
    parts = {name: breakdown(timeline, waited[name]) for name, timeline, _ in steps}
    whole = run.whole_step
    if whole is not None and not schedule.asynchronous:
        for of_rank in parts["measured"]:
            of_rank["optimizer"] += max(0.0, whole - run.measured.makespan)
    losses = [(line.step, line.loss) for line in run.steps if isfinite(line.loss)]
    held_out = [
        (s.step, s.held_out_loss) for s in run.steps if s.held_out_loss is not None and isfinite(s.held_out_loss)
    ]
    lines = [curve_line("trained", losses), *([curve_line("held out", held_out)] if held_out else [])]
    return {
        "timeline": {"charts": charts},
        "breakdown": {"groups": [breakdown_group(name, of_ranks) for name, of_ranks in parts.items()]},
        "memory": memory_chart(run.measured, schedule, run.memory, run.limits),
        "loss": {"x": "step", "y": "loss in nats per byte", "lines": lines},
    }


def _facts(run: Run, data: dict[str, Any]) -> Iterator[Fact]:
    found = run.explanation
    yield Fact("pipeline step", seconds(found.measured), f"predicted {seconds(found.predicted)}")
    yield Fact("bubble", percent(found.measured_bubble), f"predicted {percent(found.predicted_bubble)}")
    whole = run.whole_step
    if whole:
        rows = run.profile.batch * run.config.get("sequence", 1)
        what = "tokens" if "sequence" in run.config else "rows"
        yield Fact("throughput", f"{rows / whole:,.0f}", f"{what} per second, {seconds(whole)} in the median step")
    if run.steps:
        yield Fact("loss", f"{run.steps[-1].loss:.3f}", f"from {run.steps[0].loss:.3f} in {len(run.steps):,} steps")
    ranks = data["memory"]["ranks"]
    most = max(now for rank in ranks for _, now in rank["points"])
    limits = run.limits
    beside = "on the fullest rank" if limits is None else f"on the fullest rank, of {size(min(limits))}"
    yield Fact("memory, computed", size(most), beside)
    if isinstance(run.again, Replanned):
        gains = run.again.worth_it
        yield Fact(
            "re-planning gains",
            percent(run.again.gain) if gains else "nothing",
            f"with {run.again.plan.schedule.name}" if gains else "the best that is known",
        )


def _sections(run: Run) -> Iterator[str]:
    steps = "One step as the costs promised it, and as it was."
    yield section("timeline", "Timeline", paragraph(steps, "note"), paragraph(KEYS, "note hint"))
    yield section("breakdown", "Where the time went", paragraph(_of_breakdown(run), "note"))
    yield section("differences", "Why it differs from the prediction", *differences_said(run.explanation))
    yield section("memory", "Memory over the measured step", paragraph(_of_memory(run), "note"))
    yield section("cut", "The cut", paragraph(OF_CUT, "note"), cut_table(run))
    yield section("loss", "Loss", *_of_loss(run))
    yield section("alternatives", "What else could be run", *alternatives_said(run))
    yield section("asked", "What was asked for", asked_for(run))


KEYS = "Scroll, pinch or press + and − to zoom, drag to move; point at an action, or step there with the arrow keys."
OF_CUT = "Seconds of one micro-batch, the median of the step; a backward is the sum of its halves where it is split."


def _of_breakdown(run: Run) -> str:
    words = "A rank waits for a message if it stands idle before an action that needs one; other gaps are idle."
    if any(action.kind == UPDATE for track in run.measured.tracks for action in track.actions):
        return words
    return f"{words} Optimizer is what the median whole step takes beyond the pipeline: clipping and the update."


def _of_loss(run: Run) -> Iterator[str]:
    lost = [line.step for line in run.steps if not isfinite(line.loss)]
    if lost:
        yield paragraph(
            f"Of {len(lost)} of {len(run.steps)} steps, the first of them {lost[0]}, the loss is not finite."
        )


def _of_memory(run: Run) -> str:
    words = (
        "Parameters, gradients, optimizer state and saved activations, computed from the bytes of the profiled layers."
    )
    return words if run.limits else f"{words} No limit is known: headrace plan --memory makes a plan that has one."
