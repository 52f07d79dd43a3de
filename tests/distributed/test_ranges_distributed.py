"""In a process of its own, a rank's actions are ranges of a plain profiler."""

from collections.abc import Callable

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

import headrace as hr
from distributed.crew import Crew
from headrace.schedule import build


def profiled() -> list[str]:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    with hr.Pipeline(model, nn.functional.mse_loss, ranks=2, micro_batches=3) as pipe:
        with profile(activities=[ProfilerActivity.CPU]) as profiler:
            pipe.step(torch.ones(6, 4), torch.zeros(6, 4))
        return [e.name for e in sorted(profiler.events(), key=lambda e: e.time_range.start)]


def test_each_process_sees_its_own_actions(crew: Callable[[int], Crew]) -> None:
    rows = build("1f1b", ranks=2, micro_batches=3).rows
    every = {str(action) for row in rows for action in row}
    for row, names in zip(rows, crew(2).run(profiled), strict=True):
        assert [name for name in names if name in every] == list(map(str, row))
