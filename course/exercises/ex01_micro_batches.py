"""Exercise 1: cut a batch into micro-batches.

A model that is cut into p stages is an assembly line. If a whole batch goes through it as one piece, only one rank
works at a time. If it goes through in m small pieces, *micro-batches*, all ranks soon work at once:

    m = 1   rank 0  FFFF            m = 4   rank 0  F0 F1 F2 F3
            rank 1      FFFF                rank 1     F0 F1 F2 F3
            rank 2          FFFF            rank 2        F0 F1 F2 F3

Nobody promises that m divides the rows. So sizes may differ, but by at most one row: 10 rows in 4 pieces are 3 3 2 2.

Then the loss needs care. Most losses are a *mean* over rows, and a mean of means counts rows of small pieces too much.
What is right is a weighted sum, in which a micro-batch weighs as much as its share of what the mean counts:

    loss = Σ  n_k / n · loss_k          n_k = rows of micro-batch k, or its tokens if the mean is over tokens
           k

These weights depend on the targets alone. So they are known before the first forward, and that is what makes a
pipeline possible: the last stage can begin the backward of micro-batch 0 while the others are still on their way.
"""

from collections.abc import Callable, Sequence

from torch import Tensor


def sizes(rows: int, m: int) -> list[int]:
    """How many rows each of m micro-batches gets: the larger ones first. ValueError if one would be empty."""
    # Hint: each gets rows // m, and the first rows % m of them get one more.
    raise NotImplementedError("TODO 1.1: share `rows` out to m micro-batches whose sizes differ by at most one.")


def split(x: Tensor, m: int) -> list[Tensor]:
    """The m micro-batches of x, cut along its rows (dim 0), in order."""
    # Hint: Tensor.split takes a list of sizes, and returns views.
    raise NotImplementedError("TODO 1.2: cut x into pieces of these sizes, without copying it.")


def loss_weights(counts: Sequence[int]) -> list[float]:
    """What each micro-batch weighs in the loss of the batch, if it has counts[k] of what the mean is over."""
    raise NotImplementedError("TODO 1.3: give each micro-batch its share of the sum of all counts.")


def batch_loss(
    loss_fn: Callable[[Tensor, Tensor], Tensor],
    outputs: Sequence[Tensor],
    targets: Sequence[Tensor],
    count: Callable[[Tensor], int] = len,
) -> Tensor:
    """The loss of the whole batch, from the micro-batches alone; loss_fn is a mean over what `count` counts."""
    raise NotImplementedError("TODO 1.4: add up the losses of the micro-batches, each times its weight.")
