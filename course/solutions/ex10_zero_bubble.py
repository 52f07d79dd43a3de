"""Exercise 10: split the backward and fill the bubble.

A backward makes two gradients, and only one of them is urgent. For a linear layer, y = x·Wᵀ + b:

    I   gradient of the input     dx = dy · W            the stage before waits for it
    W   gradient of the weights   dW = dyᵀ · x, db = Σ dy    nobody waits for it, until the optimizer's step

Each is one matrix product, as the forward is, so F, I and W take about the same time. *Zero bubble* (Qi et al., 2024)
sends I off early and keeps W for the moments in which a rank would idle:

    1f1b    rank 0  F0 F1 F2 ············[B0  ]F3 [B1  ]···[B2  ]···[B3  ]
            rank 1  ···F0 F1 ······[B0  ]F2 [B1  ]F3 [B2  ]···[B3  ]······
            rank 2  ······F0 [B0  ]F1 [B1  ]F2 [B2  ]F3 [B3  ]············

    zb-h1   rank 0  F0 F1 F2 ······I0 W0 F3 I1 W1 I2 W2 I3 W3
            rank 1  ···F0 F1 ···I0 F2 I1 W0 F3 I2 W1 I3 W2 W3
            rank 2  ······F0 I0 F1 I1 F2 I2 W0 F3 I3 W1 W2 W3

The order is that of 1F1B with each B cut in two: on rank r, the W of micro-batch k comes right after the I of
micro-batch k + r, and the W that are left come last. Each rank now holds p micro-batches, as rank 0 of 1F1B does. The
idle time of a rank shrinks from (p − 1)(F + I + W) to (p − 1)(F + I − W), if m ≥ p and W takes no longer than F and I.

At the end you play these rows with tensors, and every gradient is where it belongs. Then you have built it all.
"""

from collections import deque
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

import headrace as hr

from .ex01_micro_batches import loss_weights, split

Postponed = list[tuple[nn.Linear, Tensor, Tensor]]
"""The W that are still to be done: (layer, its input, gradient of its output)."""


def input_gradient(layer: nn.Linear, grad: Tensor) -> Tensor:
    """I of a linear layer: the gradient of its input, given that of its output (rows × features)."""
    # TODO 10.1: write the matrix product of I.
    return grad @ layer.weight


def weight_gradient(layer: nn.Linear, x: Tensor, grad: Tensor) -> None:
    """W of a linear layer: add the gradients of weight and bias to their .grad, which may be None."""
    # TODO 10.2: write the matrix product and the sum of W, and add them to .grad.
    for p, new in ((layer.weight, grad.T @ x), (layer.bias, grad.sum(0))):
        p.grad = new if p.grad is None else p.grad + new


def forward(stage: nn.Sequential, x: Tensor) -> tuple[Tensor, list[Tensor]]:
    """(output, the input of each layer) of a stage of linear layers and nn.Tanh, without autograd."""
    # TODO 10.3: run the layers under torch.no_grad, and keep the input of each.
    inputs = []
    with torch.no_grad():
        for layer in stage:
            inputs.append(x)
            x = layer(x)
    return x, inputs


def backward_input(stage: nn.Sequential, inputs: Sequence[Tensor], grad: Tensor) -> tuple[Tensor, Postponed]:
    """I of a whole stage: the gradient of its input at once, and what its W will need."""
    # TODO 10.4: go through the layers in reverse; a linear layer postpones its W, a tanh multiplies by 1 − tanh².
    postponed: Postponed = []
    with torch.no_grad():
        for layer, x in zip(reversed(stage), reversed(inputs), strict=True):
            if isinstance(layer, nn.Linear):
                postponed.append((layer, x, grad))
                grad = input_gradient(layer, grad)
            else:
                grad = grad * (1 - x.tanh() ** 2)
    return grad, postponed


def row(rank: int, ranks: int, m: int) -> list[str]:
    """What one rank does in zb-h1, such as ["1F0", "1F1", "1I0", "1F2", "1I1", "1W0", …]."""
    # TODO 10.5: write the row: 1F1B with I instead of B, each W right after the I of the micro-batch `rank` later.
    warm_up = min(ranks - 1 - rank, m)
    actions = [f"{rank}F{k}" for k in range(warm_up)]
    for k in range(m):
        if warm_up + k < m:
            actions.append(f"{rank}F{warm_up + k}")
        actions.append(f"{rank}I{k}")
        if k >= rank:
            actions.append(f"{rank}W{k - rank}")
    return actions + [f"{rank}W{k}" for k in range(max(m - rank, 0), m)]


def idle_seconds(rows: Sequence[Sequence[str]], f: float, i: float, w: float) -> list[float]:
    """How long each rank idles in one step with these rows, as headrace simulates it."""
    # TODO 10.6: parse the rows, check them, simulate them; the idle time is the makespan without what is busy.
    schedule = hr.schedule.parse("\n".join(",".join(row) for row in rows))
    hr.schedule.check(schedule)
    timeline = hr.simulate(schedule, hr.Costs(forward=f, backward_input=i, backward_weight=w))
    return [timeline.makespan - busy for busy in timeline.busy]


def play(
    rows: Sequence[Sequence[str]],
    stages: Sequence[nn.Sequential],
    loss_fn: Callable[[Tensor, Tensor], Tensor],
    x: Tensor,
    y: Tensor,
) -> Tensor:
    """Run the rows with tensors: the loss of the batch, and its gradients. ValueError("deadlock …") if they do."""
    # TODO 10.7: let each rank run what can run, as in exercise 6, but really do it: F, I and W.
    # Hint: keep a mailbox, a dict from an action to the tensor that it waits for, such as the gradient for "1I0".
    # Hint: whoever does the last F of a micro-batch also computes its weighted loss, and so the gradient for its I.
    m = sum("F" in action for action in rows[0])
    targets = split(y, m)
    weights = loss_weights([len(target) for target in targets])
    mailbox = {f"0F{k}": piece for k, piece in enumerate(split(x, m))}
    inputs: dict[tuple[int, int], list[Tensor]] = {}
    postponed: dict[tuple[int, int], Postponed] = {}
    total = torch.zeros(())

    def act(rank: int, kind: str, k: int) -> None:
        nonlocal total
        if kind == "F":
            output, inputs[rank, k] = forward(stages[rank], mailbox.pop(f"{rank}F{k}"))
            if rank + 1 < len(stages):
                mailbox[f"{rank + 1}F{k}"] = output
            else:
                output.requires_grad_()
                loss = weights[k] * loss_fn(output, targets[k])
                loss.backward()
                mailbox[f"{rank}I{k}"] = output.grad
                total = total + loss.detach()
        elif kind == "I":
            grad = mailbox.pop(f"{rank}I{k}")
            mailbox[f"{rank - 1}I{k}"], postponed[rank, k] = backward_input(stages[rank], inputs.pop((rank, k)), grad)
        else:
            for item in postponed.pop((rank, k)):
                weight_gradient(*item)

    left = [deque(row) for row in rows]
    moved = True
    while moved:
        moved = False
        for rank, row in enumerate(left):
            while row and (row[0] in mailbox or "W" in row[0]):
                action = row.popleft()
                kind = next(letter for letter in "FIW" if letter in action)
                act(rank, kind, int(action.split(kind)[1]))
                moved = True
    if any(left):
        raise ValueError("deadlock: each rank waits for another")
    return total
