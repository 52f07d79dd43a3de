"""A plan is data: a versioned, human-readable JSON file. Unknown keys are refused, so that nothing is silently ignored.

    {
      "version": 4,
      "model": {"fingerprint": "…", "layers": ["embedding", "block0", …]},
      "made_with": {"headrace": "0.1.0", "torch": "2.13.0", "devices": ["cpu", "cpu"]},
      "batch": 16, "ranks": 2, "replicas": 1, "micro_batches": 4,
      "memory": [6442450944, 6442450944],             bytes that each rank can hold; null without a limit
      "schedule": {"name": "1f1b", "grid": "0F0,…"},
      "cut": [["embedding", "block0"], ["block1", "head"]],
      "recomputes": {"stages": [0], "layers": ["block2"]},     as a whole, and one by one
      "predicted": {"step_seconds": …, "lower_bound": …, "bubble_fraction": …, "peak_bytes": […], "stages": {…}},
      "alternatives": [{"schedule": "zb-h1", "micro_batches": 4, "step_seconds": …, "reason": "…"}]
    }

`cut` names layers as the unsplit model's parameter names begin, so it stays readable and can be used elsewhere.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from headrace.costs import Bytes, Seconds, spread
from headrace.files import read_json
from headrace.layer_costs import whole
from headrace.planner.strict import typed
from headrace.schedule.actions import RECOMPUTE
from headrace.schedule.check import check
from headrace.schedule.numbers import at_least
from headrace.schedule.schedule import Schedule
from headrace.schedule.text import parse
from headrace.spelling import meant
from headrace.units import percent, seconds

VERSION: Final = 4


@dataclass(frozen=True)
class Predicted:
    """What a plan promises.

    Attributes:
        step_seconds: of a whole step.
        lower_bound: no step of this batch on these ranks is shorter.
        bubble_fraction: idle time of the ranks.
        peak_bytes: of each rank.
        forward, backward, backward_input, backward_weight: seconds of each stage for one micro-batch.
        spread: seconds between the first and the third quartile of what each stage's forward and backward took when its
            layers were measured, as if all of them were slow at once; 0 of what was computed.
    """

    step_seconds: Seconds
    lower_bound: Seconds
    bubble_fraction: float
    peak_bytes: tuple[Bytes, ...]
    forward: tuple[Seconds, ...]
    backward: tuple[Seconds, ...]
    backward_input: tuple[Seconds, ...]
    backward_weight: tuple[Seconds, ...]
    spread: tuple[Seconds, ...]

    @property
    def gap(self) -> float:
        """(step − lower bound) ÷ step."""
        return (self.step_seconds - self.lower_bound) / self.step_seconds if self.step_seconds else 0.0

    def __str__(self) -> str:
        above = f"{percent(self.gap)} of it above the lower bound of {seconds(self.lower_bound)}"
        return f"step {seconds(self.step_seconds)}, {above}"


@dataclass(frozen=True)
class Alternative:
    """What was not chosen, and why.

    Attributes:
        schedule: its name, with options.
        micro_batches, replicas: of it.
        step_seconds: predicted; None if it does not fit.
        peak_bytes: the most that a rank would hold; None if it was not computed.
        reason: in words.
    """

    schedule: str
    micro_batches: int
    replicas: int
    step_seconds: Seconds | None
    peak_bytes: Bytes | None
    reason: str


@dataclass(frozen=True)
class Plan:
    """Everything that a run needs, and what was promised.

    Attributes:
        layers: names of the model's layers.
        fingerprint: of its parameters' names, shapes and dtypes; empty if it was planned from costs alone.
        headrace, torch: versions that it was made with.
        devices: of the ranks of one pipeline.
        batch: rows of a mini-batch, all replicas together.
        replicas: pipelines side by side.
        memory: bytes that each rank of one pipeline can hold; None if nothing limited them.
        schedule: of one pipeline, with its recomputes.
        cut: layers per stage.
        recomputes: the stages that recompute as a whole.
        recomputed_layers: names of the layers that recompute one by one.
        predicted: what it promises.
        alternatives: the best of the others.

    Raises:
        ValueError: its parts do not fit each other.
    """

    layers: tuple[str, ...]
    fingerprint: str
    headrace: str
    torch: str
    devices: tuple[str, ...]
    batch: int
    replicas: int
    memory: tuple[Bytes, ...] | None
    schedule: Schedule
    cut: tuple[int, ...]
    recomputes: tuple[int, ...]
    recomputed_layers: tuple[str, ...]
    predicted: Predicted
    alternatives: tuple[Alternative, ...]

    def __post_init__(self) -> None:
        stages, ranks = self.schedule.stages, self.schedule.ranks
        at_least(1, batch=self.batch, replicas=self.replicas)
        if len(self.cut) != stages:
            raise ValueError(f"cut has {len(self.cut)} stages, but the grid of schedule has {stages}")
        whole(self.cut, len(self.layers))
        again = {action.stage for row in self.schedule.rows for action in row if action.kind == RECOMPUTE}
        if set(self.recomputes) != again:
            raise ValueError(
                f"recomputes names the stages {sorted(self.recomputes)}, but schedule has R of {sorted(again)}"
            )
        self._check_layers()
        promised = self.predicted
        for name in ("forward", "backward", "backward_input", "backward_weight", "spread"):
            spread(f"predicted: {name}", getattr(promised, name), stages, "stages")
        for name, of_ranks in (("memory", self.memory), ("predicted: peak_bytes", promised.peak_bytes)):
            if of_ranks is not None:
                spread(name, of_ranks, ranks, "ranks")

    def _check_layers(self) -> None:
        """Whether those that recompute one by one are there, in order, and not of a stage that does as a whole."""
        stage_of = {name: stage for stage, names in enumerate(self.stages) for name in names}
        single = self.recomputed_layers
        for name in single:
            if name not in stage_of:
                raise ValueError(
                    f"recomputes has the layer {name!r}, which is none of model: {meant(name, self.layers)}"
                )
            if stage_of[name] in self.recomputes:
                raise ValueError(f"recomputes has the layer {name!r} and, as a whole, its stage {stage_of[name]}")
        if single != tuple(name for name in self.layers if name in set(single)):
            raise ValueError("recomputes does not have its layers each once and in the order of model")

    @property
    def ranks(self) -> int:
        """Of one pipeline."""
        return self.schedule.ranks

    @property
    def micro_batches(self) -> int:
        """m, sequences whole."""
        return self.schedule.micro_batches // self.schedule.segments

    @property
    def stages(self) -> tuple[tuple[str, ...], ...]:
        """The names of each stage's layers."""
        rest = iter(self.layers)
        return tuple(tuple(next(rest) for _ in range(count)) for count in self.cut)

    def __str__(self) -> str:
        size = f"{self.ranks} ranks{'' if self.replicas == 1 else f', {self.replicas} replicas'}, batch {self.batch}"
        what = f"{self.schedule.name} with m={self.micro_batches}, cut {', '.join(map(str, self.cut))}"
        named = [*map(str, self.recomputes), *map(repr, self.recomputed_layers)]
        again = f", recompute={{{', '.join(named)}}}" if named else ""
        return f"{size}: {what}{again}; {self.predicted}"

    def to_json(self) -> str:
        """The file's text."""
        return json.dumps(
            {
                "version": VERSION,
                "model": {"fingerprint": self.fingerprint, "layers": self.layers},
                "made_with": {"headrace": self.headrace, "torch": self.torch, "devices": self.devices},
                "batch": self.batch,
                "ranks": self.ranks,
                "replicas": self.replicas,
                "micro_batches": self.micro_batches,
                "memory": self.memory,
                "schedule": {"name": self.schedule.name, "grid": self.schedule.to_text()},
                "cut": self.stages,
                "recomputes": {"stages": self.recomputes, "layers": self.recomputed_layers},
                "predicted": asdict(self.predicted),
                "alternatives": [asdict(other) for other in self.alternatives],
            },
            indent=2,
            ensure_ascii=False,
            allow_nan=False,
        )


