"""Exercise 3: accumulate gradients, stage by stage, and match the full batch.

The gradient of a sum is the sum of the gradients, and `backward()` *adds* to `.grad`. So m backwards of weighted
losses leave in `.grad` what one backward of the whole batch would have left there – up to rounding, as floating-point
sums depend on their order. With float64 the two agree to about twelve digits.

In a pipeline autograd cannot see the whole model: its graph ends at the edge of a rank. So each stage gets a graph of
its own. Its input is a *leaf*, cut off from whatever made it, and what travels back is the gradient of that leaf:

    rank 0                                 rank 1
    x ─▶ [ stage 0 ] ─▶ output ── values ──▶ input ─▶ [ stage 1 ] ─▶ output ─▶ loss
                          ▲                    │leaf                            │
    output.backward(grad) └───── input.grad ◀──┴──────── backward ◀─────────────┘

Autograd's rule for a chain says that this is the same gradient, and it is even the same *bits*: each stage does the
very operations that the uncut model would do.

Token ids and masks are integers: they have no gradient, so nothing travels back for them.
"""

from collections.abc import Callable, Sequence

from torch import Tensor, nn

from .ex01_micro_batches import loss_weights, split  # noqa: F401 - for your TODOs

LossFn = Callable[[Tensor, Tensor], Tensor]


def accumulate(model: nn.Module, loss_fn: LossFn, x: Tensor, y: Tensor, m: int) -> Tensor:
    """Loss and gradients of a batch, one micro-batch after the other; returns the loss of the batch, detached."""
    # Hint: one backward per micro-batch, so that only one graph is alive at a time.
    raise NotImplementedError(
        "TODO 3.1: for each micro-batch in order, do its forward, then the backward of its weighted loss."
    )


def stage_forward(stage: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """(leaf, output): the stage's input, cut off from what made it, and what the stage makes of that."""
    # Hint: Tensor.detach, Tensor.requires_grad_, Tensor.is_floating_point.
    raise NotImplementedError(
        "TODO 3.2: make a leaf of x, which wants a gradient if its numbers can have one, and run the stage on it."
    )


def stage_backward(leaf: Tensor, output: Tensor, grad: Tensor | None) -> Tensor | None:
    """The gradient of the leaf, given that of the output (None if the output is the loss, made of the last stage's)."""
    raise NotImplementedError(
        "TODO 3.3: run the backward of this stage, and hand back what travels to the stage before."
    )


def step(stages: Sequence[nn.Module], loss_fn: LossFn, x: Tensor, y: Tensor, m: int) -> Tensor:
    """The same as `accumulate`, but through stages whose graphs end at their edges."""
    raise NotImplementedError(
        "TODO 3.4: for each micro-batch, go forward through all stages, then backward through all in reverse."
    )
