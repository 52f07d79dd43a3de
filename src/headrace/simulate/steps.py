"""Schedule and costs → what the clock of the simulator must know of each action, and nothing else.

Every result has a slot: the moment at which it is where it is wanted, or NOT_YET. A step waits for one slot, for the
message that its action needs from another stage, and fills one:

    slots    │ forwards of stage 0, 1, … │ gradients of stage 0, 1, … │ at once │ nowhere │    m slots for each stage

    2F5      waits for 1F5, fills 2F5           0F5    waits for "at once", fills 0F5
    2B5      waits for 3B5, fills 2B5           2W5    waits for "at once", fills "nowhere"

What an action needs of its own rank costs no time, as the row has it earlier; it must only be there. That is the slot
`own`: 2F5 for 2B5; 2I5 for 2W5; where sequences are cut, the neighbouring segment's slot.

All micro-batches of a stage share one Step, whose slots lie at the micro-batch's number behind those that it names.
So steps are looked up, not made, and lanes and segments are nothing but other tables to look in.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from headrace.costs import Costs, Seconds, spread
from headrace.schedule.actions import (
    BACKWARD,
    BACKWARD_INPUT,
    BACKWARD_WEIGHT,
    FORWARD,
    GIVES_INPUT_GRADIENT,
    RECOMPUTE,
    UPDATE,
    Action,
    Kind,
)
from headrace.schedule.schedule import Schedule

NOT_YET: Final = -1
_CACHE_LINE: Final = 8  # slots


@dataclass(slots=True)
class Channel:
    """All that goes from one rank to another.

    Attributes:
        free_at: when it has carried all that it was given so far.
    """

    free_at: Seconds = 0


@dataclass(frozen=True, slots=True)
class Link:
    """The way of a stage's messages over a channel that carries one at a time.

    Attributes:
        channel: shared by all that travels between the two ranks.
        sending: seconds for which a message occupies the channel.
        latency: seconds from then until it arrives.
    """

    channel: Channel
    sending: Seconds
    latency: Seconds

    def arrival(self, ready: Seconds) -> Seconds:
        """When a message arrives that is ready now, and behind all that the channel was given before."""
        self.channel.free_at = max(self.channel.free_at, ready) + self.sending
        return self.channel.free_at + self.latency


class Step(NamedTuple):
    """What one action does to the clock of its rank; slots are those of micro-batch 0.

    Attributes:
        waits: slot of the message that it waits for.
        own: slot of what must have run before it on its own rank.
        fills: slot of its result.
        seconds: how long it takes.
        after: seconds from its end until its result is where it is wanted.
        link: what says so instead, where messages wait for each other.
    """

    waits: int
    own: int
    fills: int
    seconds: Seconds
    after: Seconds
    link: Link | None


Table = list[dict[Kind, Step]]
"""For each stage, the step of each kind."""


class Slots:
    """Where things are in the one list of slots."""

    def __init__(self, stages: int, micro_batches: int) -> None:
        # Some more than m apart: if m is a power of 2, the slots in use would all fall on the same lines of the cache.
        self._apart = micro_batches + _CACHE_LINE
        self._gradients = stages * self._apart
        self.at_once = 2 * self._gradients
        self.nowhere = self.at_once + self._apart

    def forward(self, stage: int) -> int:
        """Of the result of F; `stage` may be one before the first, whose input is there at once."""
        return stage * self._apart if stage >= 0 else self.at_once

    def gradient(self, stage: int) -> int:
        """Of the result of B or I; `stage` may be one behind the last: `at_once` lies there."""
        return self._gradients + stage * self._apart

    def empty(self) -> list[Seconds]:
        """All slots before anything has run."""
        return [*[NOT_YET] * self.at_once, *[0] * self._apart, *[NOT_YET] * self._apart]


class Tables:
    """The steps of a schedule.

    Raises:
        ValueError: `costs` is for another number of stages.
    """

    def __init__(self, schedule: Schedule, costs: Costs) -> None:
        stages = schedule.stages
        self.slots = Slots(stages, schedule.micro_batches)
        self._seconds = costs.per_stage(stages)
        self._latency, self._sending = costs.per_hop(stages), costs.sending(stages)
        self._one_at_a_time = costs.one_at_a_time and any(self._sending)
        self._channels: dict[tuple[int, int], Channel] = {}
        self._pair = None if costs.pair is None else spread("pair", costs.pair, stages, "stages")
        self._pairs = schedule.pairs
        segments = schedule.segments
        every = [
            [self._table(lane, first, last) for first in (False, True) for last in (False, True)]
            for lane in schedule.placement.lanes
        ]
        self._numbers = list(range(schedule.micro_batches))  # the same objects for all rows stay in the cache
        lane_of = schedule.placement.lane_of or (0,) * schedule.micro_batches
        self._of = [
            every[lane][2 * (k % segments == 0) + (k % segments == segments - 1)] for k, lane in enumerate(lane_of)
        ]

    def steps(self, row: Sequence[Action]) -> tuple[list[Step], list[int]]:
        """The steps of a row, and the micro-batch of each; a pair makes three (see `_pair_steps`).

        Raises:
            LookupError: an action is of a stage, micro-batch or kind that there is none of, or a pair is none.
        """
        of, same = self._of, self._numbers
        found = [of[k][stage][kind] for stage, kind, k in row]
        numbers = [same[k] for _, _, k in row]
        if self._pairs:
            for at in reversed([at for at, action in enumerate(row) if action in self._pairs]):
                found[at : at + 2] = self._pair_steps(row[at], row[at + 1])
                numbers.insert(at, numbers[at])
        return found, numbers

    def _pair_steps(self, forward: Action, backward: Action) -> list[Step]:
        """Wait for what F needs; wait for what B needs, then do both; give the result of B, too.

        F waits ─┐               ┌─▶ result of F
                 ├─ F and B run ─┤
        B waits ─┘               └─▶ result of B
        """
        (s, kind, k), (stage, back, other) = forward, backward
        if kind != FORWARD or back not in GIVES_INPUT_GRADIENT:
            raise LookupError(f"{forward} and {backward} are no pair")
        f, b = self._of[k][s][FORWARD], self._of[other][stage][back]
        seconds = f.seconds + b.seconds if self._pair is None else self._pair[s]
        shift = other - k  # B's slots, counted from those of F's micro-batch
        nowhere, at_once = self.slots.nowhere, self.slots.at_once
        return [
            Step(f.waits, f.own, nowhere, 0, 0, None),
            f._replace(waits=b.waits + shift, own=b.own + shift, seconds=seconds),
            b._replace(waits=at_once, own=at_once, seconds=0),
        ]

    def _table(self, lane: Sequence[int], first: bool, last: bool) -> Table:
        """The steps of a lane's micro-batches that are the first or the last segment of a sequence, or neither."""
        forward, gradient = self.slots.forward, self.slots.gradient
        at_once, nowhere = self.slots.at_once, self.slots.nowhere
        table: Table = []
        for s in range(len(lane)):
            f, g = forward(s), gradient(s)
            down, up = self._message(lane, s, s + 1), self._message(lane, s, s - 1)
            seconds = {kind: per_stage[s] for kind, per_stage in self._seconds.items()}
            backward = gradient(s + 1), f if last else g + 1, g
            table.append(
                {
                    FORWARD: Step(forward(s - 1), at_once if first else f - 1, f, seconds[FORWARD], *down),
                    BACKWARD: Step(*backward, seconds[BACKWARD], *up),
                    BACKWARD_INPUT: Step(*backward, seconds[BACKWARD_INPUT], *up),
                    BACKWARD_WEIGHT: Step(at_once, g, nowhere, seconds[BACKWARD_WEIGHT], 0, None),
                    RECOMPUTE: Step(at_once, f, nowhere, seconds[RECOMPUTE], 0, None),
                    UPDATE: Step(at_once, g, nowhere, seconds[UPDATE], 0, None),
                }
            )
        return table

    def _message(self, lane: Sequence[int], here: int, there: int) -> tuple[Seconds, Link | None]:
        """`after` and `link` of what goes from stage `here` to stage `there`; if it is no other stage, nothing does."""
        if not 0 <= there < len(lane) or lane[here] == lane[there]:
            return 0, None
        hop = min(here, there)
        if not self._one_at_a_time:
            return self._latency[hop] + self._sending[hop], None
        channel = self._channels.setdefault((lane[here], lane[there]), Channel())
        return 0, Link(channel, self._sending[hop], self._latency[hop])
