"""Exercise 5: GPipe, a wrapper for any nn.Sequential.

You have all the parts. GPipe (Huang et al., 2019) puts them together: all forwards by the clock, a *flush*, then all
backwards, the last micro-batch first, by the same clock run backwards.

    rank 0  F0 F1 F2 F3 ··················[B3  ][B2  ][B1  ][B0  ]
    rank 1  ···F0 F1 F2 F3 ·········[B3  ][B2  ][B1  ][B0  ]······
    rank 2  ······F0 F1 F2 F3 [B3  ][B2  ][B1  ][B0  ]············
                             turn

At the turn every rank holds the activations of all m micro-batches. That is why GPipe was born together with
recompute: with it a rank holds m stage inputs, and the activations of the one micro-batch whose backward is running.

Here one thread plays all ranks in turn. That is no faster than the plain model, but it is the same program: whoever
gives each stage a thread, a process or a GPU of its own changes who calls what, and nothing about what is called.

Write down what is done in `rows`, one list per rank, as stage, kind and micro-batch: "1F0". Headrace reads this
notation, and a test asks it for the proof that your GPipe is one.
"""

from collections.abc import Callable, Sequence

from torch import Tensor, nn

from .ex01_micro_batches import loss_weights, split
from .ex02_forward import clock_cycles, cut
from .ex03_accumulate import stage_backward, stage_forward
from .ex04_recompute import forward_and_drop, recompute_backward


class GPipe:
    """A chain of layers that takes its training steps as a pipeline would.

    Args:
        model: any nn.Sequential; its parameters get the gradients.
        loss_fn: a mean over rows.
        layers: how many layers each stage gets.
        micro_batches: m.
        recompute: whether activations are dropped and computed again.
    """

    def __init__(
        self,
        model: nn.Sequential,
        loss_fn: Callable[[Tensor, Tensor], Tensor],
        layers: Sequence[int],
        micro_batches: int,
        recompute: bool = False,
    ) -> None:
        self.stages = cut(model, layers)
        self.loss_fn, self.m, self.recompute = loss_fn, micro_batches, recompute
        self.kept: dict[tuple[int, int], object] = {}  # by (stage, micro-batch), what its backward will need
        self.rows: list[list[str]] = [[] for _ in self.stages]

    def stage_f(self, stage: int, k: int, x: Tensor) -> Tensor:
        """The forward of one micro-batch on one stage, detached: writes down "1F0", keeps what its backward needs."""
        # TODO 5.1: run the stage, with or without recompute, and keep what its backward needs in self.kept.
        self.rows[stage].append(f"{stage}F{k}")
        if self.recompute:
            output, self.kept[stage, k] = forward_and_drop(self.stages[stage], x)
        else:
            _, output = self.kept[stage, k] = stage_forward(self.stages[stage], x)
        return output.detach()

    def stage_b(self, stage: int, k: int, grad: Tensor) -> Tensor | None:
        """The backward of one micro-batch on one stage: writes down "1B0", forgets what was kept."""
        # TODO 5.2: take what was kept out of self.kept, and go backward with or without recompute.
        self.rows[stage].append(f"{stage}B{k}")
        kept = self.kept.pop((stage, k))
        if self.recompute:
            return recompute_backward(self.stages[stage], kept, grad)
        return stage_backward(*kept, grad)

    def step(self, x: Tensor, y: Tensor) -> Tensor:
        """Forward, loss and backward of a batch; returns its loss, detached."""
        # TODO 5.3: all forwards by the clock, the loss and its gradient for each output, all backwards in reverse.
        # Hint: for the gradient of an output, make it a leaf and call backward on its weighted loss.
        values, targets = split(x, self.m), split(y, self.m)
        self.rows = [[] for _ in self.stages]
        cycles = clock_cycles(self.m, len(self.stages))
        for cycle in cycles:
            for stage, k in cycle:
                values[k] = self.stage_f(stage, k, values[k])
        total, grads = 0, []
        for output, target, weight in zip(values, targets, loss_weights([len(t) for t in targets]), strict=True):
            leaf = output.requires_grad_()
            loss = weight * self.loss_fn(leaf, target)
            loss.backward()
            grads.append(leaf.grad)
            total = total + loss.detach()
        for cycle in reversed(cycles):
            for stage, k in cycle:
                grads[k] = self.stage_b(stage, k, grads[k])
        return total