def read_plan(path: Path) -> Plan:
    """The plan in a file; its schedule is proven.

    Raises:
        OSError: it cannot be read.
        ValueError: it is no plan of this version; the message names the key.
        InvalidSchedule: its schedule is refuted.
    """
    data = read_json(path)
    try:
        return _plan(data)
    except ValueError as error:
        raise type(error)(f"{path}: {error}") from None


def _plan(data: Any) -> Plan:
    version = data.get("version") if isinstance(data, dict) else None
    if version != VERSION:
        raise ValueError(f"version is {version!r}, but this headrace reads plans of version {VERSION}: plan again")
    read = typed(data, _SHAPE, "the plan")
    named = tuple(name for stage in read["cut"] for name in stage)
    if named != read["model"]["layers"] or len(set(named)) != len(named):
        raise ValueError("cut does not name the layers of model, each once and in order")
    schedule = parse(read["schedule"]["grid"], name=read["schedule"]["name"])
    check(schedule)
    plan = Plan(
        layers=read["model"]["layers"],
        fingerprint=read["model"]["fingerprint"],
        headrace=read["made_with"]["headrace"],
        torch=read["made_with"]["torch"],
        devices=read["made_with"]["devices"],
        batch=read["batch"],
        replicas=read["replicas"],
        memory=read["memory"],
        schedule=schedule,
        cut=tuple(map(len, read["cut"])),
        recomputes=read["recomputes"]["stages"],
        recomputed_layers=read["recomputes"]["layers"],
        predicted=read["predicted"],
        alternatives=read["alternatives"],
    )
    for key, found in (("ranks", plan.ranks), ("micro_batches", plan.micro_batches)):
        if data[key] != found:
            raise ValueError(f"{key} is {data[key]}, but the grid of schedule is for {found}")
    return plan


_SHAPE: Final = {
    "version": int,
    "model": {"fingerprint": str, "layers": tuple[str, ...]},
    "made_with": {"headrace": str, "torch": str, "devices": tuple[str, ...]},
    "batch": int,
    "ranks": int,
    "replicas": int,
    "micro_batches": int,
    "memory": tuple[Bytes, ...] | None,
    "schedule": {"name": str, "grid": str},
    "cut": tuple[tuple[str, ...], ...],
    "recomputes": {"stages": tuple[int, ...], "layers": tuple[str, ...]},
    "predicted": Predicted,
    "alternatives": tuple[Alternative, ...],
}
