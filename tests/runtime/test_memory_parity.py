"""The bytes that stages hold for their backwards are those that the simulator says.

Each stage keeps, in memory that counts itself, what a real one does: something that I frees, and the operands of a
product with weights, which W needs.

    Mark ─▶ Linear ─▶ Mark ─▶ Keep           KEPT bytes until I, what the Linear took in and its gradient until W
"""

import threading
import weakref
from collections import Counter
from typing import Any, Final

import pytest
import torch
from torch import Tensor, nn

import headrace as hr
from headrace.costs import Memory
from headrace.runtime.acting import Acting
from headrace.schedule import Action, build
from headrace.simulate.memory import peak_memory_of

ROWS, DIM, KEPT = 3, 4, 1000
OPERAND: Final = ROWS * DIM * 4
MEMORY: Final = Memory(activations=KEPT + OPERAND, for_weight=2 * OPERAND)


class Counted(bytearray):
    """Memory that can be watched."""


class Held:
    """The bytes that each stage holds now, and the most that each rank held after an action."""

    def __init__(self) -> None:
        self.now: Counter[int] = Counter()
        self.peak: Counter[int] = Counter()
        self._lock = threading.Lock()

    def tensor(self, stage: int, size: int) -> Tensor:
        memory = Counted(size)
        self.add(stage, size)
        weakref.finalize(memory, self.add, stage, -size)
        return torch.frombuffer(memory, dtype=torch.float32)

    def add(self, stage: int, size: int) -> None:
        with self._lock:
            self.now[stage] += size

    def look(self, rank: int, stages: tuple[int, ...]) -> None:
        with self._lock:
            self.peak[rank] = max(self.peak[rank], sum(self.now[stage] for stage in stages))


class _Mark(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, held: Held, stage: int) -> Tensor:
        ctx.held, ctx.stage = held, stage
        return held.tensor(stage, x.nbytes).view(x.shape).copy_(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        return ctx.held.tensor(ctx.stage, gradient.nbytes).view(gradient.shape).copy_(gradient), None, None


class _Keep(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, held: Held, stage: int) -> Tensor:
        ctx.save_for_backward(held.tensor(stage, KEPT))
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        assert len(ctx.saved_tensors) == 1
        return gradient.clone(), None, None


class Part(nn.Module):
    """All layers of one stage."""

    def __init__(self, held: Held, stage: int) -> None:
        super().__init__()
        self.held, self.stage = held, stage
        self.linear = nn.Linear(DIM, DIM)

    def forward(self, x: Tensor) -> Tensor:
        y = _Mark.apply(x * 1, self.held, self.stage)  # * 1: gradients on their way to others are not counted
        y = _Mark.apply(self.linear(y), self.held, self.stage)
        result: Tensor = _Keep.apply(y, self.held, self.stage)
        return result


@pytest.mark.parametrize("recompute", ["never", "always", {1, 2}], ids=str)
@pytest.mark.parametrize("name", ["gpipe", "1f1b", "zb-h1", "zb-h2", "zb-v", "v-half", "interleaved", "dualpipe-v"])
@pytest.mark.parametrize(("ranks", "micro_batches"), [(3, 7), (2, 5)])
def test_counted_bytes_are_the_predicted_ones(
    monkeypatch: pytest.MonkeyPatch, name: str, recompute: Any, ranks: int, micro_batches: int
) -> None:
    held = Held()
    options = {"recompute": recompute if isinstance(recompute, str) else {s for s in recompute if s < ranks}}
    schedule = build(name, ranks=ranks, micro_batches=micro_batches, **options)
    perform = Acting.perform

    def watched(acting: Acting, action: Action, received: Any) -> Any:
        made = perform(acting, action, received)
        rank = schedule.placement.rank(action.stage, action.micro_batch)
        held.look(rank, schedule.placement.stages_of(rank))
        return made

    monkeypatch.setattr(Acting, "perform", watched)
    model = nn.Sequential(*(Part(held, stage) for stage in range(schedule.stages)))
    x = torch.randn(ROWS * micro_batches, DIM)
    with hr.Pipeline(
        model, nn.functional.mse_loss, ranks=ranks, micro_batches=micro_batches, schedule=schedule
    ) as pipe:
        for _ in range(2):
            pipe.step(x, x)
    assert tuple(held.peak[rank] for rank in range(ranks)) == peak_memory_of(schedule, MEMORY)
    assert not +held.now
