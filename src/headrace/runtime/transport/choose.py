"""Which transport a pipeline gets: threads when started plainly, processes under torchrun."""

from collections.abc import Callable
from typing import get_args

from headrace.runtime.prepare import Prepared
from headrace.runtime.process.processes import is_distributed
from headrace.runtime.transport.base import Transport
from headrace.runtime.transport.distributed.transport import DistributedTransport, Links
from headrace.runtime.transport.local.transport import LocalTransport


def choose_transport(prepare: Callable[[], Prepared], links: Links) -> tuple[Transport, Prepared]:
    """The transport for what `prepare` prepares, and that.

    Under torchrun the processes find each other first, so that what `prepare` raises in one stops all.

    Raises:
        ValueError: under torchrun, the number of processes is not the number of ranks; or whatever `prepare` raises.
    """
    if not is_distributed():
        if links not in get_args(Links):
            raise ValueError(f"links={links!r} must be one of {', '.join(get_args(Links))}")
        prepared = prepare()
        return LocalTransport(prepared.devices), prepared
    kept: list[Prepared] = []  # not in the transport, which would keep the layers of all ranks alive

    def prepare_once() -> Prepared:
        kept.append(prepare())
        return kept[0]

    return DistributedTransport(prepare_once, links), kept[0]
