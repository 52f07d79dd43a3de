"""How deep each channel's queue must be, so that no send ever waits, whatever the timing.

A message is under way from the end of the action that makes it until the action that wants it begins. How many are
under way at most is a question about what is *certain*: at each send, all messages sent so far may still be there,
except those whose receivers the sender has, by way of other messages, already heard of.

    rank 0   F0 F1 B0 F2 B1 …     When rank 0 sends F1, rank 1 may not have taken F0 yet: two are under way.
    rank 1   F0 B0 F1 B1 …        When it sends F2, it has had B0 of rank 1, hence F0 is gone: F1 and F2, two again.

Vector clocks hold what a rank has heard: `clock[b]` counts the actions of rank b that have surely run. A message
carries only those entries that its receiver cannot know better (see `_news`), which in a chain is the sender's own.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from headrace.schedule.actions import Action
from headrace.schedule.messages import Channel, Message, produced_by, wanted_by
from headrace.schedule.schedule import Schedule


def queue_depth(
    schedule: Schedule, order: Iterable[tuple[int, Action]], every: Collection[Channel]
) -> dict[Channel, int]:
    """For each channel of `every`, the most messages that can be under way at once.

    Args:
        schedule: a schedule that cannot deadlock.
        order: all its actions as (rank, action) in an order in which they can run.
        every: its channels.
    """
    stages, rank_of = schedule.stages, schedule.placement.rank
    # queues[a][b] is the queue of the channel from rank a to rank b.
    queues: list[dict[int, _Queue]] = [{} for _ in schedule.rows]
    for (source, destination), news in _news(every).items():
        queues[source][destination] = _Queue(news)
    for rank, row in enumerate(schedule.rows):
        for index, action in enumerate(row):
            wanted = wanted_by(action, stages)
            if wanted is not None:
                maker = wanted.stage + (1 if wanted.what == "gradient" else -1)
                queue = queues[rank_of(maker, wanted.micro_batch)].get(rank)
                if queue is not None:
                    queue.taken_at.append(index)

    clocks = [[0] * schedule.ranks for _ in schedule.rows]
    told: dict[Message, list[tuple[int, int]]] = {}
    for rank, action in order:
        clock = clocks[rank]
        wanted = wanted_by(action, stages)
        if wanted in told:
            for about, count in told.pop(wanted):
                if count > clock[about]:  # noqa: PLR1730 - max() would take twice as long
                    clock[about] = count
        clock[rank] += 1
        made = produced_by(action, stages)
        if made is not None and (to := rank_of(made.stage, made.micro_batch)) != rank:
            queue = queues[rank][to]
            queue.send(clock[to])
            told[made] = [(about, clock[about]) for about in queue.news]
    return {channel: queues[channel.source][channel.destination].depth for channel in every}


@dataclass(slots=True)
class _Queue:
    """One channel's queue, as its sender knows it."""

    news: tuple[int, ...]
    taken_at: list[int] = field(default_factory=list)  # where in its row the receiver takes each message
    sent: int = 0
    taken: int = 0
    depth: int = 0

    def send(self, receiver_ran: int) -> None:
        """One more message, at a moment when the receiver has surely run its first `receiver_ran` actions."""
        self.sent += 1
        while self.taken < len(self.taken_at) and self.taken_at[self.taken] < receiver_ran:
            self.taken += 1
        self.depth = max(self.depth, self.sent - self.taken)


def _news(every: Collection[Channel]) -> dict[Channel, tuple[int, ...]]:
    """For each channel, the ranks about which its messages may tell the receiver something of use.

    Rank a needs to hear of rank b if it sends to b. Such news travels from b to a along channels; whoever lies on a
    path that passes b or a on the way need not carry it, as b itself knows better and a already knows.
    """
    into: dict[int, list[int]] = {}
    out: dict[int, list[int]] = {}
    for source, destination in every:
        out.setdefault(source, []).append(destination)
        into.setdefault(destination, []).append(source)
    carries: dict[Channel, set[int]] = {channel: set() for channel in every}
    for a, b in every:
        on_the_way = (_reach(b, a, out) & _reach(a, b, into)) | {a, b}
        for x in on_the_way - {a}:
            for y in out.get(x, ()):
                if y in on_the_way and y != b:
                    carries[Channel(x, y)].add(b)
    return {channel: tuple(sorted(about)) for channel, about in carries.items()}


def _reach(start: int, barrier: int, neighbours: Mapping[int, list[int]]) -> set[int]:
    """The ranks that lie on paths from `start` which end before `barrier`."""
    found = {start}
    todo = [start]
    while todo:
        for rank in neighbours.get(todo.pop(), ()):
            if rank not in found and rank != barrier:
                found.add(rank)
                todo.append(rank)
    return found
