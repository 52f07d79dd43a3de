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

import torch
from torch import Tensor, nn

import headrace as hr


def activation_bytes(stage: nn.Module, x: Tensor) -> int:
    """The bytes that autograd saves in one forward of the stage; each memory once, parameters not."""
    # TODO 8.1: run a forward under torch.autograd.graph.saved_tensors_hooks(pack, unpack), and count in pack.
    # Hint: tensors share memory if tensor.untyped_storage().data_ptr() is the same; its bytes: .nbytes().
    # Hint: keep what you count alive until the end, as freed memory may be used again at the same address.
    known = {p.untyped_storage().data_ptr() for p in stage.parameters()}
    found: dict[int, Tensor] = {}

    def pack(tensor: Tensor) -> Tensor:
        address = tensor.untyped_storage().data_ptr()
        if address not in known:
            found[address] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = stage(x.detach().requires_grad_(x.is_floating_point()))
    del output
    return sum(tensor.untyped_storage().nbytes() for tensor in found.values())


def peak_bytes(activations: int, stage_input: int, in_flight: int, recompute: bool) -> int:
    """The most bytes that a stage holds with `in_flight` micro-batches: all of their F first, then a backward."""
    # TODO 8.2: write down the peaks of the picture.
    return (in_flight - 1) * stage_input + activations if recompute else in_flight * activations


def slowdown(name: str, ranks: int, m: int, recompute: str, forward: float = 1, backward: float = 2) -> float:
    """How much longer a step takes with recompute ("always" or "except_last") than without."""
    # TODO 8.3: build the schedule with headrace twice, with recompute and with "never"; divide the makespans.
    # Hint: hr.schedule.build(…, recompute=…); half of the backward is I, half is W.
    costs = hr.Costs(forward=forward, backward_input=backward / 2, backward_weight=backward / 2)

    def makespan(mode: str) -> float:
        return hr.simulate(hr.schedule.build(name, ranks=ranks, micro_batches=m, recompute=mode), costs).makespan

    return makespan(recompute) / makespan("never")


def largest_micro_batch(room: int, activations_a_row: int, input_a_row: int, in_flight: int, recompute: bool) -> int:
    """How many rows a micro-batch can have in `room` bytes, given the bytes of one row."""
    # TODO 8.4: find the largest number of rows whose peak fits.
    # Hint: all bytes grow in proportion to the rows.
    return room // peak_bytes(activations_a_row, input_a_row, in_flight, recompute)
