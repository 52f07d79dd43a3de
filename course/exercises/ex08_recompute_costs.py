"""Exercise 8: what recompute saves, and what it costs.

A stage keeps for its backward the tensors that autograd saves: inputs of matrix products, outputs of tanh, masks of
dropout. Let A be their bytes for one micro-batch, and X those of the stage's input, which A contains. With k
micro-batches in flight the stage holds at most

    keep everything      ████████ ████████ ████████ ████████      k·A
                          A of F0  A of F1  A of F2  A of F3

    recompute            █        █        █        ████████      (k − 1)·X + A
                         X of F0  X of F1  X of F2  A of R3

(Parameters are there anyway and do not count.) Only the small X grows with k. So recompute pays where k is large, as
in GPipe with many micro-batches, and where A is much larger than X: in deep stages of wide layers.

The price is one more forward for each micro-batch. With B = 2F a busy rank works (2F + B) / (F + B) = 4/3 as long. And
the step? That depends on the bubble: a recompute needs nothing from other ranks, so one that runs while its rank waits
for a gradient is free. Headrace simulates it: the kind is called R.

A recompute saves nothing for a micro-batch whose backward comes right after its forward. "except_last" spares that
one.
"""

import torch  # noqa: F401 - for your TODOs
from torch import Tensor, nn

import headrace as hr  # noqa: F401 - for your TODOs


def activation_bytes(stage: nn.Module, x: Tensor) -> int:
    """The bytes that autograd saves in one forward of the stage; each memory once, parameters not."""
    # Hint: tensors share memory if tensor.untyped_storage().data_ptr() is the same; its bytes: .nbytes().
    # Hint: keep what you count alive until the end, as freed memory may be used again at the same address.
    raise NotImplementedError(
        "TODO 8.1: run a forward under torch.autograd.graph.saved_tensors_hooks(pack, unpack), and count in pack."
    )


def peak_bytes(activations: int, stage_input: int, in_flight: int, recompute: bool) -> int:
    """The most bytes that a stage holds with `in_flight` micro-batches: all of their F first, then a backward."""
    raise NotImplementedError("TODO 8.2: write down the peaks of the picture.")


def slowdown(name: str, ranks: int, m: int, recompute: str, forward: float = 1, backward: float = 2) -> float:
    """How much longer a step takes with recompute ("always" or "except_last") than without."""
    # Hint: hr.schedule.build(…, recompute=…); half of the backward is I, half is W.
    raise NotImplementedError(
        'TODO 8.3: build the schedule with headrace twice, with recompute and with "never"; divide the makespans.'
    )


def largest_micro_batch(room: int, activations_a_row: int, input_a_row: int, in_flight: int, recompute: bool) -> int:
    """How many rows a micro-batch can have in `room` bytes, given the bytes of one row."""
    # Hint: all bytes grow in proportion to the rows.
    raise NotImplementedError("TODO 8.4: find the largest number of rows whose peak fits.")
