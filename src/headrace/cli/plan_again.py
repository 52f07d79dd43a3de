"""`headrace plan --from RUN_DIR`: what a finished run says about the next one."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer

from headrace.cli.chosen import refuse_typed
from headrace.planner.build_plan import version_of
from headrace.planner.replan import Replanned, replan
from headrace.planner.run_profile import read_run

_SAID_BY_THE_RUN = (
    "model", "layers", "dim", "heads", "seq", "batch", "ranks", "hardware", "replicas", "optimizer_bytes",
)  # fmt: skip


def planned_again(
    context: typer.Context,
    folder: Path,
    schedules: Sequence[str] | None,
    micro_batches: Sequence[int] | None,
    memory: float | None,
    recompute: Any,
) -> Replanned:
    """The best plan for the model and the ranks of the run in `folder`.

    Args:
        context: says which options were typed.
        folder: of the run.
        schedules, micro_batches, memory, recompute: what to choose from, see `replan`.

    Raises:
        NoPlanFits: nothing fits.
        ValueError: it is no finished run, it was measured with another torch, or an option was typed for which the
            run has the answer.
    """
    refuse_typed(context, _SAID_BY_THE_RUN, f"goes without --from: the run in {folder} says what it is")
    run, measured = read_run(folder)
    if run.torch.split("+")[0] != version_of("torch").split("+")[0]:
        raise ValueError(
            f"the run in {folder} was measured with torch {run.torch}, but this is {version_of('torch')}: train again"
        )
    return replan(run, measured, schedules=schedules, micro_batches=micro_batches, memory=memory, recompute=recompute)
