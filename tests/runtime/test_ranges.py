"""PyTorch's profiler sees the names of actions, and without a profiler nothing is done for it."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, _ExperimentalConfig, profile

import headrace as hr
from headrace.runtime.process.ranges import in_ranges


def a_pipeline(schedule: str) -> hr.Pipeline:
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(4)))
    return hr.Pipeline(model, nn.functional.mse_loss, ranks=2, micro_batches=4, schedule=schedule)


def profiled(pipe: hr.Pipeline) -> list[Any]:
    config = _ExperimentalConfig(profile_all_threads=True)
    with profile(activities=[ProfilerActivity.CPU], experimental_config=config) as profiler:
        pipe.step(torch.ones(8, 4), torch.zeros(8, 4))
    return list(profiler.events())


@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1"])
def test_each_action_is_a_range_around_what_it_computes(schedule: str) -> None:
    with a_pipeline(schedule) as pipe:
        pipe.step(torch.ones(8, 4), torch.zeros(8, 4))
        events = profiled(pipe)
        pipe.step(torch.ones(8, 4), torch.zeros(8, 4))  # without
    threads = {}
    for rank, row in enumerate(pipe.schedule.rows):
        ranges = [event for event in events if event.name in set(map(str, row))]
        assert [event.name for event in sorted(ranges, key=lambda e: e.time_range.start)] == list(map(str, row))
        (threads[rank],) = {event.thread for event in ranges}
        for event in ranges:
            if "F" in event.name:
                inside = [
                    e.name for e in events
                    if e.thread == event.thread
                    and event.time_range.start <= e.time_range.start <= e.time_range.end <= event.time_range.end
                ]  # fmt: skip
                assert "aten::addmm" in inside
    assert threads[0] != threads[1]


def test_without_a_profiler_nothing_is_wrapped() -> None:
    def perform(action: Any, received: Any) -> Any:
        return action, received

    assert in_ranges(perform) is perform
    with profile(activities=[ProfilerActivity.CPU]):
        assert in_ranges(perform) is not perform
    assert in_ranges(perform) is perform
