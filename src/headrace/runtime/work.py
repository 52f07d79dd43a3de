"""What a rank is given for one step, and what it leaves."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from headrace.runtime.stage.boundary import Parcel, Value
from headrace.schedule.messages import Message
from headrace.timeline import Span


class Endpoint(Protocol):
    """One rank's end of a transport, for one step. Payloads are parcels (activations) and gradients."""

    def send(self, to: int, message: Message, payload: Any) -> None:
        """Hand a message on to rank `to`, this one included; never waits for the receiver."""

    def receive(self, source: int, message: Message) -> Any:
        """Wait for a message of rank `source`; raises Stopped if another rank failed."""


@dataclass(frozen=True)
class Work:
    """What a rank needs beyond its messages in one step. Sequences have one entry per micro-batch.

    Attributes:
        inputs: what enters the first stage; None where another process holds that for a micro-batch.
        tails: what turns the model's output into the result that is kept: when training, its loss; None where
            another process holds the last stage for a micro-batch.
        shares: what each result counts for in that of the batch; 0 where `tails` is None.
        weights: when training, what the gradient of each loss is multiplied with; in a synchronous step that share.
        rows: where a last stage is held, how many the targets have; 0 if that need not be those of the input.
        batch: where a last stage is held, the fingerprint of the input that was given there; 0 if none was.
        seed: of the step's random numbers.
    """

    inputs: Sequence[Parcel | None] = ()
    tails: Sequence[Callable[[Value], Any] | None] = ()
    shares: Sequence[float] = ()
    weights: Sequence[float] = ()
    rows: int = 0
    batch: int = 0
    seed: int = 0


Passing = tuple[int, Message, float, float]
"""The other rank, the message, and from when to when this rank was busy with it: handing it over, or waiting for it."""


@dataclass
class Log:
    """What a rank did when in one step, in seconds of its process's `time.perf_counter`."""

    rank: int
    spans: list[Span] = field(default_factory=list)
    sent: list[Passing] = field(default_factory=list)
    received: list[Passing] = field(default_factory=list)


@dataclass
class Outcome:
    """What a step left on a rank: its log, and where it holds the last stage the results by micro-batch."""

    log: Log
    results: dict[int, Value] = field(default_factory=dict)
