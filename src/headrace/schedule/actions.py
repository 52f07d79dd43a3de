"""The unit of work that every schedule is made of.

An action is written as PyTorch's pipelining writes it: stage, kind, micro-batch.

    2F0   stage 2 runs the forward of micro-batch 0
    2B0   stage 2 runs the whole backward of micro-batch 0
    2I0   ... only its input-gradient part      (B = I + W)
    2W0   ... only its weight-gradient part
    2R0   stage 2 recomputes the forward of micro-batch 0 from the saved stage input
    2U0   stage 2 updates its weights with the gradients up to micro-batch 0 (asynchronous schedules only)

Actions are plain tuples of small values, so a schedule of a million of them is still just data.
"""

import re
from typing import Final, Literal, NamedTuple, cast

Kind = Literal["F", "B", "I", "W", "R", "U"]

FORWARD: Final = "F"
BACKWARD: Final = "B"
BACKWARD_INPUT: Final = "I"
BACKWARD_WEIGHT: Final = "W"
RECOMPUTE: Final = "R"
UPDATE: Final = "U"

GIVES_INPUT_GRADIENT: Final = (BACKWARD, BACKWARD_INPUT)
ENDS_BACKWARD: Final = (BACKWARD, BACKWARD_WEIGHT)

KIND_NAMES: Final[dict[Kind, str]] = {
    "F": "forward",
    "B": "backward",
    "I": "backward (input gradient)",
    "W": "backward (weight gradient)",
    "R": "recompute",
    "U": "update",
}

_NOTATION = re.compile(r"(0|[1-9][0-9]{0,17})([FBIWRU])(0|[1-9][0-9]{0,17})")
_SHOWN = 40  # characters of what is no action


class Action(NamedTuple):
    """One unit of work of one rank: `kind` of `stage` for `micro_batch`."""

    stage: int
    kind: Kind
    micro_batch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{self.micro_batch}"

    @classmethod
    def parse(cls, text: str) -> "Action":
        """Read `2F0`; strict, so that a typing error never becomes another action.

        Raises:
            ValueError: `text` is not exactly stage, kind, micro-batch.
        """
        match = _NOTATION.fullmatch(text)
        if match is None:
            shown = text if len(text) <= _SHOWN else text[:_SHOWN] + "…"
            raise ValueError(
                f"{shown!r} is not an action: write stage, kind and "
                f"micro-batch, such as 2F0, with a kind out of {', '.join(KIND_NAMES)} and no leading zeros"
            )
        stage, kind, micro_batch = match.groups()
        return cls(int(stage), cast(Kind, kind), int(micro_batch))
