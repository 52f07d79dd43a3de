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
from typing import Any, Final

from headrace.planner.strict import exactly
from headrace.schedule.actions import Action
from headrace.schedule.messages import Message
from headrace.timeline import ClockOffset, Span, Timeline, Transfer

TIMELINES_VERSION: Final = 2

_TRANSFER: Final = ("sender", "receiver", "what", "stage", "micro_batch", "sent", "left", "asked", "got")


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
        ValueError: a key is missing or unknown, or a rank is none of the run's.
        TypeError, KeyError, AttributeError: it is something else altogether.
    """
    keys = {"version", "schedule", "ranks", "predicted", "measured", "transfers", "clocks"}
    exactly(data, keys, "the timeline")
    exactly(data["transfers"], {"predicted", "measured"}, "transfers")
    ranks = data["ranks"]
    clocks = [ClockOffset(**clock) for clock in data["clocks"]]
    if len(clocks) not in (0, ranks):
        raise ValueError(f"clocks has {len(clocks)} entries, but there are {ranks} ranks")
    predicted, measured = (
        Timeline(
            ranks,
            [_span(span, ranks) for span in data[which]],
            [_transfer(transfer, ranks) for transfer in data["transfers"][which]],
            clocks if which == "measured" else (),
        )
        for which in ("predicted", "measured")
    )
    return RunTimelines(data["schedule"], predicted, measured)


def _as_data(transfer: Transfer) -> dict[str, Any]:
    sender, receiver, message, *moments = transfer
    return dict(zip(_TRANSFER, (sender, receiver, *message, *moments), strict=True))


def _span(data: Any, ranks: int) -> Span:
    exactly(data, {"rank", "action", "start", "end"}, "a span")
    return Span(_rank(data["rank"], ranks), Action.parse(data["action"]), data["start"], data["end"])


def _transfer(data: Any, ranks: int) -> Transfer:
    exactly(data, set(_TRANSFER), "a transfer")
    sender, receiver, what, stage, micro_batch, *moments = (data[name] for name in _TRANSFER)
    return Transfer(_rank(sender, ranks), _rank(receiver, ranks), Message(what, stage, micro_batch), *moments)


def _rank(rank: int, ranks: int) -> int:
    if not 0 <= rank < ranks:
        raise ValueError(f"rank {rank} is none of the run's {ranks}")
    return rank
