"""What a run leaves behind for the next plan: `profile.json`, read as strictly as a plan.

    {
      "version": 2,
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
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final, TypeVar

from headrace.costs import Costs, Number, Seconds
from headrace.layer_costs import LayerCosts
from headrace.planner.build_plan import version_of
from headrace.planner.run_timelines import TIMELINES_VERSION, RunTimelines, timelines_from
from headrace.planner.strict import exactly
from headrace.schedule.check import check
from headrace.schedule.schedule import Schedule
from headrace.schedule.text import parse
from headrace.timeline import Timeline

VERSION: Final = 2
PROFILE: Final = "profile.json"
TIMELINE: Final = "timeline.json"

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
        ValueError: the cut does not fit the layers or the schedule, or a layer is unknown.
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
        return made_of(json.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise ValueError(
            f"{folder} holds no finished run: {name} cannot be read ({error.strerror}). Make one with "
            f"headrace train --out {folder}"
        ) from None
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is not what headrace train writes: {error!r}") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is no JSON: {error}") from None
    except ValueError as error:
        raise type(error)(f"{path}: {error}") from None


def _profile(data: Any) -> RunProfile:
    _refuse_other_than(VERSION, data)
    keys = {"version", "model", "made_with", "batch", "ranks", "micro_batches", "schedule", "cut", "link", "layers"}
    keys.add("recomputed_layers")
    exactly(data, keys, "the profile")
    exactly(data["model"], {"fingerprint"}, "model")
    exactly(data["made_with"], {"headrace", "torch", "devices"}, "made_with")
    exactly(data["schedule"], {"name", "grid"}, "schedule")
    if data["link"] is not None:
        exactly(data["link"], {"latency", "bandwidth"}, "link")
    exactly(data["layers"], {item.name for item in fields(LayerCosts)}, "layers")
    schedule = parse(data["schedule"]["grid"], name=data["schedule"]["name"])
    check(schedule)
    layers: dict[str, Any] = {n: tuple(v) if isinstance(v, list) else v for n, v in data["layers"].items()}
    profile = RunProfile(
        layers=LayerCosts(**layers),
        batch=data["batch"],
        schedule=schedule,
        cut=tuple(data["cut"]),
        fingerprint=data["model"]["fingerprint"],
        devices=tuple(data["made_with"]["devices"]),
        recomputed_layers=tuple(data["recomputed_layers"]),
        link=None if data["link"] is None else Link(**data["link"]),
        headrace=data["made_with"]["headrace"],
        torch=data["made_with"]["torch"],
    )
    for key, found in (("ranks", schedule.ranks), ("micro_batches", profile.micro_batches)):
        if data[key] != found:
            raise ValueError(f"{key} is {data[key]}, but the grid of schedule is for {found}")
    return profile


def _timelines(data: Any) -> RunTimelines:
    _refuse_other_than(TIMELINES_VERSION, data)
    return timelines_from(data)


def _refuse_other_than(known: int, data: Any) -> None:
    version = data.get("version") if isinstance(data, dict) else None
    if version != known:
        raise ValueError(f"version is {version!r}, but this headrace reads runs of version {known}: train again")
