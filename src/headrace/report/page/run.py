"""All that a page says of a run, read from its folder.

config.json    what was asked for          plan.json     the plan that it followed, if there was one
metrics.jsonl  a line per step             timeline.json, profile.json, explain.json: one step, and why
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import nan
from pathlib import Path
from statistics import median
from typing import Any, Final

from headrace.costs import Bytes, Memory, Seconds
from headrace.files import read_json, read_text
from headrace.layer_costs import stage_sums
from headrace.planner.plan import Plan, read_plan
from headrace.planner.replan import Replanned, replan
from headrace.planner.run_profile import METRICS, RunProfile, read_run, read_timelines
from headrace.planner.strict import typed
from headrace.report.explain import Explanation
from headrace.simulate.measured import as_it_ran, latency_of
from headrace.timeline import Timeline

CONFIG: Final = "config.json"
EXPLANATION: Final = "explain.json"
PLAN: Final = "plan.json"


@dataclass(frozen=True)
class StepLine:
    """What a page needs of a line of metrics.jsonl: losses in nats per byte, seconds of the whole step.

    A loss that is not finite is NaN.
    """

    step: int
    loss: float
    seconds: Seconds
    held_out_loss: float | None = None


@dataclass(frozen=True)
class Run:
    """A finished run.

    Attributes:
        name: of its folder.
        config: what it was asked for, as in config.json.
        profile: of its layers, its schedule and its cut, as of the last step.
        predicted, measured: one step, as the costs promised it and as it was.
        steps: all of them.
        explanation: why the two timelines differ.
        plan: that it followed; None if it had none.
        again: what planning again with the measured costs comes to, or why that cannot be said.
    """

    name: str
    config: Mapping[str, Any]
    profile: RunProfile
    predicted: Timeline
    measured: Timeline
    steps: tuple[StepLine, ...]
    explanation: Explanation
    plan: Plan | None
    again: Replanned | str

    @property
    def latency(self) -> Seconds:
        """The median of what messages took in the measured step."""
        return latency_of(*as_it_ran(self.profile.schedule, self.measured))

    @property
    def whole_step(self) -> Seconds | None:
        """The median of whole steps, update included, of those that ran the last schedule; None if none is known."""
        first = self.config.get("replan_after") or 0
        found = [line.seconds for line in self.steps if line.step > first]
        return median(found) if found else None

    @property
    def limits(self) -> tuple[Bytes, ...] | None:
        """Bytes that each rank can hold, if the plan knew."""
        return None if self.plan is None else self.plan.memory

    @property
    def memory(self) -> Memory:
        """What the stages hold, from the bytes of the profiled layers."""
        run = self.profile
        return replace(run.costs.memory, version=stage_sums(run.layers.parameters, run.cut))


def read(folder: Path) -> Run:
    """The run in `folder`, and what planning it again would gain.

    Raises:
        ValueError: it holds no finished run, or one of another version; the message names file and key.
    """
    profile, measured = read_run(folder)
    plan = read_plan(folder / PLAN) if (folder / PLAN).exists() else None
    return Run(
        name=folder.resolve().name,
        config=_config(folder / CONFIG),
        profile=profile,
        predicted=read_timelines(folder).predicted,
        measured=measured,
        steps=_steps(folder / METRICS),
        explanation=_explanation(folder / EXPLANATION),
        plan=plan,
        again=planned_again(profile, measured, None if plan is None else plan.memory),
    )


def planned_again(profile: RunProfile, measured: Timeline, memory: tuple[Bytes, ...] | None) -> Replanned | str:
    """What planning again comes to; a sentence where there is nothing to plan."""
    if profile.schedule.asynchronous:
        return f"{profile.schedule.name} updates its weights within the step; plans are for steps that do not."
    try:
        return replan(profile, measured, memory=memory)
    except ValueError as reason:
        return f"Nothing could be planned: {reason}."


def _steps(path: Path) -> tuple[StepLine, ...]:
    found = []
    for number, line in enumerate(_text(path).splitlines(), 1):
        try:
            data = json.loads(line)
            taken = typed(data["seconds"], float, "seconds")
            held_out = _loss(data["held_out_loss"]) if "held_out_loss" in data else None
            found.append(StepLine(typed(data["step"], int, "step"), _loss(data["loss"]), taken, held_out))
        except (RecursionError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{path}, line {number}, is not what headrace train writes: {error!r}") from None
    return tuple(found)


def _loss(number: Any) -> float:
    return nan if number is None else float(number)


def _explanation(path: Path) -> Explanation:
    data = _object(path)
    try:
        return Explanation.from_data(data)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def _config(path: Path) -> dict[str, Any]:
    """What was asked for; what the page reckons with are numbers."""
    data = _object(path)
    for name in ("layers", "dim", "sequence", "replan_after"):
        typed(data.get(name), int | None, f"{path}: {name}")
    return {
        name: value for name, value in data.items() if value is not None or name not in ("layers", "dim", "sequence")
    }


def _object(path: Path) -> dict[str, Any]:
    try:
        data = read_json(path)
    except OSError as error:
        raise _unfinished(path, error) from None
    if not isinstance(data, dict):
        raise ValueError(f"{path} is not what headrace train writes: it holds no object")
    return data


def _text(path: Path) -> str:
    try:
        return read_text(path)
    except OSError as error:
        raise _unfinished(path, error) from None


def _unfinished(path: Path, error: OSError) -> ValueError:
    return ValueError(f"{path.parent} holds no finished run: {path.name} cannot be read ({error.strerror})")
