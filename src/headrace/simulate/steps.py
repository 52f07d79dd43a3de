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
from headrace.simulate.links import Channel, Link

NOT_YET: Final = -1


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
        self._m = micro_batches
        self._cells = stages * micro_batches
        self.at_once = 2 * self._cells
        self.nowhere = self.at_once + micro_batches

    def forward(self, stage: int) -> int:
        """Of the result of F; `stage` may be one before the first, whose input is there at once."""
        return stage * self._m if stage >= 0 else self.at_once

    def gradient(self, stage: int) -> int:
        """Of the result of B or I; `stage` may be one behind the last: `at_once` lies there."""
        return self._cells + stage * self._m

    def empty(self) -> list[Seconds]:
        """All slots before anything has run."""
        return [*[NOT_YET] * self.at_once, *[0] * self._m, *[NOT_YET] * self._m]


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
        """The steps of a row, and the micro-batch of each; a pair makes three steps (see `_pair_steps`).

        Raises:
            LookupError: an action is of a stage, micro-batch or kind that there is none of, or a pair is none.
        """
        of, same = self._of, self._numbers
        found = [of[k][stage][kind] for stage, kind, k in row]
        numbers = [same[k] for _, _, k in row]
        return self._with_pairs(row, found, numbers) if self._pairs else (found, numbers)

    def _with_pairs(
        self, row: Sequence[Action], found: Sequence[Step], numbers: Sequence[int]
    ) -> tuple[list[Step], list[int]]:
        steps: list[Step] = []
        of: list[int] = []
        made: dict[tuple[int, int, int], tuple[Step, Step, Step]] = {}
        rest = zip(row, found, numbers, strict=True)
        for action, step, k in rest:
            if action not in self._pairs:
                steps.append(step)
                of.append(k)
                continue
            backward, partner, other = next(rest, (action, step, k))
            if action.kind != FORWARD or backward.kind not in GIVES_INPUT_GRADIENT:
                raise LookupError(f"{action} and {backward} are no pair")
            key = id(step), id(partner), other - k  # there are few, whereas equal steps by the thousand cost time
            if key not in made:
                seconds = step.seconds + partner.seconds if self._pair is None else self._pair[action.stage]
                made[key] = self._pair_steps(step, partner, other - k, seconds)
            steps += made[key]
            of += (k, k, other)
        return steps, of

    def _pair_steps(self, f: Step, b: Step, shift: int, seconds: Seconds) -> tuple[Step, Step, Step]:
        """Wait for what F needs; wait for what B needs, then do both; give the result of B, too.

            F waits ─┐               ┌─▶ result of F
                     ├─ F and B run ─┤
            B waits ─┘               └─▶ result of B

        The second is a step of F's micro-batch, from which B's is `shift` away.
        """
        nowhere, at_once = self.slots.nowhere, self.slots.at_once
        return (
            Step(f.waits, f.own, nowhere, 0, 0, None),
            Step(b.waits + shift, b.own + shift, f.fills, seconds, f.after, f.link),
            Step(at_once, at_once, b.fills, 0, b.after, b.link),
        )

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
