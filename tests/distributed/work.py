"""What workers do for several test modules: make pipelines of cases, train them, and say what came of it."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
import torch.distributed as dist
from runtime.cases import Case, make
from torch import Tensor

import headrace as hr
from headrace.runtime.model.warn import BatchStatisticsWarning
from headrace.schedule import Schedule

SEED: Final = 1
STEPS: Final = 3


@dataclass(frozen=True)
class Trained:
    """What a process held after some steps.

    Attributes:
        losses: of each step.
        gradients: by name, of each step.
        state: parameters and buffers by name, after the last step.
    """

    losses: list[Tensor]
    gradients: list[dict[str, Tensor | None]]
    state: dict[str, Tensor]


@dataclass(frozen=True)
class Setting:
    """How a case is run: arguments for Pipeline, and who gets the batch: "everywhere", "where needed", "garbage"."""

    case: str
    ranks: int
    micro_batches: int
    schedule: str | Schedule = "1f1b"
    recompute: str = "never"
    links: str = "auto"
    batch: str = "everywhere"

    def pipeline(self, case: Case) -> hr.Pipeline:
        schedule = self.schedule
        stages = self.ranks if isinstance(schedule, str) else schedule.stages
        return hr.Pipeline(
            case.model,
            case.loss_fn,
            ranks=self.ranks,
            micro_batches=self.micro_batches,
            schedule=schedule,
            recompute=self.recompute,
            cut=case.cut(stages),
            links=self.links,  # type: ignore[arg-type]
            **case.options,
        )


def train(setting: Setting) -> Trained:
    """Train a case in this process, which may be all of the pipeline or one rank of it."""
    warnings.simplefilter("ignore", BatchStatisticsWarning)
    case = make(setting.case)
    torch.manual_seed(SEED)
    with setting.pipeline(case) as pipe:
        parameters = list(pipe.parameters())
        optimizer = torch.optim.SGD(parameters, 0.1, momentum=0.9) if parameters else None
        losses, grads = [], []
        for step in range(STEPS):
            losses.append(pipe.step(*_for_this_rank(setting, *case.batch(step))))
            grads.append({n: None if p.grad is None else p.grad.clone() for n, p in pipe.named_parameters()})
            if optimizer is not None:
                optimizer.step()
                optimizer.zero_grad()
        return Trained(losses, grads, {n: t.clone() for n, t in pipe.state_dict().items()})


def _for_this_rank(setting: Setting, x: Any, y: Any) -> tuple[Any, Any]:
    if setting.batch == "everywhere" or not dist.is_initialized():
        return x, y
    rank_of = (0, setting.ranks - 1) if isinstance(setting.schedule, str) else setting.schedule.placement.rank_of
    nothing = None if setting.batch == "where needed" else object()
    rank = dist.get_rank()
    return x if rank == rank_of[0] else nothing, y if rank == rank_of[-1] else nothing


def together(parts: Sequence[Trained]) -> Trained:
    """What all ranks hold, as one; losses must be the same everywhere."""
    for part in parts:
        assert [bits(loss) for loss in part.losses] == [bits(loss) for loss in parts[0].losses]
    grads: list[dict[str, Tensor | None]] = [{} for _ in parts[0].gradients]
    state: dict[str, Tensor] = {}
    for part in parts:
        for step, of_part in zip(grads, part.gradients, strict=True):
            assert not step.keys() & of_part.keys()
            step.update(of_part)
        assert not state.keys() & part.state.keys()
        state.update(part.state)
    return Trained(parts[0].losses, grads, state)


def bits(tensor: Tensor) -> bytes:
    """The memory of a tensor."""
    flat = tensor.contiguous().as_strided((tensor.numel(),), (1,))
    return flat.view(torch.uint8).numpy().tobytes() if tensor.numel() else b""
