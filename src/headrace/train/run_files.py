"""What a run leaves behind: `config.json`, `metrics.jsonl` (a line per step), and at its end three files more.

JSON knows no NaN: a loss or norm that is not finite is null.

timeline.json   a step, predicted and measured: see `headrace.planner.run_timelines`
profile.json    what `headrace plan --from` needs: see `headrace.planner.run_profile`
explain.json    why the two timelines differ: see `headrace.report.explain`
plan.json       the plan of the last steps, if they followed one: see `headrace.planner.plan`
"""

import json
from collections.abc import Mapping
from dataclasses import asdict
from datetime import date
from pathlib import Path
from typing import Any, Final, TextIO

from headrace.files import as_json
from headrace.planner import read_plan
from headrace.planner.run_profile import METRICS, PROFILE, TIMELINE
from headrace.planner.run_timelines import RunTimelines
from headrace.simulate import transfers
from headrace.timeline import Timeline
from headrace.train.config import TrainConfig
from headrace.train.job import Result, StepRecord

PLAN: Final = "plan.json"
_VERSION: Final = 1


RUNS: Final = Path("runs")
"""Where runs go for which no folder was named."""


class RunFiles:
    """Writes a run's files into a folder of its own; nothing is left of it where the run never began.

    Args:
        folder: made if it is not there; None for a new one in RUNS, named after the day: `runs/2026-11-29-1`.
        config: of the job.

    Attributes:
        folder: where the files are.

    Raises:
        OSError: the folder holds a run already, is a file, or cannot be made.
    """

    def __init__(self, folder: Path | None, config: TrainConfig) -> None:
        self.folder = _fresh() if folder is None else folder
        if self.folder.exists() and not self.folder.is_dir():
            raise FileExistsError(f"{self.folder} is a file: name a folder for the run")
        self.folder.mkdir(parents=True, exist_ok=True)
        if (self.folder / METRICS).exists():
            raise FileExistsError(f"{self.folder} holds a run already: choose another folder, or remove it")
        self._config = config
        self._metrics: TextIO | None = None

    def begin(self) -> None:
        """Write config.json, and the plan that is followed; from now on there is a run."""
        _write(self.folder / "config.json", {"version": _VERSION, **self._config.as_dict()})
        if self._config.plan is not None:
            (self.folder / PLAN).write_text(read_plan(Path(self._config.plan)).to_json() + "\n", encoding="utf-8")
        self._metrics = (self.folder / METRICS).open("w", encoding="utf-8")

    def add(self, record: StepRecord) -> None:
        """Append a step to metrics.jsonl, at once."""
        line = {name: as_json(value) for name, value in asdict(record).items() if value is not None}
        if self._metrics is None:
            raise RuntimeError("add() comes after begin()")
        self._metrics.write(json.dumps(line, allow_nan=False) + "\n")
        self._metrics.flush()

    def finish(self, result: Result, explanation: Mapping[str, Any]) -> None:
        """Write timeline.json, profile.json and explain.json.

        Args:
            result: of the job.
            explanation: plain data.
        """
        prepared = result.prepared
        messages = transfers(prepared.schedule, prepared.costs, prepared.predicted)
        predicted = Timeline.from_tracks(prepared.predicted.tracks, messages)
        timelines = RunTimelines(prepared.schedule.name, predicted, result.measured)
        (self.folder / TIMELINE).write_text(timelines.to_json() + "\n", encoding="utf-8")
        (self.folder / PROFILE).write_text(result.run.to_json() + "\n", encoding="utf-8")
        _write(self.folder / "explain.json", explanation)
        if result.replanned is not None and result.replanned.worth_it:
            (self.folder / PLAN).write_text(result.replanned.plan.to_json() + "\n", encoding="utf-8")

    def close(self) -> None:
        """Close the files; a folder in which nothing was begun goes."""
        if self._metrics is not None:
            self._metrics.close()
        elif not any(self.folder.iterdir()):
            self.folder.rmdir()


def _fresh() -> Path:
    """A new folder in RUNS, the first number of today that nobody has."""
    RUNS.mkdir(exist_ok=True)
    number = 1
    while True:
        folder = RUNS / f"{date.today().isoformat()}-{number}"
        try:
            folder.mkdir()  # at once, as another run may begin in this moment
        except FileExistsError:
            number += 1
        else:
            return folder


def _write(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
