"""A process per rank, on one host or many, as torchrun starts them.

`links` says how neighbours reach each other:

    "auto"            shared memory between CPU ranks on one host, torch.distributed otherwise
    "shared_memory"   shared memory only; refused where it cannot work
    "process_group"   torch.distributed only: gloo between CPUs, NCCL between GPUs

Each pipeline has groups, sockets and an alarm of its own, so that several can live in the same processes.
"""

import os
import weakref
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from itertools import combinations, pairwise
from typing import Any, Final, Literal, Protocol, TypeVar, cast

import torch
import torch.distributed as dist

from headrace.runtime.failure import PipelineFailure
from headrace.runtime.prepare import Prepared
from headrace.runtime.process.alignment import Alignment
from headrace.runtime.process.processes import initialise
from headrace.runtime.transport.distributed.alarm import Alarm
from headrace.runtime.transport.distributed.collective import Collective
from headrace.runtime.transport.distributed.inbox import Inbox
from headrace.runtime.transport.distributed.process_group import ProcessGroupLink
from headrace.runtime.transport.distributed.same_host import connect, host_identity
from headrace.runtime.transport.distributed.shared_memory import SharedMemoryLink
from headrace.runtime.transport.distributed.wire import Packed, pack
from headrace.runtime.work import Endpoint
from headrace.schedule.messages import Message
from headrace.schedule.placement import Placement
from headrace.timeline import ClockOffset

T = TypeVar("T")
Links = Literal["auto", "shared_memory", "process_group"]

_IDLE: Final = timedelta(days=365)
"""A pipeline may idle between steps for as long as it likes: failures are noticed by other means than timeouts."""


class _Link(Protocol):
    def send(self, packed: Packed) -> None: ...
    def finish(self) -> None: ...
    def say_goodbye(self) -> None: ...
    def close(self) -> None: ...


class DistributedTransport:
    """Runs one rank in this process; the other processes run the others.

    Args:
        prepare: says what will run; what it raises in one process, all processes hear.
        links: see the module.

    Raises:
        ValueError: there are not as many processes as ranks, processes disagree, or `links` cannot work here.
        PipelineFailure: another process could not prepare.
    """

    def __init__(self, prepare: Callable[[], Prepared], links: Links) -> None:
        initialise()
        self._rank = dist.get_rank()
        processes = dist.get_world_size()
        self.held_ranks = (self._rank,)
        self.alone = processes == 1
        self._alarm = Alarm(self._rank, processes, _from_first)
        self._inbox = Inbox(self._alarm)
        self._collective = Collective(self._alarm, self._inbox)
        self._links: dict[int, _Link] = {}
        self._groups: list[Any] = []
        self._round = 0
        self._end = weakref.finalize(self, _close, os.getpid(), self._links, self._alarm, self._inbox, self._groups)
        try:
            prepared = self._all_manage(lambda: _checked(prepare, links, processes))
            self._connect(prepared, links)
            self._alignment = self.guarded(lambda: Alignment(self._alarm.ask_the_time)) if self._rank else None
        except BaseException:
            self.close()
            raise

    def run(self, task: Callable[[int, Endpoint], T]) -> dict[int, T]:
        """Do `task` for the rank of this process.

        Raises:
            PipelineFailure: a rank failed, here or elsewhere.
        """
        self._round += 1
        endpoint = _DistributedEndpoint(self._rank, self._round, self._links, self._inbox)

        def work() -> T:
            result = task(self._rank, endpoint)
            for link in self._links.values():
                link.finish()
            return result

        return {self._rank: self.guarded(work)}

    def guarded(self, work: Callable[[], T]) -> T:
        """Do `work`; whatever it raises, all other processes stop with that cause."""
        self._refuse_if_over()
        try:
            return work()
        except BaseException as error:
            if self._give_up(error):
                raise
        raise self._alarm.failure()

    def _give_up(self, error: BaseException) -> bool:
        """Tell all; whether nobody else failed before."""
        mine = error if isinstance(error, PipelineFailure) else PipelineFailure.of(self._rank, None, error)
        first = self._alarm.ring(mine)
        for link in self._links.values():
            link.say_goodbye()
        return first == mine

    def interrupted(self, error: BaseException) -> None:
        """Tell all of an interrupt that came outside of `guarded`; nothing where a failure is known already."""
        self._give_up(error)

    def agree(self, **settings: Any) -> None:
        """Compare settings between processes.

        Raises:
            ValueError: one differs; the message names it, and who has what.
        """
        everywhere = self.gather(settings)
        for name in settings:
            for rank, theirs in enumerate(everywhere):
                if theirs[name] != everywhere[0][name]:
                    raise ValueError(
                        f"{name} differs between processes: rank 0 has {_short(everywhere[0][name])}, "
                        f"rank {rank} has {_short(theirs[name])}. Every process must make the same Pipeline"
                        + (" (measure a cut in one process and broadcast it)" if name == "cut" else "")
                    )

    def share(self, value: Any, rank: int) -> Any:
        """In every process the `value` that the process of `rank` has; tensors arrive on the CPU."""
        mine = value if rank == self._rank else None
        shared = self.gather(mine)[rank]
        return value if rank == self._rank else shared

    def gather(self, value: T) -> list[T]:
        """The `value` of every process, by rank.

        Raises:
            PipelineFailure: a process has failed.
        """
        return self.guarded(lambda: self._collective.gather(value))

    def clock_offset(self, begin: float) -> ClockOffset:
        """What moves this process's moments from `begin` until now to the clock of rank 0.

        Raises:
            PipelineFailure: rank 0 is gone.
        """
        alignment = self._alignment
        if alignment is None:
            return ClockOffset(0.0, 0.0)
        return self.guarded(lambda: alignment.since(begin))

    def close(self) -> None:
        """Close the connections; also done when the transport is dropped, and at exit.

        torch.distributed itself stays initialised.
        """
        self._end()

    def _refuse_if_over(self) -> None:
        if not self._end.alive:
            raise RuntimeError("this pipeline is closed: make a new one")
        self._alarm.refuse_if_rung()

    def _all_manage(self, work: Callable[[], T]) -> T:
        """Do `work`, and go on only if it raised nothing in any process."""
        result: T | None = None
        mistake: BaseException | None = None
        try:
            result = work()
        except BaseException as error:
            mistake = error
        try:
            heard = self.gather(None if mistake is None else PipelineFailure.of(self._rank, None, mistake))
            if mistake is not None:
                raise mistake
        finally:
            del mistake  # or it would refer to itself, by its traceback and this frame
        if any(heard):
            raise next(filter(None, heard))
        return cast("T", result)

    def _connect(self, prepared: Prepared, links: Links) -> None:
        devices, placement = prepared.devices, prepared.schedule.placement
        self.agree(ranks=len(devices), placement=placement, links=links)
        pairs = sorted(_who_meets(placement))
        # each process knows best where its own rank computes
        whereabouts = self.gather((devices[self._rank], host_identity()))
        on_cpu = [device.type == "cpu" for device, _ in whereabouts]
        on_cuda = [device.type == "cuda" for device, _ in whereabouts]
        hosts = [host for _, host in whereabouts]
        near = {(a, b) for a, b in pairs if on_cpu[a] and on_cpu[b] and hosts[a] == hosts[b] != ""}
        if links == "process_group":
            near = set()
        for a, b in pairs:
            if links == "shared_memory" and (a, b) not in near:
                why = "are on different hosts" if on_cpu[a] and on_cpu[b] else "do not both compute on CPUs"
                raise ValueError(f'links="shared_memory", but ranks {a} and {b} {why}: use links="auto"')
        peers = [b for a, b in pairs if a == self._rank]
        neighbours = [peer for peer in peers if (self._rank, peer) in near]
        for peer, connection in connect(self._rank, neighbours, self.gather).items():
            self._links[peer] = SharedMemoryLink(peer, connection, self._inbox, self._alarm)
        if near == set(pairs):
            return
        control = self._new_group("gloo")
        nccl = {(a, b): self._new_group("nccl", [a, b]) for a, b in pairs if on_cuda[a] and on_cuda[b]}
        for peer in set(peers) - set(neighbours):
            self._links[peer] = ProcessGroupLink(
                peer,
                devices[self._rank],
                control,
                nccl.get((self._rank, peer)),
                nccl.get((peer, self._rank)),
                self._inbox,
                self._alarm,
            )

    def _new_group(self, backend: str, ranks: list[int] | None = None) -> Any:
        group = dist.new_group(ranks, backend=backend, timeout=_IDLE)
        if ranks is None or self._rank in ranks:
            self._groups.append(group)
        return group


