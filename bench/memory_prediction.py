"""(i) How good are predictions of memory? Peak bytes of saved activations, as predicted and as counted in real steps.

Predicted are the peaks that a plan is checked by: bytes of the layers, profiled one at a time, added up by the cut and
the order of the rows. Counted is what is alive on each rank between its actions, beyond what stays between steps
(parameters, gradients, the batch), with messages copied as between devices: see `headrace.profiling.kept_bytes`.
Beside it, what layers need while they work included: the most bytes at any time.

    python bench/memory_prediction.py            ≈ 2 minutes
    python bench/memory_prediction.py --quick    p = 2 only
"""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from statistics import median

import torch
from measure import opening, table
from prediction import NUMBERS, SCHEDULES, Model, models

import headrace as hr
from headrace.layer_costs import LayerCosts, at_rows
from headrace.partition import partition
from headrace.profiling import profile_as_rank
from headrace.profiling.kept_bytes import Kept, kept_in_step
from headrace.schedule import Schedule
from headrace.schedule.joined import joined
from headrace.simulate import peak_memory_of

MODES = ("never", "always")
MB = 1e6
HEADER = ("schedule", "recompute", "p", "m", *("predicted", "counted", "off at most"), *("with work", "counted", "off"))


def profiled(given: Model, ranks: int) -> list[LayerCosts]:
    """The layers at the sizes that the planner would measure."""
    rows = [len(given.x) // m for m in NUMBERS]
    return [
        profile_as_rank(given.model, given.x[:n], ranks, loss_fn=given.loss_fn, target=given.y[:n]).layer_costs(n)
        for n in rows
    ]


def predicted(layers: LayerCosts, schedule: Schedule, cut: Sequence[int]) -> list[Kept]:
    """Peak bytes of each rank, without its parameters."""
    memory = replace(layers.stage_costs(cut).memory, parameters=0)
    each = [peak_memory_of(joined(schedule), one) for one in (replace(memory, working=0), memory)]
    return [Kept(*both) for both in zip(*each, strict=True)]


def counted(given: Model, schedule: Schedule, cut: Sequence[int]) -> list[Kept]:
    """The same, in a real step."""
    ranks, m = schedule.ranks, schedule.micro_batches
    with hr.Pipeline(given.model, given.loss_fn, ranks=ranks, micro_batches=m, schedule=schedule, cut=cut) as pipe:
        kept = kept_in_step(pipe, given.x, given.y)
    for parameter in given.model.parameters():
        parameter.grad = None
    return [kept[rank] for rank in range(ranks)]


def off(ours: Sequence[Kept], theirs: Sequence[Kept], part: str) -> list[float]:
    """Relative errors of one of the two numbers, rank by rank."""
    return [getattr(one, part) / getattr(other, part) - 1 for one, other in zip(ours, theirs, strict=True)]


def main() -> None:
    """Print a Markdown table for each model, and a summary."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--quick", action="store_true")
    options.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4])
    options.add_argument("--micro-batches", type=int, nargs="+", default=[8])
    options.add_argument("--schedules", nargs="+", default=list(SCHEDULES))
    given = options.parse_args()
    torch.set_num_threads(1)
    opening("Predicted and counted peak bytes of saved activations")
    errors: dict[str, list[float]] = {"between_actions": [], "at_most": []}
    for model in models():
        rows = []
        for ranks in [2] if given.quick else given.ranks:
            sizes = profiled(model, ranks)
            for m, name, mode in (
                (m, name, mode) for m in given.micro_batches for name in given.schedules for mode in MODES
            ):
                schedule = hr.schedule.build(name, ranks=ranks, micro_batches=m, recompute=mode)
                layers = at_rows(sizes, len(model.x) // m)
                cut = partition(layers.seconds, schedule.stages)
                ours, theirs = predicted(layers, schedule, cut), counted(model, schedule, cut)
                cells = [name, mode, str(ranks), str(m)]
                for part, every in errors.items():
                    wrong = off(ours, theirs, part)
                    every.extend(wrong)
                    cells += [" ".join(f"{getattr(kept, part) / MB:.2f}" for kept in each) for each in (ours, theirs)]
                    cells.append(f"{100 * max(wrong, key=abs):+.2f} %")
                rows.append(cells)
        print(f"\n{model.name}, MB of each rank:\n")
        print(table(HEADER, rows), flush=True)
    for part, words in (
        ("between_actions", "saved activations"),
        ("at_most", "all, what layers need to work included"),
    ):
        wrong = sorted(100 * error for error in errors[part])
        each = f"absolute error: median {median(map(abs, wrong)):.3f} %, from {wrong[0]:+.3f} % to {wrong[-1]:+.3f} %"
        print(f"\n{len(wrong)} peaks of {words}: {each}")


if __name__ == "__main__":
    main()
