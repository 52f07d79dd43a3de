"""How good are predictions? Step times as planned beside those measured, and the chosen plan beside the best measured.

Costs are those of `headrace profile` (layers measured one by one, then rehearsed), links those of its ping-pong; a
prediction is the simulated makespan. Measured is the median makespan of the pipeline's own timeline over a few steps,
threads of this process. Every configuration is predicted before any is run.

    python bench/prediction.py            ≈ 5 minutes
    python bench/prediction.py --quick    fewer points
"""

import argparse
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import torch
from measure import opening, table
from torch import nn

import headrace as hr
from headrace.layer_costs import at_rows
from headrace.models.gpt import gpt, next_byte_loss
from headrace.partition import partition
from headrace.planner.model import Findings, measured
from headrace.schedule.joined import joined

SCHEDULES = ("gpipe", "1f1b", "zb-h1", "interleaved")
NUMBERS = (2, 4, 8)


@dataclass(frozen=True)
class Model:
    """What is trained."""

    name: str
    model: nn.Sequential
    loss_fn: Any
    x: torch.Tensor
    y: torch.Tensor


def models() -> Iterator[Model]:
    """The GPT of `headrace train`, and an uneven chain of convolutions."""
    torch.manual_seed(0)
    tokens = torch.randint(0, 256, (16, 129))
    yield Model("gpt", gpt(6, 128, heads=4, sequence=128), next_byte_loss, tokens[:, :-1], tokens[:, 1:])
    widths = (3, 16, 24, 24, 32, 48, 64, 64)
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(widths):
        layers.append(nn.Sequential(nn.Conv2d(before, after, 3, padding=1), nn.GroupNorm(4, after), nn.ReLU()).eval())
    flat = [nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(64 * 16, 10)]
    chain = nn.Sequential(*(layer for block in layers for layer in block), *flat)
    yield Model(
        "convolutions", chain, nn.functional.cross_entropy, torch.randn(16, 3, 48, 48), torch.randint(0, 10, (16,))
    )


def predicted(found: Findings, name: str, ranks: int, m: int) -> tuple[hr.schedule.Schedule, tuple[int, ...], float]:
    """The schedule, the cut that evens out compute, and the simulated makespan."""
    schedule = hr.schedule.build(name, ranks=ranks, micro_batches=m)
    cut = partition(at_rows(found.sizes, -(-found.rows // m)).seconds, schedule.stages)
    return schedule, cut, simulated(found, schedule, cut)


def simulated(found: Findings, schedule: hr.schedule.Schedule, cut: tuple[int, ...]) -> float:
    """The makespan, as the runtime runs the schedule."""
    layers = at_rows(found.sizes, -(-found.rows // schedule.micro_batches))
    costs = replace(layers.stage_costs(cut), transfer=found.latency, bandwidth=found.bandwidth)
    return hr.simulate(joined(schedule), costs).makespan


def run(given: Model, schedule: hr.schedule.Schedule, cut: tuple[int, ...], steps: int) -> float:
    """The median makespan of a few steps, after two that do not count."""
    ranks, m = schedule.ranks, schedule.micro_batches
    times = []
    with hr.Pipeline(given.model, given.loss_fn, ranks=ranks, micro_batches=m, schedule=schedule, cut=cut) as pipe:
        for step in range(steps + 2):
            pipe.step(given.x, given.y)
            for parameter in pipe.parameters():
                parameter.grad = None
            if step >= 2:
                times.append(pipe.timeline().makespan)
    return median(times)


def main() -> None:
    """Print a Markdown table for each model, and a summary."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--quick", action="store_true")
    options.add_argument("--steps", type=int, default=5)
    options.add_argument("--rounds", type=int, default=4, help="how often all configurations take their turn")
    given = options.parse_args()
    torch.set_num_threads(1)
    opening("Predicted and measured step times")
    errors: list[float] = []
    for model in models():
        rows, best = [], {}
        points = []
        for ranks in (1, 2):
            found = measured(model.model, (model.x, model.y), model.loss_fn, ranks, NUMBERS)
            for name in SCHEDULES[:2] if given.quick or ranks == 1 else SCHEDULES:
                points += [(ranks, name, m, *predicted(found, name, ranks, m)) for m in NUMBERS]
        times: dict[int, list[float]] = {}
        for _ in range(given.rounds):
            for number, (_, _, _, schedule, cut, _) in enumerate(points):
                times.setdefault(number, []).append(run(model, schedule, cut, given.steps))
        for number, (ranks, name, m, _, _, planned) in enumerate(points):
            took = median(times[number])
            errors.append(planned / took - 1)
            best.setdefault(ranks, []).append((planned, took, name, m))
            cells = (name, ranks, m, f"{planned * 1e3:.1f}", f"{took * 1e3:.1f}", f"{100 * errors[-1]:+.1f} %")
            rows.append([str(cell) for cell in cells])
        print(f"\n{model.name}, ms per step:\n")
        print(table(("schedule", "p", "m", "predicted", "measured", "off"), rows))
        for ranks, all_of in best.items():
            _, took, name, m = min(all_of)
            fastest = min(took for _, took, _, _ in all_of)
            print(f"\np = {ranks}: planned {name}, m = {m}: {100 * (took / fastest - 1):.1f} % above the best measured")
    wrong = sorted(100 * abs(error) for error in errors)
    print(f"\nabsolute error of {len(wrong)} predictions: median {median(wrong):.1f} %, worst {wrong[-1]:.1f} %")


if __name__ == "__main__":
    main()
