"""Exercise 7: profile a deep, uneven model and rebalance it.

A pipeline goes at the pace of its slowest stage, as all others wait for it. Forwards only:

    six layers of 1 1 1 3 2 1 s, two a stage            the same layers, three seconds a stage

    rank 0: 1 1  F0F1F2···········                      rank 0: 1 1 1  F0 F1 F2 ······
    rank 1: 1 3  ··[F0][F1][F2]···                      rank 1: 3      ···F0 F1 F2 ···
    rank 2: 2 1  ······F0 ·F1 ·F2   17 s                rank 2: 2 1    ······F0 F1 F2   15 s

So measure first. Run each layer some times, forward and backward, throw away the first round (caches are cold, memory
is being allocated) and take the *median*: one interruption by the system spoils a mean, but no median.

Then cut the chain of costs c_0 … c_{n−1} into p runs so that the largest sum is as small as possible. There are many
cuts, C(n−1, p−1), but they share their beginnings, and so a table finds the best one:

    best[s][j] = smallest bottleneck of the first j layers in s stages
               = min over i < j of  max(best[s−1][i],  c_i + … + c_{j−1})

Equal is not always possible: one huge layer is a stage of its own, and then the only help is to cut that layer.
"""

from collections.abc import Sequence
from itertools import accumulate  # noqa: F401 - for your TODOs
from statistics import median  # noqa: F401 - for your TODOs
from time import perf_counter  # noqa: F401 - for your TODOs

from torch import Tensor, nn

import headrace as hr  # noqa: F401 - for your TODOs


def layer_seconds(layer: nn.Module, x: Tensor) -> tuple[float, Tensor]:
    """(seconds of one forward and backward, output without a graph); leaves no gradients behind."""
    # Hint: make x a leaf first; for the gradients, layer.zero_grad() afterwards; perf_counter is the clock to use.
    raise NotImplementedError(
        "TODO 7.1: time one forward and backward of the layer, with a gradient of ones; give back its output, detached."
    )


def profile(model: nn.Sequential, x: Tensor, repeats: int = 5) -> list[float]:
    """The median seconds of each layer, forward and backward together, after one round that does not count."""
    raise NotImplementedError(
        "TODO 7.2: for each layer, measure 1 + repeats times, leave the first out and take the median."
    )


def stage_sums(costs: Sequence[float], layers: Sequence[int]) -> list[float]:
    """What each stage costs, if stage s gets the next layers[s] layers."""
    raise NotImplementedError("TODO 7.3: add up the costs of each stage's layers.")


def balance(costs: Sequence[float], stages: int) -> list[int]:
    """How many layers each stage gets, so that the most expensive stage is as cheap as possible. No stage is empty."""
    raise NotImplementedError(
        "TODO 7.4: fill the table of the picture, remember each best i, and walk back from the end."
    )


def step_seconds(costs: Sequence[float], layers: Sequence[int], m: int) -> float:
    """How long a 1F1B step of m micro-batches takes with this cut, if a third of each cost is the forward."""
    # Hint: hr.Costs takes a list with one number per stage.
    raise NotImplementedError(
        "TODO 7.5: simulate with headrace: a third of each stage's sum for F, for I and for W; give back the makespan."
    )
