"""Writes docs/pictures/report.png and play.png: the report of a simulated run and `headrace play`, as in Chromium.

python docs/make_screenshots.py

The run is made up, so that the picture is the same whenever it is made: four ranks follow a plan, and one of them turns
out slower than it was planned. It needs Playwright, and the Chromium that CHROMIUM or the PATH names.
"""

import os
import random
import shutil
import sys
import tempfile
from dataclasses import replace
from math import exp
from pathlib import Path
from typing import Final

from playwright.sync_api import Browser, ViewportSize, sync_playwright

from headrace.layer_costs import LayerCosts
from headrace.planner import Request, make_plan
from headrace.planner.run_profile import RunProfile
from headrace.report.explain import explain
from headrace.report.page.run import Run, StepLine, planned_again
from headrace.report.page.run_page import run_page
from headrace.report.play import play_page
from headrace.simulate import simulate
from headrace.timeline import Timeline, Track

PICTURES: Final = Path(__file__).parent / "pictures"
REPORT_SIZE: Final[ViewportSize] = {"width": 1180, "height": 1180}
PLAY_SIZE: Final[ViewportSize] = {"width": 1180, "height": 900}
PLAYED: Final = "#schedule=zb-h1&beside=1f1b&heavy=last&factor=1.3&latency=0.1&update=1"
DRAWN: Final = "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
BLOCKS: Final = 14
MIB: Final = 2.0**20


def example() -> Run:
    """A run that never was."""
    layers = _layers()
    request = Request([layers], batch=32, ranks=4, memory=300 * MIB, micro_batches=[8], schedules=["1f1b", "zb-h1"])
    plan = make_plan(request, devices=("cpu",) * 4)
    costs = layers.stage_costs(plan.cut)
    slower = replace(
        costs,
        forward=[each * (1.25 if stage == 2 else 1.06) for stage, each in enumerate(costs.per_stage(4)["F"])],
        transfer=6e-4,
    )
    measured = _shaken(simulate(plan.schedule, slower))
    profile = RunProfile(layers, 32, plan.schedule, plan.cut, "example", plan.devices, torch="2.13.0")
    return Run(
        name="example (simulated)",
        config={"layers": BLOCKS, "dim": 256, "sequence": 128, "batch": 32, "steps": 400, "learning_rate": 2e-3},
        profile=profile,
        predicted=simulate(plan.schedule, costs),
        measured=measured,
        steps=_steps(measured.makespan),
        explanation=explain(plan.schedule, costs, measured),
        plan=plan,
        again=planned_again(profile, measured, plan.memory),
    )


def _layers() -> LayerCosts:
    """An embedding, equal blocks and a head, as of a language model."""
    blocks = [f"block{i}" for i in range(BLOCKS)]

    def times(first: float, each: float, last: float) -> tuple[float, ...]:
        return (first, *[each] * BLOCKS, last)

    return LayerCosts(
        names=("embedding", *blocks, "head"),
        rows=4,
        forward=times(2e-4, 3e-3, 2.4e-3),
        backward_input=times(1e-4, 3.3e-3, 2.5e-3),
        backward_weight=times(4e-4, 2.7e-3, 2.2e-3),
        parameters=times(0.4 * MIB, 3.1 * MIB, 0.3 * MIB),
        trained=times(1.2 * MIB, 9.3 * MIB, 0.9 * MIB),
        activations=times(0.6 * MIB, 7.5 * MIB, 2.1 * MIB),
        for_weight=times(0.1 * MIB, 3.4 * MIB, 1.1 * MIB),
        output=times(0.5 * MIB, 0.5 * MIB, 0.1 * MIB),
        transient=times(0, 0, 0),
    )


def _shaken(timeline: Timeline) -> Timeline:
    """Ends that come a little early: nothing is exact where it is measured."""
    rng = random.Random(7)
    tracks = []
    for track in timeline.tracks:
        ends = [end - rng.random() * 0.06 * (end - start) for _, start, end in zip(*track, strict=True)]
        tracks.append(Track(track.actions, track.starts, ends))
    return Timeline.from_tracks(tracks)


def _steps(seconds: float) -> tuple[StepLine, ...]:
    rng = random.Random(3)
    found = []
    for step in range(1, 401):
        loss = 2.2 + 3.3 * exp(-step / 70)
        held_out = loss + 0.05 if step % 50 == 0 else None
        found.append(StepLine(step, loss + rng.gauss(0, 0.06), 1.07 * seconds, held_out))
    return tuple(found)


def _chromium() -> str:
    names = ("chromium", "chromium-browser", "google-chrome")
    found = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, names)), None)
    if found is None:
        sys.exit("no Chromium here: install the package chromium, or set CHROMIUM to the path of one")
    return found


def _shoot(browser: Browser, html: Path, address: str, size: ViewportSize) -> None:
    """Write what the page `html` looks like, beside the other pictures and under its name."""
    tab = browser.new_context(offline=True, viewport=size, device_scale_factor=1.5).new_page()
    tab.goto(html.as_uri() + address)
    if address:
        tab.wait_for_selector("html[data-ready]")
    tab.evaluate(DRAWN)
    tab.screenshot(path=PICTURES / f"{html.stem}.png")


def main() -> None:
    """Write the pictures."""
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        report, play = Path(folder) / "report.html", Path(folder) / "play.html"
        report.write_text(run_page(example()), encoding="utf-8")
        play.write_text(play_page(), encoding="utf-8")
        browser = playwright.chromium.launch(executable_path=_chromium(), args=["--no-sandbox", "--disable-gpu"])
        _shoot(browser, report, "", REPORT_SIZE)
        _shoot(browser, play, PLAYED, PLAY_SIZE)
        browser.close()


if __name__ == "__main__":
    main()
