"""What `headrace train` shows: the cut, a progress bar, and at the end where the time went."""

from pathlib import Path
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from headrace.planner.replan import Replanned
from headrace.report.explain import Explanation, differences_table, in_a_sentence
from headrace.report.gantt import gantt
from headrace.report.tables import first_to_last, in_runs, in_words, ranks_table, table
from headrace.schedule.actions import RECOMPUTE
from headrace.train.config import TrainConfig
from headrace.train.job import Prepared, Result, StepRecord
from headrace.units import count, percent, seconds


class TrainScreen:
    """Tables go to `results`, the progress bar to stderr.

    Args:
        config: of the job.
        results: the console for tables; None to show none, as in all processes but the first.
    """

    def __init__(self, config: TrainConfig, results: Console | None) -> None:
        self._config = config
        self._results = results
        self._held_out = ""
        self._progress = Progress(
            TextColumn("training"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[losses]}"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            disable=results is None,
        )
        self._task = self._progress.add_task("training", total=config.steps, losses="", start=False)

    def __enter__(self) -> "TrainScreen":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def ready(self, prepared: Prepared) -> None:
        """Show the text and the cut."""
        if self._results is None:
            return
        config = self._config
        for note in prepared.notes:
            self._results.print(note)
        rows = -(-config.batch // config.micro_batches)
        order = config.order()
        recomputed = sum(action.kind == RECOMPUTE for row in order.rows for action in row)
        again = f", {recomputed} forwards recomputed" if recomputed else ""
        if prepared.recomputed_layers:
            again += f", recomputed one by one: {in_runs(prepared.profile.names, prepared.recomputed_layers)}"
        self._results.print(
            f"\n{order.name}, {config.ranks} ranks, {config.micro_batches} micro-batches of {rows} × "
            f"{config.sequence} bytes{again}\n"
        )
        self._results.print(_cut_table(prepared))
        self._results.print()
        self._progress.start()
        self._progress.start_task(self._task)

    def step(self, record: StepRecord) -> None:
        """Advance the bar."""
        if record.held_out_loss is not None:
            self._held_out = f", held out {record.held_out_loss:.3f}"
        self._progress.update(self._task, advance=1, losses=f"loss {record.loss:.3f}{self._held_out}")

    def replanned(self, found: Replanned, prepared: Prepared) -> None:
        """Show what re-planning came to, and the cut of the steps that follow if it is another."""
        if self._results is None:
            return
        self._results.print(f"after {self._config.replan_after} steps: {found}\n", soft_wrap=True)
        if found.worth_it:
            self._results.print(_cut_table(prepared))
            self._results.print()

    def result(self, result: Result, explanation: Explanation) -> None:
        """Show what came out, predicted beside measured and why they differ, and one real step."""
        if self._results is None:
            return
        say = self._results.print
        before, after = result.held_out_before, result.held_out_after
        speed = f"{result.tokens_per_second:,.0f} tokens per second"
        say(f"held-out loss {before:.3f} → {after:.3f} nats per byte, {speed}\n")
        predicted, measured = result.prepared.predicted, result.measured
        rows = [
            ("pipeline step", seconds(predicted.makespan), seconds(result.makespan)),
            ("bubble", percent(predicted.bubble_fraction), percent(measured.bubble_fraction)),
            ("peak in flight", in_words(predicted.peak_in_flight), in_words(measured.peak_in_flight)),
            ("whole step, with optimizer", "", seconds(result.step_seconds)),
        ]
        say(table(("", "predicted", "measured"), rows))
        say(f"\n{in_a_sentence(explanation)}", soft_wrap=True)
        slower = differences_table(explanation)
        if slower is not None:
            say(slower)
        say("\none real step:")
        say(gantt(measured, self._results.width), crop=False)
        say()
        say(ranks_table(measured))

    def written(self, report: Path) -> None:
        """Name the file that says more."""
        if self._results is not None:
            self._results.print(f"\nreport: {report}", soft_wrap=True)


def _cut_table(prepared: Prepared) -> object:
    forward = prepared.costs.per_stage(len(prepared.cut))["F"]
    backward = prepared.costs.per_stage(len(prepared.cut))["B"]
    rows = []
    start = 0
    for stage, layers in enumerate(prepared.cut):
        names = prepared.profile.names[start : start + layers]
        start += layers
        rows.append(
            (
                f"{stage}: {first_to_last(names)}",
                layers,
                seconds(forward[stage]),
                seconds(backward[stage]),
                count(prepared.parameters[stage]),
            )
        )
    return table(("stage", "layers", "forward", "backward", "parameters"), rows)
