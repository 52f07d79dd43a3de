"""Folders as `headrace train` leaves them, made from simulated steps, so that pages can be tested without training."""

import json
import random
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from headrace.costs import Costs
from headrace.layer_costs import LayerCosts
from headrace.planner.plan import Plan
from headrace.planner.run_profile import RunProfile
from headrace.planner.run_timelines import RunTimelines
from headrace.report.explain import explain
from headrace.schedule.schedule import Schedule
from headrace.simulate import simulate
from headrace.timeline import Timeline, Track


def layers(count: int, names: str = "layer") -> LayerCosts:
    """Layers that differ a little, of some milliseconds and mebibytes each."""
    some = tuple(1 + 0.1 * (i % 3) for i in range(count))

    def times(unit: float) -> tuple[float, ...]:
        return tuple(unit * each for each in some)

    return LayerCosts(
        names=tuple(f"{names}{i}" for i in range(count)),
        rows=4,
        forward=times(2e-3),
        backward_input=times(2.2e-3),
        backward_weight=times(1.8e-3),
        parameters=times(2**20),
        trained=times(3 * 2**20),
        activations=times(2**19),
        for_weight=times(2**18),
        output=times(2**16),
        transient=times(0),
    )


def shaken(timeline: Timeline, seed: int = 0) -> Timeline:
    """As a measured step is: nothing is exact, and between two actions goes a little time."""
    rng = random.Random(seed)
    tracks = []
    for track in timeline.tracks:
        late = 1e-5
        ends = [late + end * 1.05 - rng.random() * 0.02 * (end - start) for _, start, end in zip(*track, strict=True)]
        starts = [late + start * 1.05 for start in track.starts]
        tracks.append(Track(track.actions, starts, ends))
    return Timeline.from_tracks(tracks)


def leave(
    folder: Path,
    schedule: Schedule,
    *,
    names: str = "layer",
    config: Mapping[str, Any] | None = None,
    plan: Plan | None = None,
    layers_per_stage: int = 2,
) -> Path:
    """Write the files of a run of `schedule` into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    cut = (layers_per_stage,) * schedule.stages
    profile = RunProfile(layers(sum(cut), names), 4 * schedule.micro_batches, schedule, cut, "f", ("cpu",))
    costs = profile.layers.of_segment(schedule.segments).stage_costs(cut)
    predicted = simulate(schedule, replace(costs, update=1e-3 if schedule.asynchronous else 0))
    measured = shaken(simulate(schedule, _slower(costs, schedule)))
    steps = [{"step": i, "loss": 5.5 / i, "seconds": 1.1 * measured.makespan} for i in range(1, 21)]
    steps[-1]["held_out_loss"] = 0.3
    found = explain(schedule, costs, measured)
    files = {
        "config.json": json.dumps({"version": 1, "layers": 6, "dim": 128, "sequence": 128, **(config or {})}),
        "metrics.jsonl": "\n".join(map(json.dumps, steps)),
        "timeline.json": RunTimelines(schedule.name, predicted, measured).to_json(),
        "profile.json": profile.to_json(),
        "explain.json": json.dumps(found.as_data()),
        **({} if plan is None else {"plan.json": plan.to_json()}),
    }
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def _slower(costs: Costs, schedule: Schedule) -> Costs:
    return replace(
        costs,
        forward=[1.2 * each for each in costs.per_stage(schedule.stages)["F"]],
        transfer=5e-4,
        update=1e-3 if schedule.asynchronous else 0,
    )
