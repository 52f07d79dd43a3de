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

from .ex01_micro_batches import loss_weights, split  # noqa: F401 - for your TODOs
from .ex02_forward import clock_cycles, cut  # noqa: F401 - for your TODOs
from .ex03_accumulate import stage_backward, stage_forward  # noqa: F401 - for your TODOs
from .ex04_recompute import forward_and_drop, recompute_backward  # noqa: F401 - for your TODOs


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
        raise NotImplementedError(
            "TODO 5.1: run the stage, with or without recompute, and keep what its backward needs in self.kept."
        )

    def stage_b(self, stage: int, k: int, grad: Tensor) -> Tensor | None:
        """The backward of one micro-batch on one stage: writes down "1B0", forgets what was kept."""
        raise NotImplementedError(
            "TODO 5.2: take what was kept out of self.kept, and go backward with or without recompute."
        )

    def step(self, x: Tensor, y: Tensor) -> Tensor:
        """Forward, loss and backward of a batch; returns its loss, detached."""
        # Hint: for the gradient of an output, make it a leaf and call backward on its weighted loss.
        raise NotImplementedError(
            "TODO 5.3: all forwards by the clock, the loss and its gradient for each output, all backwards in reverse."
        )
