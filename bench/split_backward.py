"""(e) What splitting a backward costs: I + W against B on one transformer block, and how much of B can wait for W.

One thread, one stage, micro-batch by micro-batch in turn: B, I + W, B, … The forward of a split backward is dearer,
too, as it prepares for it.
"""

import argparse
import time
from collections import defaultdict
from statistics import median

import torch
from measure import opening, spread, table

from headrace.models.gpt import Block
from headrace.runtime.stage.boundary import ONE_TENSOR, Parcel
from headrace.runtime.stage.randomness import OwnGenerators
from headrace.runtime.stage.stage import Stage

SIZES = [(32, 16, 1), (32, 128, 4), (128, 128, 4), (256, 128, 4), (512, 128, 4)]  # dim, sequence, rows


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("--rounds", type=int, help="rounds B, I + W")
    options = parser.parse_args()
    torch.set_num_threads(1)
    opening("A block of a GPT, 4 heads, one thread: milliseconds per micro-batch")
    header = ["dim, sequence, rows", "F", "F, split", "B", "I", "W", "I + W", "(I + W) / B", "(F + I + W) / (F + B)"]
    rows = []
    for size in SIZES:
        rounds = options.rounds or (200 if size[0] < 128 else 40) // (4 if options.quick else 1)
        rows.append([", ".join(map(str, size)), *_measured(*size, rounds)])
    print(table(header, rows))


def _measured(dim: int, sequence: int, batch: int, rounds: int) -> list[str]:
    stage = Stage(0, {"block": Block(dim, 4, 0.0, 0.02)}, 0, torch.device("cpu"), OwnGenerators(torch.device("cpu")))
    stage.prepare(1)
    parcel = Parcel((torch.randn(batch, sequence, dim),), (True,), ONE_TENSOR)
    gradient = (torch.randn(batch, sequence, dim),)
    took: dict[str, list[float]] = defaultdict(list)
    for _ in range(5):
        _round(stage, parcel, gradient, defaultdict(list))
    for _ in range(rounds):
        _round(stage, parcel, gradient, took)
    took["I + W"] = [i + w for i, w in zip(took["I"], took["W"], strict=True)]
    halves = median(took["I"]) + median(took["W"])
    dearer = halves / median(took["B"])
    all_dearer = (median(took["F, split"]) + halves) / (median(took["F"]) + median(took["B"]))
    times = [spread(took[name], 1e3) for name in ("F", "F, split", "B", "I", "W", "I + W")]
    return [*times, f"{dearer:.2f}", f"{all_dearer:.2f}"]


def _round(stage: Stage, parcel: Parcel, gradient: tuple[torch.Tensor], took: dict[str, list[float]]) -> None:
    """A micro-batch with a whole backward, then one with a split one."""
    marks = [time.perf_counter()]
    stage.forward(0, parcel, seed=0, tail=None, recompute=False)
    marks.append(time.perf_counter())
    stage.backward(0, gradient)
    marks.append(time.perf_counter())
    stage.forward(0, parcel, seed=0, tail=None, recompute=False, split=True)
    marks.append(time.perf_counter())
    stage.backward_input(0, gradient)
    marks.append(time.perf_counter())
    stage.backward_weight(0)
    marks.append(time.perf_counter())
    for i, name in enumerate(("F", "B", "F, split", "I", "W")):
        took[name].append(marks[i + 1] - marks[i])


if __name__ == "__main__":
    main()
