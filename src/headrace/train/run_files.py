"""What a run leaves behind: `config.json`, `metrics.jsonl` (a line per step), and at its end three files more.

timeline.json   a step, predicted and measured: see `headrace.planner.run_timelines`
profile.json    what `headrace plan --from` needs: see `headrace.planner.run_profile`
explain.json    why the two timelines differ: see `headrace.report.explain`
"""

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

from headrace.planner.run_profile import PROFILE, TIMELINE
from headrace.planner.run_timelines import RunTimelines
from headrace.simulate import transfers
from headrace.timeline import Timeline
from headrace.train.config import TrainConfig
from headrace.train.job import Result, StepRecord

_VERSION = 1


class RunFiles:
    """Writes a run's files into `folder`, which is made if it is not there.

    Raises:
        FileExistsError: the folder holds a run already.
    """

    def __init__(self, folder: Path, config: TrainConfig) -> None:
        if folder.exists() and not folder.is_dir():
            raise FileExistsError(f"{folder} is a file: name a folder for the run")
        folder.mkdir(parents=True, exist_ok=True)
        if (folder / "metrics.jsonl").exists():
            raise FileExistsError(f"{folder} holds a run already: choose another folder, or remove it")
        self._folder = folder
        _write(folder / "config.json", {"version": _VERSION, **config.as_dict()})
        self._metrics: TextIO = (folder / "metrics.jsonl").open("w", encoding="utf-8")

    def add(self, record: StepRecord) -> None:
        """Append a step to metrics.jsonl, at once."""
        line = {name: value for name, value in asdict(record).items() if value is not None}
        self._metrics.write(json.dumps(line) + "\n")
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
        (self._folder / TIMELINE).write_text(timelines.to_json() + "\n", encoding="utf-8")
        (self._folder / PROFILE).write_text(result.run.to_json() + "\n", encoding="utf-8")
        _write(self._folder / "explain.json", explanation)

    def close(self) -> None:
        """Close the files."""
        self._metrics.close()


def _write(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
