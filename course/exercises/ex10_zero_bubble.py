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

from collections import deque  # noqa: F401 - for your TODOs
from collections.abc import Callable, Sequence

import torch  # noqa: F401 - for your TODOs
from torch import Tensor, nn

import headrace as hr  # noqa: F401 - for your TODOs

from .ex01_micro_batches import loss_weights, split  # noqa: F401 - for your TODOs

Postponed = list[tuple[nn.Linear, Tensor, Tensor]]
"""The W that are still to be done: (layer, its input, gradient of its output)."""


def input_gradient(layer: nn.Linear, grad: Tensor) -> Tensor:
    """I of a linear layer: the gradient of its input, given that of its output (rows × features)."""
    raise NotImplementedError("TODO 10.1: write the matrix product of I.")


def weight_gradient(layer: nn.Linear, x: Tensor, grad: Tensor) -> None:
    """W of a linear layer: add the gradients of weight and bias to their .grad, which may be None."""
    raise NotImplementedError("TODO 10.2: write the matrix product and the sum of W, and add them to .grad.")


def forward(stage: nn.Sequential, x: Tensor) -> tuple[Tensor, list[Tensor]]:
    """(output, the input of each layer) of a stage of linear layers and nn.Tanh, without autograd."""
    raise NotImplementedError("TODO 10.3: run the layers under torch.no_grad, and keep the input of each.")


def backward_input(stage: nn.Sequential, inputs: Sequence[Tensor], grad: Tensor) -> tuple[Tensor, Postponed]:
    """I of a whole stage: the gradient of its input at once, and what its W will need."""
    raise NotImplementedError(
        "TODO 10.4: go through the layers in reverse; a linear layer postpones its W, a tanh multiplies by 1 − tanh²."
    )


def row(rank: int, ranks: int, m: int) -> list[str]:
    """What one rank does in zb-h1, such as ["1F0", "1F1", "1I0", "1F2", "1I1", "1W0", …]."""
    raise NotImplementedError(
        "TODO 10.5: write the row: 1F1B with I instead of B, each W right after the I of the micro-batch `rank` later."
    )


def idle_seconds(rows: Sequence[Sequence[str]], f: float, i: float, w: float) -> list[float]:
    """How long each rank idles in one step with these rows, as headrace simulates it."""
    raise NotImplementedError(
        "TODO 10.6: parse the rows, check them, simulate them; the idle time is the makespan without what is busy."
    )


def play(
    rows: Sequence[Sequence[str]],
    stages: Sequence[nn.Sequential],
    loss_fn: Callable[[Tensor, Tensor], Tensor],
    x: Tensor,
    y: Tensor,
) -> Tensor:
    """Run the rows with tensors: the loss of the batch, and its gradients. ValueError("deadlock …") if they do."""
    # Hint: keep a mailbox, a dict from an action to the tensor that it waits for, such as the gradient for "1I0".
    # Hint: whoever does the last F of a micro-batch also computes its weighted loss, and so the gradient for its I.
    raise NotImplementedError(
        "TODO 10.7: let each rank run what can run, as in exercise 6, but really do it: F, I and W."
    )
