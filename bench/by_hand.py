"""What a careful user writes: 1F1B for one known shape, about forty lines over gloo, receives posted ahead.

It knows everything in advance (shapes, dtypes, one tensor a message, equal micro-batches), checks nothing and reports
nothing, so it stands for what gloo itself costs.
"""

from collections import deque
from typing import Any

import torch
import torch.distributed as dist
from cases import Case
from contestants import Step
from torch import Tensor


def prepare(case: Case, rank: int, ranks: int) -> Step:
    """The step of `rank`; it returns the loss on the last rank."""
    if not dist.is_initialized():
        dist.init_process_group("gloo")
    if case.schedule != "1f1b":
        raise ValueError("the hand-written loop knows only 1F1B")
    m, first, last = case.micro_batches, rank == 0, rank == ranks - 1
    stage = case.stage(rank)
    x, y = (part.chunk(m) for part in case.batch())
    depth = min(m, ranks - rank + 1)  # one more than are in flight: a receive is always posted
    inputs = [torch.empty(case.activation_shape()) for _ in range(0 if first else depth)]
    gradients = [torch.empty(case.activation_shape()) for _ in range(0 if last else min(m, 2))]

    def step() -> float | None:
        stage.zero_grad()
        sends: list[Any] = []
        outputs: deque[tuple[Tensor, Tensor]] = deque()
        losses: list[Tensor] = []
        coming_in: deque[Any] = deque(dist.irecv(buffer, rank - 1) for buffer in inputs)
        coming_back: deque[Any] = deque(dist.irecv(buffer, rank + 1) for buffer in gradients)

        def forward(k: int) -> None:
            if first:
                here = x[k]
            else:
                coming_in.popleft().wait()
                here = inputs[k % depth].detach().requires_grad_()
            out = stage(here)
            if last:
                out = case.loss(out, y[k]) / m
                losses.append(out.detach())
            else:
                sends.append(dist.isend(out.detach(), rank + 1))
            outputs.append((here, out))

        def backward(k: int) -> None:
            here, out = outputs.popleft()
            if last:
                out.backward()
            else:
                coming_back.popleft().wait()
                out.backward(gradients[k % len(gradients)])
                if k + len(gradients) < m:
                    coming_back.append(dist.irecv(gradients[k % len(gradients)], rank + 1))
            if not first:
                sends.append(dist.isend(here.grad, rank - 1))
                if k + depth < m:
                    coming_in.append(dist.irecv(inputs[k % depth], rank - 1))

        warm_up = min(m, ranks - 1 - rank)
        for k in range(warm_up):
            forward(k)
        for k in range(m):
            if warm_up + k < m:
                forward(warm_up + k)
            backward(k)
        for send in sends:
            send.wait()
        return torch.stack(losses).sum().item() if last else None

    return step
