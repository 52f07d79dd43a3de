"""Links that carry one message at a time: the next one waits until the last one has left.

sender     F0 ┐ F1 ┐                          a message occupies the channel for bytes ÷ bandwidth,
channel       ├─ F0 ────┤├─ F1 ────┤          in the order of sending, and arrives `transfer` later
receiver                ┊ ▶ F0     ┊ ▶ F1
"""

from dataclasses import dataclass

from headrace.costs import Seconds


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
