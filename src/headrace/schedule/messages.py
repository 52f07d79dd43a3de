"""The messages that a schedule implies, and the channels that carry them.

An activation goes from each F to the F of the next stage, a gradient from each B (or I) to the B (or I) of the
stage before. All messages from one rank to another are one channel. They leave in the order in which the sender
produces them and are received in that order: no tags are needed, and the receiver, which may want them in another
order, keeps early ones aside.
"""

from typing import Literal, NamedTuple

from headrace.schedule.actions import FORWARD, GIVES_INPUT_GRADIENT, Action
from headrace.schedule.schedule import Schedule


class Message(NamedTuple):
    """What flows into `stage` for `micro_batch`: its input, or the gradient of its output.

    Between the replicas that a two-way schedule has of a stage, "replica" is what they tell each other at the end of a
    step; its `micro_batch` is the place of the sender among them.
    """

    what: Literal["activation", "gradient", "replica"]
    stage: int
    micro_batch: int


class Channel(NamedTuple):
    """All messages from one rank to another, in one direction, first in first out."""

    source: int
    destination: int


class Outgoing(NamedTuple):
    """A message and the action that produces it."""

    action: Action
    message: Message


def produced_by(action: Action, stages: int) -> Message | None:
    """The message that `action` produces, for a model of `stages` stages; None where nothing flows on."""
    stage, kind, k = action
    if kind == FORWARD and stage + 1 < stages:
        return Message("activation", stage + 1, k)
    if kind in GIVES_INPUT_GRADIENT and stage > 0:
        return Message("gradient", stage - 1, k)
    return None


def wanted_by(action: Action, stages: int) -> Message | None:
    """The message that `action` consumes; None where it needs none."""
    stage, kind, k = action
    if kind == FORWARD and stage > 0:
        return Message("activation", stage, k)
    if kind in GIVES_INPUT_GRADIENT and stage + 1 < stages:
        return Message("gradient", stage, k)
    return None


def channels(schedule: Schedule) -> dict[Channel, tuple[Outgoing, ...]]:
    """Every channel between two different ranks, with its messages in the order of sending."""
    rank_of = schedule.placement.rank
    found: dict[Channel, tuple[Outgoing, ...]] = {}
    for source, row in enumerate(schedule.rows):
        to: dict[int, list[Outgoing]] = {}
        for action in row:
            message = produced_by(action, schedule.stages)
            if message is not None and (destination := rank_of(message.stage, message.micro_batch)) != source:
                to.setdefault(destination, []).append(Outgoing(action, message))
        for destination, messages in sorted(to.items()):
            found[Channel(source, destination)] = tuple(messages)
    return found
