"""Plans with an order of actions of their own: searched for the cut, where the catalogue's orders leave more bubble."""

from pathlib import Path
from random import Random

import pytest
import torch
from test_planner import layers
from torch import nn

import headrace as hr
from headrace.planner import Request, make_plan, read_plan
from headrace.planner.choose import choose
from headrace.schedule import check
from headrace.schedule.joined import joined
from headrace.simulate import simulate
from headrace.simulate.memory import peaks_by_rank


def request(seconds: list[int], **more: object) -> Request:
    return Request([layers(seconds)], batch=6, ranks=3, latency=0.5, micro_batches=[6], **more)  # type: ignore[arg-type]


def test_a_search_finds_what_the_catalogue_has_not(tmp_path: Path) -> None:
    asked = request([9, 1, 1, 7, 2, 8], schedules=["1f1b"])
    plain, plan = make_plan(asked), make_plan(request([9, 1, 1, 7, 2, 8], schedules=["1f1b"], search=True))
    assert plan.schedule.name == "searched"
    assert plan.predicted.step_seconds < plain.predicted.step_seconds
    assert plan.alternatives[0].schedule == "1f1b with m=6"
    check(plan.schedule)
    file = tmp_path / "plan.json"
    file.write_text(plan.to_json(), encoding="utf-8")
    assert read_plan(file) == plan


@pytest.mark.parametrize("seed", range(8))
def test_it_is_never_slower_and_what_it_finds_is_true(seed: int) -> None:
    rng = Random(seed)
    seconds = [rng.randint(1, 9) for _ in range(6)]
    memory = rng.choice([None, 1_500])
    schedules = rng.choice([None, ["1f1b", "interleaved"], ["gpipe", "zb-h1"]])
    plain = choose(request(seconds, memory=memory, schedules=schedules))
    found = choose(request(seconds, memory=memory, schedules=schedules, search=True)).best
    assert found.seconds <= plain.best.seconds
    assert found.seconds == simulate(joined(found.schedule), found.costs).makespan
    assert found.peak == tuple(peaks_by_rank(joined(found.schedule), found.costs.memory))
    assert memory is None or max(found.peak) <= memory


def test_a_searched_plan_trains_as_one_device_does() -> None:
    plan = make_plan(request([9, 1, 1, 7, 2, 8], schedules=["1f1b"], search=True))
    torch.manual_seed(1)
    model = nn.Sequential(*(nn.Linear(5, 5) for _ in range(6))).double()
    x, y = torch.randn(6, 5).double(), torch.randn(6, 5).double()
    nn.functional.mse_loss(model(x), y).backward()
    expected = [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
    model.zero_grad()
    with hr.Pipeline(
        model, nn.functional.mse_loss, ranks=3, micro_batches=6, schedule=plan.schedule, cut=plan.cut
    ) as pipe:
        pipe.step(x, y)
    for mine, theirs in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(mine.grad, theirs, rtol=1e-12, atol=1e-12)
