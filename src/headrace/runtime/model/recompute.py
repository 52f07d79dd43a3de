"""What `recompute=` of a pipeline says: stages that recompute as a whole, by number, and layers that do one by one.

    {0, "block3"}      stage 0 ─▶ an R in the schedule         block3 ─▶ runs again within the backward of its stage

The first are part of the schedule, which knows nothing of layers; the second are part of the stages.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Literal, get_args

from headrace.schedule.actions import RECOMPUTE
from headrace.schedule.catalogue.recompute import Mode
from headrace.schedule.catalogue.recompute import Recompute as OfStages
from headrace.schedule.schedule import Schedule
from headrace.spelling import meant

Word = Mode | Literal["layer"]
"""As for a schedule, or that every layer recomputes by itself."""

Recompute = Word | Collection[int | str] | Mapping[int, Word]
"""A word for all stages alike; or what always recomputes, stages by number and layers by name; or words by stage."""


def of_stages(recompute: Recompute) -> OfStages:
    """What of `recompute` the schedule must have as R.

    Raises:
        ValueError: it is a word that nobody knows.
    """
    if recompute == "layer":
        return "never"
    if isinstance(recompute, str):
        known: tuple[Mode, ...] = get_args(Mode)
        found = next((mode for mode in known if mode == recompute), None)
        if found is None:
            raise ValueError(
                f"recompute={recompute!r} is unknown: choose one of {', '.join(known)} and layer, or name "
                'what recomputes, such as {0, "block3"}: stages by number, layers by name'
            )
        return found
    if isinstance(recompute, Mapping):
        modes: dict[int, Mode] = {stage: "never" if mode == "layer" else mode for stage, mode in recompute.items()}
        return "never" if set(modes.values()) <= {"never"} else modes
    if not isinstance(recompute, Collection):
        return recompute  # type: ignore[unreachable]  # refused where schedules are made
    return [each for each in recompute if not isinstance(each, str)] or "never"


def recomputed_layers(
    recompute: Recompute, stage_layers: Sequence[Iterable[str]], schedule: Schedule
) -> tuple[str, ...]:
    """The layers that recompute one by one, in order.

    Args:
        recompute: as the user gave it.
        stage_layers: names of the layers of each stage.
        schedule: with the R of stages that recompute as a whole.

    Raises:
        ValueError: there is no such layer or stage, or the layer is in a stage that recomputes as a whole.
    """
    stage_of = {name: stage for stage, names in enumerate(stage_layers) for name in names}
    wanted = [name for name, stage in stage_of.items() if _wants(recompute, name, stage)]
    if isinstance(recompute, Mapping):
        unknown = next((stage for stage in recompute if stage not in range(len(stage_layers))), None)
        if unknown is not None:
            last = len(stage_layers) - 1
            raise ValueError(f"recompute={recompute!r} names stage {unknown!r}, but there are only stages 0…{last}")
    elif not isinstance(recompute, str):
        for name in recompute:
            if isinstance(name, str) and name not in stage_of:
                raise ValueError(f"recompute={recompute!r} names {name!r}, which is no layer: {meant(name, stage_of)}")
    whole = {action.stage for row in schedule.rows for action in row if action.kind == RECOMPUTE} if wanted else set()
    for name in wanted:
        if stage_of[name] in whole:
            raise ValueError(
                f"recompute={recompute!r} names layer {name!r}, but stage {stage_of[name]}, which has it, recomputes "
                "as a whole already: name one of them"
            )
    return tuple(wanted)


def _wants(recompute: Recompute, name: str, stage: int) -> bool:
    """Whether the layer called `name` of `stage` is to recompute by itself."""
    if isinstance(recompute, str):
        return recompute == "layer"
    return recompute.get(stage) == "layer" if isinstance(recompute, Mapping) else name in recompute
