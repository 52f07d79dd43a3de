"""What a run leaves behind for the next plan: `profile.json`, read as strictly as a plan.

    {
      "version": 4,
      "model": {"fingerprint": "…"},
      "made_with": {"headrace": "0.1.0", "torch": "2.13.0", "devices": ["cpu", "cpu"]},
      "batch": 16, "ranks": 2, "micro_batches": 4,
      "schedule": {"name": "1f1b", "grid": "0F0,…"},
      "cut": [4, 4],
      "recomputed_layers": ["block2"],                one by one; stages that do as a whole have R in the grid
      "link": {"latency": …, "bandwidth": null},      null where it was not measured
      "layers": {"names": ["embedding", …], "rows": 4, "forward": […], …}
    }

A step of the run is in `timeline.json`: see `headrace.planner.run_timelines`.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from headrace.costs import Costs, Number, Seconds
from headrace.files import read_json
from headrace.layer_costs import LayerCosts
from headrace.planner.build_plan import version_of
from headrace.planner.run_timelines import TIMELINES_VERSION, RunTimelines, timelines_from
from headrace.planner.strict import typed
from headrace.schedule.check import check
from headrace.schedule.numbers import at_least
from headrace.schedule.schedule import Schedule
from headrace.schedule.text import parse
from headrace.timeline import Timeline

VERSION: Final = 4
PROFILE: Final = "profile.json"
TIMELINE: Final = "timeline.json"
METRICS: Final = "metrics.jsonl"

T = TypeVar("T")


@dataclass(frozen=True)
class Link:
    """Between two ranks.

    Attributes:
        latency: seconds of a message.
        bandwidth: bytes per second beyond that; None if only latency counts.
    """

    latency: Seconds
    bandwidth: Number | None = None


@dataclass(frozen=True)
class RunProfile:
    """A run, as a planner sees it.

    Attributes:
        layers: their costs for one micro-batch, as they were profiled before the first step.
        batch: rows of a mini-batch.
        schedule, cut, recomputed_layers: of the run, as of its last step; the layers are those that recompute one by
            one.
        fingerprint: of the model.
        devices: of the ranks.
        link: None where it was not measured.
        headrace, torch: versions that it was made with.

    Raises:
        ValueError: the cut does not fit the layers or the schedule, a layer is unknown, or there is no row or no
            device.
    """

    layers: LayerCosts
    batch: int
    schedule: Schedule
    cut: tuple[int, ...]
    fingerprint: str
    devices: tuple[str, ...]
    link: Link | None = None
    recomputed_layers: tuple[str, ...] = ()
    headrace: str = version_of("headrace")
    torch: str = version_of("torch")

    def __post_init__(self) -> None:
        at_least(1, batch=self.batch)
        if not self.devices:
            raise ValueError("devices is empty: name that of each rank")
        if len(self.cut) != self.schedule.stages:
            raise ValueError(f"cut has {len(self.cut)} stages, but the grid of schedule has {self.schedule.stages}")
        self.layers.stage_costs(self.cut)  # refuses what does not fit
        self.layers.numbers(self.recomputed_layers)

    @property
    def costs(self) -> Costs:
        """Of the stages, as profiled."""
        layers = self.layers.of_segment(self.schedule.segments)
        return layers.stage_costs(self.cut, layers.numbers(self.recomputed_layers))

    @property
    def micro_batches(self) -> int:
        """m, sequences whole."""
        return self.schedule.micro_batches // self.schedule.segments

    def to_json(self) -> str:
        """The file's text."""
        link = None if self.link is None else {"latency": self.link.latency, "bandwidth": self.link.bandwidth}
        data = {
            "version": VERSION,
            "model": {"fingerprint": self.fingerprint},
            "made_with": {"headrace": self.headrace, "torch": self.torch, "devices": self.devices},
            "batch": self.batch,
            "ranks": self.schedule.ranks,
            "micro_batches": self.micro_batches,
            "schedule": {"name": self.schedule.name, "grid": self.schedule.to_text()},
            "cut": self.cut,
            "recomputed_layers": self.recomputed_layers,
            "link": link,
            "layers": self.layers.as_data(),
        }
        return json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False)


def read_run(folder: Path) -> tuple[RunProfile, Timeline]:
    """The profile of a finished run, and one of its steps.

    Raises:
        ValueError: the folder holds no finished run, or one of another version; the message names file and key.
        InvalidSchedule: its schedule is refuted.
    """
    return _read(folder, PROFILE, _profile), read_timelines(folder).measured


def read_timelines(folder: Path) -> RunTimelines:
    """A step of a finished run, predicted and measured.

    Raises:
        ValueError: the folder holds no finished run, or one of another version; the message names file and key.
    """
    return _read(folder, TIMELINE, _timelines)


def _read(folder: Path, name: str, made_of: Callable[[Any], T]) -> T:
    path = folder / name
    try:
        data = read_json(path)
    except OSError as error:
        if (folder / METRICS).exists():
            raise ValueError(
                f"{folder} holds no finished run: {name} cannot be read ({error.strerror}). The run in it did not end: "
                "train again"
            ) from None
        raise ValueError(
            f"{folder} holds no finished run: {name} cannot be read ({error.strerror}). Make one with "
            f"headrace train --out {folder}"
        ) from None
    try:
        return made_of(data)
    except ValueError as error:
        raise type(error)(f"{path}: {error}") from None


def _profile(data: Any) -> RunProfile:
    _refuse_other_than(VERSION, data)
    read = typed(data, _SHAPE, "the profile")
    schedule = parse(read["schedule"]["grid"], name=read["schedule"]["name"])
    check(schedule)
    profile = RunProfile(
        layers=read["layers"],
        batch=read["batch"],
        schedule=schedule,
        cut=read["cut"],
        recomputed_layers=read["recomputed_layers"],
        fingerprint=read["model"]["fingerprint"],
        devices=read["made_with"]["devices"],
        link=read["link"],
        headrace=read["made_with"]["headrace"],
        torch=read["made_with"]["torch"],
    )
    for key, found in (("ranks", schedule.ranks), ("micro_batches", profile.micro_batches)):
        if data[key] != found:
            raise ValueError(f"{key} is {data[key]}, but the grid of schedule is for {found}")
    return profile


_SHAPE: Final = {
    "version": int,
    "model": {"fingerprint": str},
    "made_with": {"headrace": str, "torch": str, "devices": tuple[str, ...]},
    "batch": int,
    "ranks": int,
    "micro_batches": int,
    "schedule": {"name": str, "grid": str},
    "cut": tuple[int, ...],
    "recomputed_layers": tuple[str, ...],
    "link": Link | None,
    "layers": LayerCosts,
}


def _timelines(data: Any) -> RunTimelines:
    _refuse_other_than(TIMELINES_VERSION, data)
    return timelines_from(data)


def _refuse_other_than(known: int, data: Any) -> None:
    version = data.get("version") if isinstance(data, dict) else None
    if version != known:
        raise ValueError(f"version is {version!r}, but this headrace reads runs of version {known}: train again")
