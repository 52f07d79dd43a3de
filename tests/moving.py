"""A training that moves between steps, for `test_replan`; run by torchrun, it leaves what came out in a folder.

The model has what could get lost on the way: running statistics, random numbers, a buffer that is in no state_dict, a
layer in evaluation mode, and two groups of parameters whose rates change at every step.
"""

import sys
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from headrace.runtime.pipeline import Pipeline
from headrace.schedule import Schedule, build
from headrace.train.move import moved

Moves = Sequence[tuple[Schedule, tuple[int, ...]]]
"""Schedule and cut of each of the first steps; the last ones stay."""

Trained = tuple[list[float], dict[Any, Tensor]]
"""Losses; parameters, buffers and the optimizer's state by name."""

_ONE, _ZB, _V = (build(name, ranks=2, micro_batches=4) for name in ("1f1b", "zb-h1", "zb-v"))
_SEVERAL = build("interleaved", ranks=2, micro_batches=4, stages_per_rank=2)
STAYS: Moves = [(_ONE, (3, 4))]
CUTS: Moves = [(_ONE, (3, 4)), (_ONE, (6, 1)), (_ONE, (1, 6)), (_ONE, (4, 3))]
SCHEDULES: Moves = [(_ONE, (3, 4)), (_SEVERAL, (2, 1, 1, 3)), (_ZB, (6, 1)), (_V, (2, 2, 2, 1))]
"""With the last move, rank 1 keeps none of its layers."""

loss_fn = nn.functional.cross_entropy


class _Counted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.calls += 1
        return x * (1 + 0.01 * self.calls)


def model() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(
        nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.2), _Counted(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3)
    )


def adamw(named: Iterable[tuple[str, nn.Parameter]]) -> torch.optim.Optimizer:
    """With a group of weights, and one of all else, which does not decay."""
    weights, others = [], []
    for name, parameter in named:
        (weights if parameter.ndim > 1 else others).append((name, parameter))
    groups = [{"params": weights}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=1e-2)


def pipeline(whole: nn.Sequential, schedule: str | Schedule, cut: tuple[int, ...]) -> Pipeline:
    return Pipeline(whole, loss_fn, ranks=2, micro_batches=4, schedule=schedule, cut=cut)


def trained(moves: Moves, steps: int = 5) -> Trained:
    """What came out of `steps` steps, with a move before each for which there is one."""
    whole = model()
    pipe = pipeline(whole, *moves[0])
    optimizer = adamw(pipe.named_parameters())
    losses = []
    for step in range(steps):
        if 0 < step < len(moves):
            schedule, cut = moves[step]
            pipe, optimizer = moved(pipe, optimizer, whole, loss_fn, adamw, schedule=schedule, cut=cut)
        for group in optimizer.param_groups:
            group["lr"] *= 0.9 if group["weight_decay"] else 0.8
        random = torch.Generator().manual_seed(step)
        losses.append(float(pipe.step(torch.randn(10, 6, generator=random), torch.arange(10) % 3)))
        optimizer.step()
        optimizer.zero_grad()
        if any(name == "4.weight" for name, _ in pipe.named_parameters()):
            whole[3].eval()  # it stops counting, but only who holds it knows
    state: dict[Any, Tensor] = {**dict(pipe.named_parameters()), **dict(pipe.named_buffers())}
    for name, parameter in pipe.named_parameters():
        state |= {(name, what): value for what, value in optimizer.state[parameter].items()}
    pipe.close()
    return losses, {name: tensor.detach().clone() for name, tensor in state.items()}


def _main(folder: Path) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    everything = [trained(moves) for moves in (STAYS, CUTS, SCHEDULES)]
    rank = torch.distributed.get_rank()
    torch.save(everything, folder / str(rank))
    whole = model()
    pipe = pipeline(whole, *STAYS[0])
    optimizer = adamw(pipe.named_parameters())
    if rank == 1:  # a mistake of one process must not leave the other waiting
        last = next(pipe.parameters())
        last.grad = torch.zeros_like(last)
    try:
        moved(pipe, optimizer, whole, loss_fn, adamw, schedule=pipe.schedule, cut=(4, 3))
    except ValueError as error:
        print(f"rank {rank}: {error}", flush=True)


if __name__ == "__main__":
    _main(Path(sys.argv[1]))
