"""A schedule of your own: written as a grid or as a function; proved, simulated, then run.

    python examples/custom_schedule.py

A package can add a schedule to the catalogue, so that `headrace simulate --schedule lazy-1f1b` and
`hr.Pipeline(…, schedule="lazy-1f1b")` know it. In its pyproject.toml:

    [project.entry-points."headrace.schedules"]
    lazy-1f1b = "my_package.my_module:lazy_1f1b"
"""

import torch
from rich.console import Console
from torch import nn

import headrace as hr
from headrace.report.gantt import gantt

GRID = """
0F0,0F1,,,0B0,,0B1,
,1F0,1F1,1B0,,1B1,,
"""
"""A line per rank; an action is stage, kind, micro-batch. Empty cells only please the eye: the order counts."""

BACKWARD_TOO_EARLY = """
0F0,0B0,0F1,0B1
1F0,1F1,1B0,1B1
"""


def lazy_1f1b(ranks: int, micro_batches: int, *, recompute: str = "never") -> hr.schedule.Schedule:
    """1F1B with one forward less in the warm-up of each rank but the last: less memory, more bubble."""
    if recompute != "never":
        raise ValueError(f"recompute={recompute!r}: lazy-1f1b recomputes nothing")
    rows = []
    for rank in range(ranks):
        warm_up = min(max(0, ranks - 2 - rank), micro_batches)
        forwards, backwards = ([f"{rank}{kind}{k}" for k in range(micro_batches)] for kind in "FB")
        row = forwards[:warm_up]
        for k, backward in enumerate(backwards):
            row += [*forwards[warm_up + k : warm_up + k + 1], backward]
        rows.append(",".join(row))
    return hr.schedule.parse("\n".join(rows), name="lazy-1f1b")


def main() -> None:
    written = hr.schedule.parse(GRID.strip(), name="written")
    made = lazy_1f1b(ranks=3, micro_batches=6)
    known = hr.schedule.build("1f1b", ranks=3, micro_batches=6)

    console = Console(width=100)
    costs = hr.Costs(forward=1, backward_input=1, backward_weight=1)
    for schedule in (written, made, known):
        proof = hr.schedule.check(schedule)  # raises InvalidSchedule, with the reason, if it cannot run
        timeline = hr.simulate(schedule, costs)
        print(f"{schedule.name}: in flight {proof.peak_in_flight}, bubble {timeline.bubble_fraction:.1%}")
        console.print(gantt(timeline, width=100))

    try:
        hr.schedule.check(hr.schedule.parse(BACKWARD_TOO_EARLY.strip(), name="too early"))
    except hr.schedule.InvalidSchedule as refutation:
        print(f"refuted: {refutation}\n")

    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(6)))
    x = torch.randn(12, 8)
    for schedule in (made, known):
        model.zero_grad()
        with hr.Pipeline(model, nn.MSELoss(), ranks=3, micro_batches=6, schedule=schedule) as pipe:
            loss = float(pipe.step(x, x))
        norm = torch.cat([p.grad.flatten() for p in model.parameters()]).norm()
        print(f"{schedule.name}: loss {loss:.9f}, gradient {float(norm):.9f}")


if __name__ == "__main__":
    main()
