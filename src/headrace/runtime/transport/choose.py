"""Which transport a pipeline gets: threads when started plainly, processes under torchrun."""

from collections.abc import Sequence

import torch

from headrace.runtime.processes import is_distributed
from headrace.runtime.transport.base import Transport
from headrace.runtime.transport.distributed import DistributedTransport, Links
from headrace.runtime.transport.local import LocalTransport


def choose_transport(devices: Sequence[torch.device], rank_of: Sequence[int], links: Links) -> Transport:
    """The transport for ranks on `devices`, of which `rank_of` tells who holds each stage.

    Raises:
        ValueError: under torchrun, the number of processes is not the number of ranks.
    """
    if not is_distributed():
        return LocalTransport(devices, rank_of)
    return DistributedTransport(devices, rank_of, links)
