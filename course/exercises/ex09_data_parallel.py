"""Exercise 9: pipeline × data parallel.

A pipeline of p ranks is as fast as p devices at best, and p cannot exceed the number of layers. To use more devices,
copy the pipeline: each *replica* takes its share of the batch, and before the optimizer's step their gradients are
summed:

    replica 0   rank 0 ─▶ rank 1      rows 0 … 4      grads ─┐
                                                             ├─ all-reduce: everyone gets the sum
    replica 1   rank 0 ─▶ rank 1      rows 5 … 9      grads ─┘

With equal gradients and the same optimizer all replicas stay equal for ever, although nobody compares their weights.
But equal must mean *the same bits*: a + b + c added up in another order may differ in the last one, and such
differences grow. So an all-reduce adds in one order, for everyone.

One all-reduce for each parameter would pay the latency of a message for each. So flatten all gradients into one long
vector, reduce once, and cut it up again.

And weights as in exercise 1: a replica with n_r of n rows counts n_r / n. Here replicas are threads, so that you can
write the all-reduce yourself. Between processes the same is called `torch.distributed.all_reduce`.
"""

from collections.abc import Callable, Sequence
from copy import deepcopy
from threading import Barrier, Thread

import torch  # noqa: F401 - for your TODOs
from torch import Tensor, nn

from .ex01_micro_batches import loss_weights, split  # noqa: F401 - for your TODOs
from .ex05_gpipe import GPipe

LossFn = Callable[[Tensor, Tensor], Tensor]
Reduce = Callable[[int, Tensor], Tensor]


class AllReduce:
    """A sum over n threads. Each calls it with its own tensor; all get the same bits."""

    def __init__(self, n: int) -> None:
        self.slots: list[Tensor | None] = [None] * n
        self.barrier = Barrier(n, timeout=20)  # wait() returns when n threads wait; raises after 20 seconds

    def __call__(self, replica: int, tensor: Tensor) -> Tensor:
        # Hint: wait once more before you return, or a fast thread may fill its slot again while a slow one still adds.
        # Hint: do not add into a tensor that another thread reads.
        raise NotImplementedError(
            "TODO 9.1: put your tensor into your slot, wait for the others, then add up all slots in their order."
        )


def in_threads(n: int, work: Callable[[int], None], barrier: Barrier) -> None:
    """Run work(0) … work(n − 1), each in a thread; raises the first error, and nobody waits for the dead. (Given.)"""
    errors: list[Exception] = []

    def guarded(number: int) -> None:
        try:
            work(number)
        except Exception as error:
            errors.append(error)
            barrier.abort()

    threads = [Thread(target=guarded, args=(number,), daemon=True) for number in range(n)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def reduce_gradients(model: nn.Module, replica: int, weight: float, all_reduce: Reduce) -> None:
    """Replace the model's gradients by the weighted sum over all replicas, with one all-reduce."""
    # Hint: torch.cat of g.flatten() on the way in; Tensor.split and view_as on the way out.
    raise NotImplementedError(
        "TODO 9.2: flatten all gradients into one vector, times `weight`; all-reduce it; put its pieces into .grad."
    )


class Replicas:
    """n copies of a pipeline that learn together."""

    def __init__(self, model: nn.Sequential, loss_fn: LossFn, layers: Sequence[int], m: int, n: int) -> None:
        self.models = [deepcopy(model) for _ in range(n)]
        self.pipes = [GPipe(copy, loss_fn, layers, m) for copy in self.models]
        self.all_reduce = AllReduce(n)

    def step(self, x: Tensor, y: Tensor) -> Tensor:
        """Loss of the whole batch; afterwards each replica has the gradients of the whole batch."""
        # Hint: in_threads(n, work, self.all_reduce.barrier); the loss is the weighted sum of the replicas' losses.
        raise NotImplementedError(
            "TODO 9.3: split x and y over the replicas; in a thread each, do a GPipe step and reduce the gradients."
        )
