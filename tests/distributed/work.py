"""What workers do for several test modules: make pipelines of cases, train them, and say what came of it."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
import torch.distributed as dist
from runtime.cases import CASES, Case, make
from runtime.delays import OPTIMIZERS
from runtime.parity import cut_of, with_rows_for
from runtime.sequences import tiny_gpt
from torch import Tensor

import headrace as hr
from headrace.runtime.model.warn import BatchStatisticsWarning
from headrace.schedule import Schedule

SEED: Final = 1
STEPS: Final = 3
SEQUENCES: Final = {"gpt": lambda: tiny_gpt(7, 7), "gpt with dropout": lambda: tiny_gpt(7, 8, dropout=0.3)}


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
    """How a case is run: arguments for Pipeline, and who gets the batch: "everywhere", "where needed", "garbage".

    `optimizer` is for asynchronous schedules, a name out of OPTIMIZERS.
    """

    case: str
    ranks: int
    micro_batches: int
    schedule: str | Schedule = "1f1b"
    recompute: str = "never"
    links: str = "auto"
    batch: str = "everywhere"
    optimizer: str | None = None

    def make(self) -> Case:
        """The case, with rows for all micro-batches."""
        case = make(self.case) if self.case in CASES else SEQUENCES[self.case]()
        return with_rows_for(case, self.micro_batches)

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
            cut=cut_of(case, stages),
            optimizer=None if self.optimizer is None else OPTIMIZERS[self.optimizer],
            links=self.links,  # type: ignore[arg-type]
            **case.options,
        )


def train(setting: Setting) -> Trained:
    """Train a case in this process, which may be all of the pipeline or one rank of it."""
    warnings.simplefilter("ignore", BatchStatisticsWarning)
    case = setting.make()
    torch.manual_seed(SEED)
    with setting.pipeline(case) as pipe:
        parameters = list(pipe.parameters()) if setting.optimizer is None else []
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
    schedule = setting.schedule
    lanes = (range(setting.ranks),) if isinstance(schedule, str) else schedule.placement.lanes
    nothing = None if setting.batch == "where needed" else object()
    rank = dist.get_rank()
    first, last = (rank in {lane[end] for lane in lanes} for end in (0, -1))
    return x if first else nothing, y if last else nothing


def together(parts: Sequence[Trained], *, replicas: bool = False) -> Trained:
    """What all ranks hold, as one; losses must be the same everywhere, and so must what several of them hold."""
    for part in parts:
        assert [bits(loss) for loss in part.losses] == [bits(loss) for loss in parts[0].losses]
    grads: list[dict[str, Tensor | None]] = [{} for _ in parts[0].gradients]
    state: dict[str, Tensor] = {}
    for part in parts:
        for step, of_part in zip(grads, part.gradients, strict=True):
            for name in step.keys() & of_part.keys():
                assert replicas, f"{name} is held twice"
                assert same_bits(step[name], of_part[name]), f"{name}: replicas have different gradients"
            step.update(of_part)
        for name in state.keys() & part.state.keys():
            assert replicas, f"{name} is held twice"
            assert same_bits(state[name], part.state[name]), f"{name}: replicas differ"
        state.update(part.state)
    return Trained(parts[0].losses, grads, state)


def same_bits(one: Tensor | None, other: Tensor | None) -> bool:
    """Whether two tensors are the same; -0 counts as 0, and None only as None."""
    if one is None or other is None:
        return one is other
    return one.dtype == other.dtype and one.shape == other.shape and bits(one + 0) == bits(other + 0)  # -0 is 0


def bits(tensor: Tensor) -> bytes:
    """The memory of a tensor."""
    flat = tensor.contiguous().as_strided((tensor.numel(),), (1,))
    return flat.view(torch.uint8).numpy().tobytes() if tensor.numel() else b""
