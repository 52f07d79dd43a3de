"""Exercise 4: recompute.

A backward needs what the forward computed: the *activations*. Each micro-batch in flight keeps its own, and m of them
soon fill the memory. But they can be computed again. So keep only the stage's input, run the forward without a graph,
and right before the backward run it once more, with one:

    keep everything    F ═══ all activations ════════════════════════▶ B
    recompute          F ─── stage input ─────────────▶ R ═ all ═════▶ B        R = F once more

It costs one more forward. As a backward takes about two forwards, a step then takes 4 instead of 3.

The catch is randomness: a dropout that draws a new mask in the second forward gives the gradient of *another*
function. So remember the state of the random number generator before the first forward and go back to it before the
second. And afterwards put it where it was, for otherwise whoever draws next gets numbers that were already used:

    random numbers     a b c d │ e f │ …         first forward draws c d
                           └─▶ c d   └─▶ e f     recompute draws c d again; the next layer must still get e f
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from .ex03_accumulate import stage_backward, stage_forward


class Saved(NamedTuple):
    """All that is kept of a stage's forward."""

    x: Tensor
    random_state: Tensor


def forward_and_drop(stage: nn.Module, x: Tensor) -> tuple[Tensor, Saved]:
    """The stage's output, without a graph, and what is needed to compute it again."""
    # TODO 4.1: remember the random state (torch.get_rng_state), then run the forward without keeping a graph.
    saved = Saved(x.detach(), torch.get_rng_state())
    with torch.no_grad():
        return stage(x), saved


def recompute(stage: nn.Module, saved: Saved) -> tuple[Tensor, Tensor]:
    """(leaf, output) as `stage_forward` of exercise 3 gives them, with the random numbers of the first forward."""
    # TODO 4.2: go back to the saved random state, run the forward with a graph, then restore the random state.
    # Hint: `try … finally` restores it even if the stage raises.
    now = torch.get_rng_state()
    torch.set_rng_state(saved.random_state)
    try:
        return stage_forward(stage, saved.x)
    finally:
        torch.set_rng_state(now)


def recompute_backward(stage: nn.Module, saved: Saved, grad: Tensor) -> Tensor | None:
    """The gradient of the stage's input; those of its parameters are added to `.grad`."""
    # TODO 4.3: recompute, then go backward.
    leaf, output = recompute(stage, saved)
    return stage_backward(leaf, output, grad)
