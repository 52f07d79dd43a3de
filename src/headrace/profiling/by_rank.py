"""Measure the layers as the ranks will run them, on each device that there is.

    rank       0          1          2          3
    device     CPU of host a         GPU 0 and 1 of host b
    measured   yes        as 0       yes        yes          at once; ranks that share a device would only disturb
    slowness   1          1          0.2        0.2          each other, so the first of them measures for all

Numbers are those of rank 0. Of the other devices only the sum over the layers counts, beside that of rank 0: how layers
compare is taken to be the same everywhere.
"""

import platform
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from torch import nn

from headrace.costs import Number
from headrace.profiling.layer_profile import LayerProfile
from headrace.profiling.measure import profile
from headrace.runtime.batch.loss import LossFn
from headrace.runtime.process.processes import from_all, process_count, process_rank
from headrace.runtime.process.shares import computing_as_a_rank
from headrace.runtime.stage.boundary import Value, take_apart
from headrace.runtime.transport.distributed.same_host import host_identity
from headrace.schedule.numbers import at_least

_ALIKE: Final = 0.1
"""Devices whose measurements differ by less than this share count as alike: so much two measurements of one may."""


@dataclass(frozen=True)
class RankProfiles:
    """What the layers take.

    Attributes:
        first: on the device of rank 0.
        slowness: of each rank: what seconds of `first` are multiplied by there, 2 for a device half as fast; one number
            if all are alike.
    """

    first: LayerProfile
    slowness: Number | tuple[Number, ...] = 1


def profile_by_rank(
    model: nn.Sequential, sample: Value, ranks: int, *, loss_fn: LossFn | None = None, target: Value = None
) -> RankProfiles:
    """`profile` on each device, with the intra-op threads that each of `ranks` ranks will have.

    What ranks that compute at once cost each other, only `rehearsed` knows. Under torchrun every process must call it,
    and gets the same numbers; if there are not as many processes as ranks, those of the first one alone.

    Raises:
        TypeError, ValueError: as `profile`, in every process.
    """
    at_least(1, ranks=ranks)
    devices = from_all(_device(model, sample))
    everywhere: list[Any] = from_all(_measured(model, sample, ranks, loss_fn, target) if _measures(devices) else None)
    for found in everywhere:
        if isinstance(found, Exception):
            raise found
    profiles: list[LayerProfile] = [everywhere[devices.index(device)] for device in devices]
    return RankProfiles(profiles[0], _slowness(profiles) if len(profiles) == ranks else 1)


def profile_as_rank(
    model: nn.Sequential, sample: Value, ranks: int, *, loss_fn: LossFn | None = None, target: Value = None
) -> LayerProfile:
    """`profile`, with the intra-op threads that each of `ranks` ranks will have.

    Under torchrun every process must call it, and gets what the first one measured.

    Raises:
        TypeError, ValueError: as `profile`, in every process.
    """
    return profile_by_rank(model, sample, ranks, loss_fn=loss_fn, target=target).first


def _measures(devices: Sequence[str]) -> bool:
    """Whether this process is the first with its device."""
    return devices.index(devices[process_rank()]) == process_rank()


def _measured(model: nn.Sequential, sample: Value, ranks: int, loss_fn: LossFn | None, target: Value) -> Any:
    """A profile, or what went wrong, which all processes have to hear of."""
    try:
        with computing_as_a_rank(ranks):
            return profile(model, sample, loss_fn=loss_fn, target=target)
    except Exception as error:
        if process_count() == 1:
            raise
        return error


def _device(model: nn.Sequential, sample: Value) -> str:
    """Equal in processes that compute on one and the same device."""
    tensors = (*model.parameters(), *model.buffers(), *take_apart(sample, "sample")[0])
    names = sorted({str(tensor.device) for tensor in tensors if tensor.device.type != "cpu"})
    return " ".join([host_identity() or platform.node(), *names])


def _slowness(profiles: Sequence[LayerProfile]) -> Number | tuple[Number, ...]:
    seconds = [sum(each.costs) for each in profiles]
    beside = [each / seconds[0] if seconds[0] else 1.0 for each in seconds]
    if all(abs(times - 1) <= _ALIKE for times in beside):
        return 1
    return tuple(beside)
