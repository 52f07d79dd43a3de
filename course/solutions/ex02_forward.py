"""Exercise 2: the forward of a pipeline.

A *stage* is a run of layers; rank s holds stage s. In clock cycle t, stage s works on micro-batch t − s: each
micro-batch moves on by one stage a cycle, and the next one follows right behind it.

    cycle      0    1    2    3    4    5
    stage 0    F0   F1   F2   F3   ·    ·
    stage 1    ·    F0   F1   F2   F3   ·         m = 4 micro-batches, p = 3 stages
    stage 2    ·    ·    F0   F1   F2   F3

What stands in one column is independent of each other, so p ranks can do it at once. What a cell needs stands one
column to the left and one row up. That is all there is to a pipeline's data flow.

The last micro-batch leaves in cycle m + p − 2, so there are m + p − 1 cycles, and each rank is idle in p − 1 of them.
This idle share is the *bubble*:

    bubble = (p − 1) / (m + p − 1)

More micro-batches make it smaller, but each then has fewer rows, and a rank computes small pieces less efficiently.
"""

from collections.abc import Sequence

from torch import Tensor, nn


def cut(model: nn.Sequential, layers: Sequence[int]) -> list[nn.Sequential]:
    """The stages of a model; stage s gets the next layers[s] layers. ValueError if layers are left or missing."""
    # TODO 2.1: cut the model into stages that share its layers.
    # Hint: a slice of an nn.Sequential is an nn.Sequential with the same layers in it, not copies.
    if sum(layers) != len(model):
        raise ValueError(f"the model has {len(model)} layers, not {sum(layers)}")
    stages, start = [], 0
    for count in layers:
        stages.append(model[start : start + count])
        start += count
    return stages


def clock_cycles(m: int, p: int) -> list[list[tuple[int, int]]]:
    """For each clock cycle, the (stage, micro-batch) pairs that are worked on in it, stage by stage."""
    # TODO 2.2: list what is done in each of the m + p − 1 cycles.
    return [[(s, t - s) for s in range(p) if 0 <= t - s < m] for t in range(m + p - 1)]


def forward(stages: Sequence[nn.Module], micro_batches: Sequence[Tensor]) -> list[Tensor]:
    """The outputs of the last stage, one per micro-batch."""
    # TODO 2.3: go through the clock cycles, and keep for each micro-batch what its last stage has made of it.
    values = list(micro_batches)
    for cycle in clock_cycles(len(values), len(stages)):
        for stage, k in cycle:
            values[k] = stages[stage](values[k])
    return values


def bubble(m: int, p: int) -> float:
    """The idle share of the ranks' time, counted in `clock_cycles`."""
    # TODO 2.4: count the cells of the grid that nobody works in, and divide by all cells.
    cycles = clock_cycles(m, p)
    return 1 - sum(map(len, cycles)) / (p * len(cycles))
