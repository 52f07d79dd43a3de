"""A deep chain of layers through a pipeline: seconds and peak memory of each configuration.

    python examples/train_minimal.py --partitions 4 --micro-batches 16 --layers 40 [--no-checkpoint]

Prints one line for plain training on one device, and one per schedule with as many ranks as --partitions.
"""

import argparse
import time
from collections.abc import Callable
from statistics import median

import torch
from torch import nn

import headrace as hr
from headrace import units
from headrace.profiling.rank_bytes import bytes_of_step


def residual(dim: int) -> nn.Module:
    """One layer."""
    return nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, dim), nn.GELU(), nn.Linear(dim, dim), nn.Dropout(0.1))


def seconds(step: Callable[[], object], steps: int) -> float:
    """The median of `steps` steps after one that warms up."""
    step()
    taken = []
    for _ in range(steps):
        start = time.perf_counter()
        step()
        taken.append(time.perf_counter() - start)
    return median(taken)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--partitions", type=int, default=4)
    options.add_argument("--micro-batches", type=int, default=16)
    options.add_argument("--layers", type=int, default=40)
    options.add_argument("--no-checkpoint", action="store_true", help="keep all activations")
    options.add_argument("--dim", type=int, default=128)
    options.add_argument("--rows", type=int, default=512)
    options.add_argument("--steps", type=int, default=5)
    o = options.parse_args()
    if o.steps < 1:
        options.error("--steps must be at least 1")

    torch.manual_seed(0)
    blocks = [residual(o.dim) for _ in range(o.layers - 1)]
    model = nn.Sequential(*blocks, nn.Linear(o.dim, 10))
    x, y = torch.randn(o.rows, o.dim), torch.randint(0, 10, (o.rows,))
    loss_fn = nn.functional.cross_entropy
    recompute = "never" if o.no_checkpoint else "always"

    print(f"{o.layers} layers, {o.rows} rows in {o.micro_batches} micro-batches, recompute {recompute}")
    print(f"{'':24}{'step':>10}{'peak of the fullest rank':>28}")
    configurations = [("one rank, one batch", "gpipe", 1, 1, "never")]
    configurations += [
        (f"{name}, {o.partitions} ranks", name, o.partitions, o.micro_batches, recompute) for name in ("gpipe", "1f1b")
    ]
    for title, schedule, ranks, m, mode in configurations:
        with hr.Pipeline(model, loss_fn, ranks=ranks, micro_batches=m, schedule=schedule, recompute=mode) as pipe:
            optimizer = torch.optim.AdamW(pipe.named_parameters(), lr=1e-3)

            def step(pipe: hr.Pipeline = pipe, optimizer: torch.optim.Optimizer = optimizer) -> None:
                pipe.step(x, y)
                optimizer.step()
                optimizer.zero_grad()

            took = seconds(step, o.steps)
            peak = max(bytes_of_step(pipe, x, y).values())
        print(f"{title:24}{units.seconds(took):>10}{units.size(peak):>28}")
    print("\nstep: with the optimizer; peak: activations and other bytes besides parameters and their gradients")


if __name__ == "__main__":
    main()
