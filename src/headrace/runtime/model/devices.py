"""On which device each rank computes."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

Devices = None | str | torch.device | Sequence[str | torch.device]


def devices_of_ranks(devices: Devices, layers_of_rank: Sequence[Mapping[str, nn.Module]]) -> list[torch.device]:
    """One device per rank.

    Args:
        devices: None for where each rank's layers are; one device for all, where "cuda" without a number gives rank r
            the device r modulo how many there are; or one per rank.
        layers_of_rank: the layers that each rank holds.

    Raises:
        TypeError, ValueError: `devices` names no device, or not one per rank.
    """
    ranks = len(layers_of_rank)
    if devices is None:
        return [_where(layers) for layers in layers_of_rank]
    if not isinstance(devices, (str, torch.device, Sequence)):
        raise TypeError(f"devices={devices!r} must be one device, or a sequence with one per rank")
    if isinstance(devices, (str, torch.device)):
        return [_device(devices, rank) for rank in range(ranks)]
    if len(devices) != ranks:
        raise ValueError(f"devices has {len(devices)} entries for {ranks} ranks: give one per rank, or one for all")
    return [_device(device, rank) for rank, device in enumerate(devices)]


def _device(device: Any, rank: int) -> torch.device:
    try:
        result = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ValueError(f"devices={device!r} is no device that torch knows: use cpu, cuda or cuda:0") from error
    if result.type == "cuda":
        count = torch.cuda.device_count()
        if count == 0:
            raise ValueError(f"devices={device!r}, but torch sees no CUDA device on this machine")
        if str(result) == "cuda":  # without a number
            result = torch.device("cuda", rank % count)
    return result


def _where(layers: Mapping[str, nn.Module]) -> torch.device:
    found = {tensor.device for layer in layers.values() for tensor in (*layer.parameters(), *layer.buffers())}
    if len(found) > 1:
        raise ValueError(
            f"layers {', '.join(layers)} are on several devices ({', '.join(map(str, found))}) but belong to one rank: "
            "say with devices= where each rank computes"
        )
    return found.pop() if found else torch.device("cpu")
