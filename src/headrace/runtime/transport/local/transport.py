"""All ranks in one process: a thread each, and messages that are handed over.

On one device a message is handed over as it is, without a copy. Between CUDA devices it is copied on streams of its
own, so that compute on either side goes on.
"""

import os
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from queue import SimpleQueue
from typing import Any, NamedTuple, TypeVar

import torch

from headrace.runtime.failure import Stopped
from headrace.runtime.process.context import CallerContext
from headrace.runtime.transport.local.carrier import Carrier
from headrace.runtime.transport.local.mailbox import Mailbox
from headrace.runtime.transport.local.threads import RankThread, start_threads
from headrace.runtime.work import Endpoint
from headrace.schedule.messages import Message
from headrace.timeline import ClockOffset

T = TypeVar("T")


class LocalTransport:
    """Runs every rank in a thread of this process.

    Args:
        devices: where each rank computes.
    """

    def __init__(self, devices: Sequence[torch.device]) -> None:
        self.held_ranks = tuple(range(len(devices)))
        self.alone = True
        self._devices = list(devices)
        self._process = os.getpid()
        self._carrier = Carrier(devices)
        self._threads = start_threads([f"headrace rank {rank}" for rank in self.held_ranks])
        self._end = weakref.finalize(self, _close, self._threads)

    def run(self, task: Callable[[int, Endpoint], T]) -> dict[int, T]:
        """Do `task(rank, endpoint)` on every rank at once; the results by rank.

        Raises:
            PipelineFailure: a rank failed; the others stopped.
            KeyboardInterrupt: the user interrupted; all ranks stopped.
        """
        if not self._end.alive:
            raise RuntimeError("this pipeline is closed: make a new one")
        self._refuse_from_inside()
        if os.getpid() != self._process:
            raise RuntimeError("this pipeline belongs to the process that forked this one: make a new one here")
        boxes = [Mailbox() for _ in self._devices]
        context = CallerContext({device.type for device in self._devices})
        outcomes: list[_Outcome] = []

        def job(rank: int) -> None:
            endpoint = _LocalEndpoint(rank, boxes, self._carrier)
            try:
                with self._carrier.computing_on(rank):
                    result = context.run(lambda: task(rank, endpoint))
                outcomes.append(_Outcome(rank, result))
            except BaseException as error:
                outcomes.append(_Outcome(rank, None, error))
                for box in boxes:
                    box.stop()

        finished: SimpleQueue[None] = SimpleQueue()
        for rank, thread in enumerate(self._threads):
            thread.do(partial(job, rank), partial(finished.put, None))
        interrupt = _await(len(boxes), finished, boxes)
        if interrupt is not None:
            raise interrupt
        first = next((o.error for o in outcomes if o.error and not isinstance(o.error, Stopped)), None)
        if first is not None:
            raise first
        return {outcome.rank: outcome.result for outcome in outcomes}

    def close(self) -> None:
        """End the threads; also done when the transport is dropped, and at exit."""
        self._refuse_from_inside()
        self._end()

    def _refuse_from_inside(self) -> None:
        if any(thread.is_current() for thread in self._threads):
            raise RuntimeError("a layer or loss function used the pipeline it runs in, which would wait for itself")

    def guarded(self, work: Callable[[], T]) -> T:
        """Do `work`: there are no other processes to tell."""
        return work()

    def interrupted(self, error: BaseException) -> None:
        """There are no other processes to tell."""

    def agree(self, **settings: Any) -> None:
        """There is nobody to disagree with."""

    def share(self, value: Any, rank: int) -> Any:  # noqa: ARG002 - see Transport
        """The value: every rank is in this process."""
        return value

    def gather(self, value: T) -> list[T]:
        """What every process has: this one's value."""
        return [value]

    def clock_offset(self, begin: float) -> ClockOffset:  # noqa: ARG002 - see Transport
        """Nothing: the ranks share a clock."""
        return ClockOffset(0.0, 0.0)


class _Outcome(NamedTuple):
    rank: int
    result: Any
    error: BaseException | None = None


def _await(ranks: int, finished: "SimpleQueue[None]", boxes: list[Mailbox]) -> KeyboardInterrupt | None:
    """Wait for all ranks; they stop early if the user interrupts."""
    interrupted = None
    waiting = ranks
    while waiting:
        try:
            finished.get()
        except KeyboardInterrupt as interrupt:
            interrupted = interrupt
            for box in boxes:
                box.stop()
            continue
        waiting -= 1
    return interrupted


class _LocalEndpoint:
    def __init__(self, rank: int, boxes: list[Mailbox], carrier: Carrier) -> None:
        self._rank = rank
        self._boxes = boxes
        self._carrier = carrier

    def send(self, to: int, message: Message, payload: Any) -> None:
        self._boxes[self._rank].raise_if_stopped()
        self._boxes[to].put(message, self._carrier.load(payload, self._rank, to))

    def receive(self, source: int, message: Message) -> Any:  # noqa: ARG002 - a mailbox takes from everybody
        return self._carrier.unload(self._boxes[self._rank].get(message), self._rank)


def _close(threads: list[RankThread]) -> None:
    for thread in threads:
        thread.close()
