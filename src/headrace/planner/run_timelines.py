"""`timeline.json`: a step of a run as it was predicted and as it was measured, read as strictly as a plan.

    {
      "version": 2, "schedule": "1f1b", "ranks": 2,
      "predicted": [span, …], "measured": [span, …],
      "transfers": {"predicted": [transfer, …], "measured": [transfer, …]},
      "clocks": [{"offset": 0.0, "error": 0.0}, …]      of the measured step, one per rank
    }
    span       {"rank": 0, "action": "0F3", "start": …, "end": …}
    transfer   {"sender": 0, "receiver": 1, "what": "activation", "stage": 1, "micro_batch": 3,
                "sent": …, "left": …, "asked": …, "got": …}

All moments are seconds since the step began; `headrace.timeline` says of what.
"""

import json
from dataclasses import dataclass
from typing import Any, Final, get_type_hints

from headrace.planner.strict import typed
from headrace.schedule.actions import Action
from headrace.schedule.messages import Message
from headrace.timeline import ClockOffset, Span, Timeline, Transfer

TIMELINES_VERSION: Final = 2


@dataclass(frozen=True)
class RunTimelines:
    """One step of a run.

    Attributes:
        schedule: its name.
        predicted: what its costs promised.
        measured: what happened.
    """

    schedule: str
    predicted: Timeline
    measured: Timeline

    def to_json(self) -> str:
        """The file's text."""
        data = {
            "version": TIMELINES_VERSION,
            "schedule": self.schedule,
            "ranks": self.measured.ranks,
            "predicted": self.predicted.as_data(),
            "measured": self.measured.as_data(),
            "transfers": {
                "predicted": [_as_data(transfer) for transfer in self.predicted.transfers],
                "measured": [_as_data(transfer) for transfer in self.measured.transfers],
            },
            "clocks": [clock._asdict() for clock in self.measured.clocks],
        }
        return json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False)


def timelines_from(data: Any) -> RunTimelines:
    """What `to_json` wrote, as `json.loads` gives it.

    Raises:
        ValueError: it is something else; the message names the key.
    """
    read = typed(data, _SHAPE, "the timeline", signed=True)
    ranks, clocks = read["ranks"], read["clocks"]
    if len(clocks) not in (0, ranks):
        raise ValueError(f"clocks has {len(clocks)} entries, but there are {ranks} ranks")
    predicted, measured = (
        Timeline(
            ranks,
            [_span(span, ranks) for span in read[which]],
            [_transfer(transfer, ranks) for transfer in read["transfers"][which]],
            [ClockOffset(**clock) for clock in clocks] if which == "measured" else (),
        )
        for which in ("predicted", "measured")
    )
    return RunTimelines(read["schedule"], predicted, measured)


_SPAN: Final = {"rank": int, "action": str, "start": float, "end": float}
_TRANSFER: Final = {
    "sender": int, "receiver": int, "what": get_type_hints(Message)["what"], "stage": int, "micro_batch": int,
    "sent": float, "left": float, "asked": float, "got": float,
}  # fmt: skip
_SHAPE: Final = {
    "version": int,
    "schedule": str,
    "ranks": int,
    "predicted": [_SPAN],
    "measured": [_SPAN],
    "transfers": {"predicted": [_TRANSFER], "measured": [_TRANSFER]},
    "clocks": [{"offset": float, "error": float}],
}


def _as_data(transfer: Transfer) -> dict[str, Any]:
    sender, receiver, message, *moments = transfer
    return dict(zip(_TRANSFER, (sender, receiver, *message, *moments), strict=True))


def _span(span: dict[str, Any], ranks: int) -> Span:
    if not 0 <= span["start"] <= span["end"]:
        raise ValueError(f"the span of {span['action']} is from {span['start']} to {span['end']}")
    return Span(_rank(span["rank"], ranks), Action.parse(span["action"]), span["start"], span["end"])


def _transfer(transfer: dict[str, Any], ranks: int) -> Transfer:
    sender, receiver, what, stage, micro_batch, *moments = transfer.values()
    return Transfer(_rank(sender, ranks), _rank(receiver, ranks), Message(what, stage, micro_batch), *moments)


def _rank(rank: int, ranks: int) -> int:
    if not 0 <= rank < ranks:
        raise ValueError(f"rank {rank} is none of the run's {ranks}")
    return rank
