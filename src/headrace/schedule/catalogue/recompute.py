"""Where the recompute of a forward goes in a row: right before its backward.

A recompute needs only the stage's saved input, which is on the spot, so a rank that waits for a gradient spends the
wait on it: with R in front of B, the R runs in the bubble and only B waits.

    never    rank 0  F0 F1 F2 ·········[B2  ][B1  ][B0  ]
             rank 1  ···F0 F1 F2 [B2  ][B1  ][B0  ]······

    always   rank 0  F0 F1 F2 R2 ·········[B2  ]R1 [B1  ]R0 [B0  ]      R2 costs rank 0 nothing
             rank 1  ···F0 F1 F2 R2 [B2  ]R1 [B1  ]R0 [B0  ]······
"""

from collections.abc import Iterable
from typing import Literal, get_args

from headrace.schedule.actions import GIVES_INPUT_GRADIENT, RECOMPUTE, Action

Recompute = Literal["never", "always", "except_last"]


def add_recompute(row: Iterable[Action], recompute: Recompute, micro_batches: int) -> tuple[Action, ...]:
    """`row` with an R before the backward of each micro-batch that `recompute` names.

    "except_last" spares the last micro-batch, as in torchgpipe: its backward comes next anyway where the backward
    drains in reverse order, so dropping its activations would save nothing.

    Raises:
        ValueError: `recompute` is none of never, always, except_last.
    """
    if recompute not in get_args(Recompute):
        raise ValueError(f"recompute={recompute!r} is unknown: choose one of {', '.join(get_args(Recompute))}")
    spared = {"never": range(micro_batches), "always": (), "except_last": (micro_batches - 1,)}[recompute]
    result: list[Action] = []
    for action in row:
        if action.kind in GIVES_INPUT_GRADIENT and action.micro_batch not in spared:
            result.append(Action(action.stage, RECOMPUTE, action.micro_batch))
        result.append(action)
    return tuple(result)
