"""(j) How good are predictions where ranks are accelerators? Step times as planned beside those measured.

Layers sleep as if a device worked for them: in the forward and in both halves of the backward, each a time of its own.

    forward    sleeps f · (1 + rows) / 2                                     f from 8 to 20 ms, another for each layer
    backward   ◀─ sleeps for the input ◀─ product ◀─ sleeps for the weight   as much again for each, ± a quarter

The processors are free meanwhile, so ranks do not slow each other down. Everything else is as in prediction.py: layers
are profiled and rehearsed, the cut evens out compute, the schedule is simulated, and then a pipeline runs it. With
`one by one`, the same without the rehearsal, as it is where layers are on accelerators.

    python bench/emulated_prediction.py            ≈ 15 minutes, most of them asleep
    python bench/emulated_prediction.py --quick    p = 2 only
"""

import argparse
import random
import time
from statistics import median
from typing import Any

import torch
from measure import opening, table
from prediction import SCHEDULES, Model, predicted, run, simulated
from stages import hold
from torch import Tensor, nn

from headrace.planner.model import Findings, measured
from headrace.profiling import profile_as_rank

NUMBERS = (4, 8, 16)
ROWS = 16


class Sleeping(nn.Module):
    """A layer that takes given seconds for a row, and almost no arithmetic.

    The sleeps of the backward are nodes of the graph on either side of the product, so that a runtime that splits the
    backward has them in I and in W.
    """

    def __init__(self, forward: float, backward_input: float, backward_weight: float) -> None:
        super().__init__()
        self.seconds = forward, backward_input, backward_weight
        self.weight = nn.Parameter(torch.eye(4))

    def forward(self, x: Tensor) -> Tensor:
        since = time.perf_counter()
        forward, backward_input, backward_weight = (seconds * (1 + len(x)) / 2 for seconds in self.seconds)
        x, weight = _Sleep.apply(x, backward_input), _Sleep.apply(self.weight, backward_weight)
        result = nn.functional.linear(x, weight)
        hold(forward, since)
        return result


class _Sleep(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, seconds: float) -> Tensor:
        ctx.seconds = seconds
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        hold(ctx.seconds, time.perf_counter())
        return gradients[0], None


def model(ranks: int) -> Model:
    """Uneven layers, two more than two for each rank."""
    draw = random.Random(ranks)
    layers = []
    for _ in range(2 * ranks + 2):
        forward = draw.uniform(0.008, 0.020)
        layers.append(Sleeping(forward, forward * draw.uniform(0.75, 1.25), forward * draw.uniform(0.75, 1.25)))
    torch.manual_seed(0)
    return Model("sleeping", nn.Sequential(*layers), nn.functional.mse_loss, torch.randn(ROWS, 4), torch.randn(ROWS, 4))


def one_by_one(given: Model, ranks: int, links: Findings) -> Findings:
    """The layers as they were measured, before any rehearsal."""
    sizes = []
    for m in reversed(NUMBERS):
        rows = ROWS // m
        x, y = given.x[:rows], given.y[:rows]
        sizes.append(profile_as_rank(given.model, x, ranks, loss_fn=given.loss_fn, target=y).layer_costs(rows))
    return Findings(tuple(sizes), ROWS, links.latency, links.bandwidth, None, "cpu")


def main() -> None:
    """Print a Markdown table, and a summary."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--quick", action="store_true")
    options.add_argument("--ranks", type=int, nargs="+", default=[2, 4, 8])
    options.add_argument("--steps", type=int, default=3)
    given = options.parse_args()
    torch.set_num_threads(1)
    opening("Predicted and measured step times of emulated accelerators")
    rows, errors, plain = [], [], []
    for ranks in [2] if given.quick else given.ranks:
        sleeping = model(ranks)
        found = measured(sleeping.model, (sleeping.x, sleeping.y), sleeping.loss_fn, ranks, NUMBERS)
        alone = one_by_one(sleeping, ranks, found)
        for name in SCHEDULES:
            for m in NUMBERS:
                schedule, cut, planned = predicted(found, name, ranks, m)
                took = run(sleeping, schedule, cut, given.steps)
                before = simulated(alone, schedule, cut)
                errors.append(planned / took - 1)
                plain.append(before / took - 1)
                milliseconds = [f"{seconds * 1e3:.0f}" for seconds in (planned, took)]
                off = [f"{100 * error:+.1f} %" for error in (errors[-1], plain[-1])]
                rows.append([name, str(ranks), str(m), *milliseconds, *off])
    print(table(("schedule", "p", "m", "predicted, ms", "measured, ms", "off", "one by one"), rows))
    for what, wrong in (("", errors), ("one by one, ", plain)):
        off = sorted(100 * abs(error) for error in wrong)
        print(f"\n{what}absolute error of {len(off)} predictions: median {median(off):.1f} %, worst {off[-1]:.1f} %")


if __name__ == "__main__":
    main()
