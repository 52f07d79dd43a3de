"""The processes that a job is made of: one when started plainly, several under torchrun."""

import os
from typing import Any, TypeVar

import torch
import torch.distributed as dist

T = TypeVar("T")


def is_distributed() -> bool:
    """Whether this process is one of several, as torchrun or an initialised torch.distributed says."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_world_size() > 1
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


def initialise() -> None:
    """Join the other processes, unless that was done before: gloo for CPUs and, where there is CUDA, NCCL for GPUs."""
    if not dist.is_initialized():
        dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")


def process_count() -> int:
    """How many processes there are; 1 when started plainly."""
    if not is_distributed():
        return 1
    initialise()
    return dist.get_world_size()


def process_rank() -> int:
    """Which of them this is; 0 when started plainly."""
    if not is_distributed():
        return 0
    initialise()
    return dist.get_rank()


def from_first(value: T) -> T:
    """The `value` that the first process has, in every process. Every process must call it."""
    if not is_distributed():
        return value
    initialise()
    shared: list[Any] = [value]
    dist.broadcast_object_list(shared, src=0)
    result: T = shared[0]
    return result


def from_all(value: T) -> list[T]:
    """The `value` of every process, by rank. Every process must call it."""
    if not is_distributed():
        return [value]
    initialise()
    everywhere: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everywhere, value)
    return everywhere
