"""The messages of a simulated step: the simulator itself keeps no moments but those of actions.

As in the runtime, a rank asks for what an action needs when the action before it has ended, and for what the two
actions of an overlapped pair need one after the other.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from headrace.costs import Costs, Seconds
from headrace.schedule.actions import Action
from headrace.schedule.messages import Message, channels, wanted_by
from headrace.schedule.schedule import Schedule
from headrace.simulate.links import Channel, Link
from headrace.timeline import Timeline, Transfer


class _Way(NamedTuple):
    """Of a message: when it is handed over, when the link has carried it, when it arrives."""

    sender: int
    sent: Seconds
    left: Seconds
    arrives: Seconds


def transfers(schedule: Schedule, costs: Costs, timeline: Timeline) -> tuple[Transfer, ...]:
    """The messages between the ranks of `timeline`, which is `simulate(schedule, costs)`, in the order of sending.

    A message leaves bytes ÷ bandwidth after it was handed over, or after the link was free where that carries one at a
    time, and is there a latency later; whoever asked for it before has waited.

    Raises:
        ValueError: `costs` is for another number of stages, or `timeline` lacks an action of the schedule.
    """
    ends = [dict(zip(track.actions, track.ends, strict=True)) for track in timeline.tracks]
    try:
        ways = _ways(schedule, costs, ends)
        found = [each for rank in range(schedule.ranks) for each in _received(schedule, rank, ends[rank], ways)]
    except (KeyError, IndexError) as absent:
        raise ValueError(f"the timeline is not one of {schedule.name}: it lacks {absent}") from None
    return tuple(sorted(found, key=lambda transfer: transfer.sent))


def _ways(schedule: Schedule, costs: Costs, ends: Sequence[Mapping[Action, Seconds]]) -> dict[Message, _Way]:
    latency, sending = costs.per_hop(schedule.stages), costs.sending(schedule.stages)
    found: dict[Message, _Way] = {}
    for (source, _), messages in channels(schedule).items():
        shared = Channel()
        for action, message in messages:
            hop, sent = min(action.stage, message.stage), ends[source][action]
            channel = shared if costs.one_at_a_time else Channel()
            arrives = Link(channel, sending[hop], latency[hop]).arrival(sent)
            found[message] = _Way(source, sent, channel.free_at, arrives)
    return found


def _received(
    schedule: Schedule, rank: int, ends: Mapping[Action, Seconds], ways: Mapping[Message, _Way]
) -> Iterator[Transfer]:
    """The messages that come to `rank`."""
    free: Seconds = 0
    for cell in schedule.cells(rank):
        for action in cell:
            message = wanted_by(action, schedule.stages)
            if message is not None and message in ways:
                way = ways[message]
                got = max(free, way.arrives)
                yield Transfer(way.sender, rank, message, way.sent, way.left, free, got)
                free = got
        free = ends[cell[-1]]
