"""How long a message takes from rank to rank, measured by a small ping-pong through the real transport.

rank 0   ●──────▶     ◀──────●        half of a round trip of a tiny message: the latency;
rank 1         ●──────●               what a large one takes beyond that, by its bytes: the bandwidth
"""

import time
from dataclasses import dataclass
from functools import partial
from statistics import median, quantiles
from typing import Final

import torch
from torch import nn

from headrace.costs import Seconds
from headrace.runtime.pipeline import Pipeline
from headrace.runtime.transport.distributed.transport import Links
from headrace.runtime.work import Endpoint
from headrace.schedule.messages import Message
from headrace.schedule.numbers import at_least

_LARGE: Final = 4 * 1024 * 1024
_ROUNDS: Final = 20


@dataclass(frozen=True)
class LinkProfile:
    """The slowest of the links between neighbouring ranks.

    Attributes:
        latency: seconds of a message without content.
        bandwidth: bytes per second beyond that; None if content adds nothing, as between threads of one device.
        spread: seconds between the first and the third quartile of the latency.
    """

    latency: Seconds
    bandwidth: float | None
    spread: Seconds


def measure_links(ranks: int, *, links: Links = "auto") -> LinkProfile:
    """Measure the links between neighbours of `ranks` ranks, one after the other; every process must call it.

    Raises:
        ValueError: there are fewer than two ranks, or under torchrun not as many as processes.
    """
    at_least(2, ranks=ranks)
    model = nn.Sequential(*(nn.Linear(1, 1) for _ in range(ranks)))
    with Pipeline(model, nn.functional.mse_loss, ranks=ranks, micro_batches=1, links=links) as pipe:
        outcomes = pipe._transport.run(partial(_ping_pong, last=ranks - 1))
        everywhere: dict[int, tuple[list[Seconds], list[Seconds]]] = {}
        for part in pipe._transport.gather(outcomes):
            everywhere.update({rank: times for rank, times in part.items() if times is not None})
    slowest = max(everywhere.values(), key=lambda times: median(times[1]))
    small, large = slowest
    first, _, third = quantiles(small, n=4, method="inclusive")
    latency = median(small)
    beyond = median(large) - latency
    # between threads a message is handed over, not copied: a difference within the spread is no bandwidth
    bandwidth = _LARGE / beyond if beyond > max(third - first, 0.2 * latency) else None
    return LinkProfile(latency, bandwidth, third - first)


def _ping_pong(rank: int, endpoint: Endpoint, last: int) -> tuple[list[Seconds], list[Seconds]] | None:
    """What a rank does: answers the rank before it, then measures the link to the next one, if there is one."""
    if rank > 0:
        for number in range(2 * _ROUNDS):
            payload = endpoint.receive(rank - 1, Message("activation", rank, number))
            endpoint.send(rank - 1, Message("gradient", rank - 1, number), payload)
    return None if rank == last else _measured(rank + 1, endpoint)


def _measured(peer: int, endpoint: Endpoint) -> tuple[list[Seconds], list[Seconds]]:
    sizes = (torch.zeros(1), torch.zeros(_LARGE // 4))
    times: tuple[list[Seconds], list[Seconds]] = ([], [])
    for number in range(2 * _ROUNDS):
        which = number % 2
        start = time.perf_counter()
        endpoint.send(peer, Message("activation", peer, number), (sizes[which],))
        endpoint.receive(peer, Message("gradient", peer - 1, number))
        times[which].append((time.perf_counter() - start) / 2)
    return times