def _who_meets(placement: Placement) -> set[tuple[int, int]]:
    """The pairs of ranks that exchange messages, both ways: neighbours in a lane, and holders of the same stage."""
    hops = {hop for lane in placement.lanes for hop in pairwise(lane)}
    for stage in range(placement.stages):
        hops.update(combinations(placement.replicas_of(stage), 2))
    return {pair for a, b in hops if a != b for pair in ((a, b), (b, a))}


def _from_first(value: T) -> T:
    """In every process the `value` that rank 0 has; the first exchange, which needs no pipeline yet."""
    group = None
    if torch.device("cpu") not in dist.distributed_c10d._get_default_group()._device_types:
        group = dist.new_group(backend="gloo")
    shared = [value]
    try:
        dist.all_reduce(torch.zeros(1), group=group)  # unlike a broadcast, it notices if anybody is gone
        dist.broadcast_object_list(shared, src=0, group=group)
    except RuntimeError as error:
        raise RuntimeError(f"a process ended before it came to make this pipeline: {error}") from error
    return shared[0]


def _checked(prepare: Callable[[], Prepared], links: Links, processes: int) -> Prepared:
    if links not in ("auto", "shared_memory", "process_group"):
        raise ValueError(f'links={links!r} must be "auto", "shared_memory" or "process_group"')
    prepared = prepare()
    ranks = len(prepared.devices)
    if processes != ranks:
        raise ValueError(
            f"ranks={ranks}, but there are {processes} processes: start as many as there are ranks, "
            f"such as torchrun --nproc-per-node {ranks}"
        )
    return prepared


def _close(creator: int, links: dict[int, _Link], alarm: Alarm, inbox: Inbox, groups: list[Any]) -> None:
    if os.getpid() != creator:  # a forked child has copies that it must not say goodbye with
        return
    for link in links.values():
        link.say_goodbye()
    for link in links.values():
        link.close()
    alarm.close()
    inbox.close()
    for group in groups:
        with suppress(RuntimeError, ValueError):  # the user ended torch.distributed before
            dist.destroy_process_group(group)
    groups.clear()


class _DistributedEndpoint:
    def __init__(self, rank: int, round_number: int, links: dict[int, _Link], inbox: Inbox) -> None:
        self._rank = rank
        self._round = round_number
        self._links = links
        self._inbox = inbox

    def send(self, to: int, message: Message, payload: Any) -> None:
        if to == self._rank:
            self._inbox.keep((self._round, message), payload)
        else:
            self._links[to].send(pack(self._round, message, payload))

    def receive(self, source: int, message: Message) -> Any:
        return self._inbox.receive((self._round, message), source)


def _short(value: Any) -> str:
    text = repr(value) if not isinstance(value, str) else value
    return text if len(text) <= 200 else text[:200] + " …"
