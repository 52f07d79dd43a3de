"""A process per rank, on one host or many, as torchrun starts them.

`links` says how neighbours reach each other:

    "auto"            shared memory between CPU ranks on one host, torch.distributed otherwise
    "shared_memory"   shared memory only; refused where it cannot work
    "process_group"   torch.distributed only: gloo between CPUs, NCCL between GPUs

Each pipeline has groups, sockets and a store of its own, so that several can live in the same processes.
"""

import os
import socket
import weakref
from collections.abc import Callable, Sequence
from datetime import timedelta
from itertools import pairwise
from typing import Any, Final, Literal, Protocol, TypeVar

import torch
import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from headrace.runtime.executor import Endpoint
from headrace.runtime.failure import PipelineFailure
from headrace.runtime.processes import initialise
from headrace.runtime.transport.alarm import Alarm
from headrace.runtime.transport.collective import Collective
from headrace.runtime.transport.inbox import Inbox
from headrace.runtime.transport.process_group import ProcessGroupLink
from headrace.runtime.transport.same_host import connect, host_identity
from headrace.runtime.transport.shared_memory import SharedMemoryLink
from headrace.runtime.transport.wire import Packed, pack
from headrace.schedule.messages import Message

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
        devices: of every rank.
        rank_of: which rank holds which stage.
        links: see the module.

    Raises:
        ValueError: there are not as many processes as ranks, or `links` cannot work here.
    """

    def __init__(self, devices: Sequence[torch.device], rank_of: Sequence[int], links: Links) -> None:
        if links not in ("auto", "shared_memory", "process_group"):
            raise ValueError(f'links={links!r} must be "auto", "shared_memory" or "process_group"')
        initialise()
        self._rank = dist.get_rank()
        processes = dist.get_world_size()
        if processes != len(devices):
            raise ValueError(
                f"ranks={len(devices)}, but there are {processes} processes: start as many as there are ranks, "
                f"such as torchrun --nproc-per-node {len(devices)}"
            )
        self.held_ranks = (self._rank,)
        self._rank_of = rank_of
        self._group = dist.new_group(backend="gloo", timeout=_IDLE)
        self._alarm = self._make_alarm(processes)
        self._inbox = Inbox(self._alarm)
        self._collective = Collective(self._group, self._rank, self._inbox, self._alarm)
        self._links = self._connect(devices, links)
        self._round = 0
        self._end = weakref.finalize(self, _close, list(self._links.values()), self._alarm, self._inbox, self._group)

    def run(self, task: Callable[[int, Endpoint], T]) -> dict[int, T]:
        """Do `task` for the rank of this process.

        Raises:
            PipelineFailure: a rank failed, here or elsewhere.
        """
        self._refuse_if_over()
        self._round += 1
        endpoint = _DistributedEndpoint(self._rank, self._round, self._rank_of, self._links, self._inbox)

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
        except PipelineFailure as failure:
            first = self._alarm.ring(failure)
            if first is failure:
                raise
            raise first from None
        except BaseException as error:
            first = self._alarm.ring(PipelineFailure.of(self._rank, None, error))
            if first.__cause__ is error:
                raise
            raise first from None

    def agree(self, **settings: Any) -> None:
        """Compare settings between processes.

        Raises:
            ValueError: one differs; the message names it, and who has what.
        """
        everywhere = self._collective.gather(settings)
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
        self._refuse_if_over()
        return self._collective.gather(value)

    def close(self) -> None:
        """Close the connections; also done when the transport is dropped, and at exit.

        torch.distributed itself stays initialised.
        """
        self._end()

    def _refuse_if_over(self) -> None:
        if not self._end.alive:
            raise RuntimeError("this pipeline is closed: make a new one")
        self._alarm.raise_if_rung()

    def _make_alarm(self, processes: int) -> Alarm:
        host = os.environ.get("MASTER_ADDR") or socket.gethostname()
        served = TCPStore(host, 0, is_master=True, wait_for_workers=False) if self._rank == 0 else None
        address: list[Any] = [(host, served.port) if served else None]
        dist.broadcast_object_list(address, src=0, group=self._group)
        host, port = address[0]

        def client() -> TCPStore:
            return TCPStore(host, port, is_master=False, wait_for_workers=False)

        return Alarm(served or client(), client(), self._rank, processes)

    def _connect(self, devices: Sequence[torch.device], links: Links) -> dict[int, _Link]:
        hops = [(a, b) for a, b in pairwise(self._rank_of) if a != b]
        pairs = sorted({*hops, *((b, a) for a, b in hops)})
        hosts = self._collective.gather(host_identity())

        def share_memory(a: int, b: int) -> bool:
            on_cpus = devices[a].type == devices[b].type == "cpu"
            possible = on_cpus and hosts[a] == hosts[b] != ""
            if links == "shared_memory" and not possible:
                why = "are on different hosts" if on_cpus else "do not both compute on CPUs"
                raise ValueError(f'links="shared_memory", but ranks {a} and {b} {why}: use links="auto"')
            return possible and links != "process_group"

        peers = [b for a, b in pairs if a == self._rank]
        near = [peer for peer in peers if share_memory(self._rank, peer)]
        found: dict[int, _Link] = {}
        for peer, connection in connect(self._rank, near, self._collective.gather).items():
            found[peer] = SharedMemoryLink(peer, connection, self._inbox, self._alarm)
        nccl = {
            (a, b): dist.new_group([a, b], backend="nccl", timeout=_IDLE)
            for a, b in pairs
            if devices[a].type == devices[b].type == "cuda"
        }
        for peer in set(peers) - set(near):
            found[peer] = ProcessGroupLink(
                peer,
                devices[self._rank],
                self._group,
                nccl.get((self._rank, peer)),
                nccl.get((peer, self._rank)),
                self._inbox,
                self._alarm,
            )
        return found


def _close(links: list[_Link], alarm: Alarm, inbox: Inbox, group: Any) -> None:
    for link in links:
        link.say_goodbye()
    for link in links:
        link.close()
    alarm.close()
    inbox.close()
    if dist.is_initialized():
        dist.destroy_process_group(group)


class _DistributedEndpoint:
    def __init__(
        self, rank: int, round_number: int, rank_of: Sequence[int], links: dict[int, _Link], inbox: Inbox
    ) -> None:
        self._rank = rank
        self._round = round_number
        self._rank_of = rank_of
        self._links = links
        self._inbox = inbox

    def send(self, message: Message, payload: Any) -> None:
        to = self._rank_of[message.stage]
        if to == self._rank:
            self._inbox.keep((self._round, message), payload)
        else:
            self._links[to].send(pack(self._round, message, payload))

    def receive(self, message: Message) -> Any:
        source = self._rank_of[message.stage + (-1 if message.what == "activation" else 1)]
        return self._inbox.receive((self._round, message), source)


def _short(value: Any) -> str:
    text = repr(value) if not isinstance(value, str) else value
    return text if len(text) <= 200 else text[:200] + " …"
