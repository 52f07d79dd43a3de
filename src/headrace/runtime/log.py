"""What a rank did when, and the step that the logs of all ranks make together.

rank 0   0F3  sent to 1      ─┐
                              ├─ one Transfer
rank 1   1F3  asked of 0, got ┘      moments of each rank's own clock, moved to that of rank 0

On a GPU, spans are when it computed, but messages are when its host handed them over and took them.
"""

from collections.abc import Iterable, Sequence
from math import inf
from time import perf_counter
from typing import Any

from headrace.runtime.work import Endpoint, Log
from headrace.schedule.messages import Message
from headrace.timeline import ClockOffset, Timeline, Transfer


class LoggedEndpoint:
    """An endpoint that notes in `log` when messages of other ranks come and go. Payloads are as with any endpoint."""

    def __init__(self, endpoint: Endpoint, log: Log) -> None:
        self._endpoint = endpoint
        self._log = log

    def send(self, to: int, message: Message, payload: Any) -> None:
        """See `Endpoint`."""
        begin = perf_counter()
        self._endpoint.send(to, message, payload)
        if to != self._log.rank:
            self._log.sent.append((to, message, begin, perf_counter()))

    def receive(self, source: int, message: Message) -> Any:
        """See `Endpoint`."""
        begin = perf_counter()
        payload = self._endpoint.receive(source, message)
        if source != self._log.rank:
            self._log.received.append((source, message, begin, perf_counter()))
        return payload


def begin_of(logs: Sequence[Log]) -> float:
    """The first moment in `logs`; later than any other if there is none."""
    starts = [log.spans[0].start for log in logs if log.spans]
    return min([*starts, *(log.received[0][2] for log in logs if log.received)], default=inf)


def joined(ranks: int, parts: Iterable[tuple[Sequence[Log], ClockOffset]]) -> Timeline:
    """The timeline of a step; its seconds count from the first start on any rank.

    Args:
        ranks: how many there are.
        parts: from each process the logs of its ranks, and what moves its clock to that of rank 0.
    """
    logs = [(log, clock) for part, clock in parts for log in part]
    clocks = {log.rank: clock for log, clock in logs}
    origin = min((span.start + clock.offset for log, clock in logs for span in log.spans), default=0.0)
    moved = {rank: clock.offset - origin for rank, clock in clocks.items()}
    spans = (
        span._replace(start=span.start + moved[span.rank], end=span.end + moved[span.rank])
        for log, _ in logs
        for span in log.spans
    )
    came = {(source, log.rank, message): times for log, _ in logs for source, message, *times in log.received}
    transfers = []
    for log, _ in logs:
        for to, message, sent, left in log.sent:
            here, there = moved[log.rank], moved[to]
            asked, got = came[log.rank, to, message]
            transfers.append(Transfer(log.rank, to, message, sent + here, left + here, asked + there, got + there))
    transfers.sort(key=lambda transfer: transfer.sent)
    return Timeline(ranks, spans, transfers, [clocks[rank] for rank in sorted(clocks)])
