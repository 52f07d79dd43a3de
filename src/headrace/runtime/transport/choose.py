"""Which transport a pipeline gets: threads when started plainly, processes under torchrun."""

from collections.abc import Callable, Sequence

import torch

from headrace.runtime.process.processes import is_distributed
from headrace.runtime.transport.base import Transport
from headrace.runtime.transport.distributed.transport import DistributedTransport, Links
from headrace.runtime.transport.local.transport import LocalTransport


def choose_transport(prepare: Callable[[], tuple[Sequence[torch.device], Sequence[int]]], links: Links) -> Transport:
    """The transport for a pipeline, of which `prepare` gives the device of each rank, and who holds each stage.

    Under torchrun the processes find each other first, so that what `prepare` raises in one stops all.

    Raises:
        ValueError: under torchrun, the number of processes is not the number of ranks; or whatever `prepare` raises.
    """
    if not is_distributed():
        return LocalTransport(*prepare())
    return DistributedTransport(prepare, links)
