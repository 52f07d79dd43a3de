"""Which transport a pipeline gets: threads when started plainly, processes under torchrun."""

import os
from collections.abc import Sequence

import torch
import torch.distributed as dist

from headrace.runtime.transport.base import Transport
from headrace.runtime.transport.distributed import DistributedTransport, Links
from headrace.runtime.transport.local import LocalTransport


def is_distributed() -> bool:
    """Whether this process is one of several that torchrun started, or torch.distributed was told so."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_world_size() > 1
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


def choose_transport(devices: Sequence[torch.device], rank_of: Sequence[int], links: Links) -> Transport:
    """The transport for ranks on `devices`, of which `rank_of` tells who holds each stage.

    Raises:
        ValueError: under torchrun, the number of processes is not the number of ranks.
    """
    if not is_distributed():
        return LocalTransport(devices, rank_of)
    return DistributedTransport(devices, rank_of, links)
