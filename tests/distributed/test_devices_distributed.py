"""Ranks on different devices: each device is measured once, and who is slower gets less to do."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import nn

import headrace as hr
from distributed.crew import Crew
from headrace.planner.model import measured
from headrace.profiling import LayerProfile, RankProfiles, by_rank, profile_by_rank, rehearsal
from headrace.profiling.rehearsal import rehearsed
from headrace.schedule.joined import joined
from headrace.simulate import simulate

LOSS = nn.functional.mse_loss


def model() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(*(nn.Linear(4, 4) for _ in range(8)))


def on_hosts(hosts: Sequence[str], seconds: Sequence[float | None]) -> "mock._patch[object]":
    """Where processes are said to be, and how long a layer takes there; None where nobody should measure."""
    rank = dist.get_rank()
    real = by_rank.profile

    def profile(*arguments: object, **keywords: object) -> LayerProfile:
        takes = seconds[rank]
        if takes is None:
            raise ValueError("measured on a device that another rank measures")
        found: LayerProfile = real(*arguments, **keywords)  # type: ignore[arg-type]
        each, none = (takes,) * len(found.names), (0.0,) * len(found.names)
        found = replace(found, loss_forward=0, loss_backward=0)
        return replace(found, forward=each, backward=each, backward_input=each, backward_weight=none)

    return mock.patch.multiple(by_rank, profile=profile, host_identity=lambda: hosts[rank])


def found(hosts: Sequence[str], seconds: Sequence[float | None], ranks: int) -> tuple[float, RankProfiles]:
    with on_hosts(hosts, seconds):
        profiles = profile_by_rank(model(), torch.ones(2, 4), ranks)
    return profiles.first.forward[0], profiles


@pytest.mark.parametrize(
    ("hosts", "seconds", "slowness"),
    [
        ("ab", (1.0, 3.0), (1, 3)),
        ("ab", (4.0, 1.0), (1, 0.25)),
        ("ab", (1.0, 1.09), 1),
        ("aa", (1.0, None), 1),
        ("aabb", (1.0, None, 2.0, None), (1, 1, 2, 2)),
        ("abab", (1.0, 2.0, None, None), (1, 2, 1, 2)),
    ],
)
def test_each_device_is_measured_once(
    crew: Callable[[int], Crew], hosts: str, seconds: tuple[float | None, ...], slowness: object
) -> None:
    for first, profiles in crew(len(hosts)).run(found, hosts, seconds, len(hosts)):
        assert first == seconds[0]
        assert profiles.slowness == slowness


def test_with_other_processes_than_ranks_the_first_counts(crew: Callable[[int], Crew]) -> None:
    for first, profiles in crew(2).run(found, "ab", (1.0, 3.0), 4):
        assert first == 1
        assert profiles.slowness == 1


def refused() -> str:
    with on_hosts("ab", (1.0, None)), pytest.raises(ValueError, match="measured on a device") as caught:
        profile_by_rank(model(), torch.ones(2, 4), 2)
    return str(caught.value)


def test_what_goes_wrong_on_one_device_is_raised_everywhere(crew: Callable[[int], Crew]) -> None:
    assert len(crew(2).run(refused)) == 2


def cuts() -> tuple[tuple[int, ...], tuple[int, ...], object]:
    batch = torch.ones(8, 4), torch.ones(8, 4)
    with on_hosts("ab", (1.0, 3.0)), mock.patch("headrace.planner.model.rehearsed", lambda *a: a[3]):
        cut = hr.measured_cut(model(), batch[0][:2], 2)
        plan = hr.plan(model(), batch, LOSS, ranks=2, schedules=["1f1b"], micro_batches=[4])
        slowness = measured(model(), batch, LOSS, 2, [4]).slowness
    return cut, plan.cut, slowness


def test_the_slower_device_gets_fewer_layers(crew: Callable[[int], Crew]) -> None:
    # the fastest step is not the one with the evenest ranks: with (7, 1), rank 0 never waits for rank 1
    assert crew(2).run(cuts) == [((6, 2), (7, 1), (1, 3))] * 2


def test_a_rehearsal_leaves_slowness_to_the_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 1 takes three times as long for the same layers: that is its slowness, not the layers'."""
    ones, none = (1.0,) * 4, (0.0,) * 4
    layers = hr.layer_costs.LayerCosts(tuple("abcd"), 2, ones, ones, ones, none, none, none, none, none, none)
    costs = layers.stage_costs((2, 2)).slowed([1, 3])
    monkeypatch.setattr(rehearsal, "_steps", lambda *a: [simulate(joined(a[3]), costs)])
    small = nn.Sequential(*(nn.Linear(4, 4) for _ in range(4)))
    batch = torch.ones(8, 4), torch.ones(8, 4)
    assert rehearsed(small, batch, LOSS, [layers], 2, (1, 3)) == (layers,)
    assert rehearsed(small, batch, LOSS, [layers], 2)[0].forward == (1, 1, 3, 3)
