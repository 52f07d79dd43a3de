"""What a run leaves behind: `config.json`, `metrics.jsonl` (a line per step), and at its end three files more.

timeline.json   {"version": 1, "schedule": …, "ranks": …, "predicted": [span, …], "measured": [span, …]}
a span          {"rank": 0, "action": "0F3", "start": seconds, "end": seconds}
profile.json    what `headrace plan --from` needs: see `headrace.planner.run_profile`
explain.json    why the two timelines differ: see `headrace.report.explain`
"""

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

from headrace.planner.run_profile import PROFILE, TIMELINE
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
        timelines = {
            "version": _VERSION,
            "schedule": result.prepared.schedule.name,
            "ranks": result.measured.ranks,
            "predicted": result.prepared.predicted.as_data(),
            "measured": result.measured.as_data(),
        }
        _write(self._folder / TIMELINE, timelines)
        (self._folder / PROFILE).write_text(result.run.to_json() + "\n", encoding="utf-8")
        _write(self._folder / "explain.json", explanation)

    def close(self) -> None:
        """Close the files."""
        self._metrics.close()


def _write(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
