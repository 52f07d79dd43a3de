"""Where the recompute of a forward goes in a row: right before its backward.

A recompute needs only the stage's saved input, which is on the spot, so a rank that waits for a gradient spends the
wait on it: with R in front of B (or I), the R runs in the bubble and only B waits.

    never    rank 0  F0 F1 F2 ·········[B2  ][B1  ][B0  ]
             rank 1  ···F0 F1 F2 [B2  ][B1  ][B0  ]······

    always   rank 0  F0 F1 F2 R2 ·········[B2  ]R1 [B1  ]R0 [B0  ]      R2 costs rank 0 nothing
             rank 1  ···F0 F1 F2 R2 [B2  ]R1 [B1  ]R0 [B0  ]······

No earlier place would be better. A W in front never waits, so nothing idles before it; and an R in front of the F of
another micro-batch would keep that F, for which the next rank waits. Only an overlapped pair, which begins as one, has
the R in front of both its parts.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Literal, get_args

from headrace.schedule.actions import GIVES_INPUT_GRADIENT, RECOMPUTE, Action
from headrace.schedule.schedule import Schedule

Mode = Literal["never", "always", "except_last"]
Recompute = Mode | Collection[int] | Mapping[int, Mode]


def add_recompute(schedule: Schedule, recompute: Recompute) -> Schedule:
    """`schedule` with an R before the backward of each (stage, micro-batch) that `recompute` names.

    Args:
        schedule: a schedule without any R.
        recompute: for all stages alike, "never", "always", or "except_last", which spares the last micro-batch as
            torchgpipe does: where backwards drain in reverse order its own comes next anyway, so dropping its
            activations would save nothing. Or the numbers of the stages that always recompute, such as {0, 1}. Or a
            mapping from stages to one of the three words; stages that it leaves out never recompute.

    Raises:
        TypeError, ValueError: `recompute` is none of these, or there is no such stage.
    """
    modes = _modes(recompute, schedule.stages)
    if set(modes) == {"never"}:
        return schedule
    last = schedule.micro_batches - schedule.segments
    rows = []
    for row in schedule.rows:
        result: list[Action] = []
        for action in row:
            mode = modes[action.stage] if action.kind in GIVES_INPUT_GRADIENT else "never"
            if mode == "always" or (mode == "except_last" and action.micro_batch < last):
                at = len(result) - 1 if result and result[-1] in schedule.pairs else len(result)
                result.insert(at, Action(action.stage, RECOMPUTE, action.micro_batch))
            result.append(action)
        rows.append(tuple(result))
    return replace(schedule, rows=tuple(rows))


def _modes(recompute: Recompute, stages: int) -> list[Mode]:
    """The mode of each stage."""
    words: tuple[Mode, ...] = get_args(Mode)
    if isinstance(recompute, str):
        if recompute not in words:
            raise ValueError(f"recompute={recompute!r} is unknown: choose one of {', '.join(words)}")
        return [recompute] * stages
    if not isinstance(recompute, Collection):
        raise TypeError(f"recompute={recompute!r} must be one of {', '.join(words)}, or say which stages recompute")
    of_stage: Mapping[int, Mode] = recompute if isinstance(recompute, Mapping) else dict.fromkeys(recompute, "always")
    for stage, mode in of_stage.items():
        if not isinstance(stage, int) or isinstance(stage, bool):
            raise TypeError(f"recompute={recompute!r} names the stage {stage!r}: stages are whole numbers")
        if not 0 <= stage < stages:
            raise ValueError(f"recompute={recompute!r} names stage {stage}, but there are only stages 0…{stages - 1}")
        if mode not in words:
            raise ValueError(f"recompute={recompute!r} has an unknown {mode!r}: choose one of {', '.join(words)}")
    return [of_stage.get(stage, "never") for stage in range(stages)]
