"""What a rehearsal says is what its steps took, and nothing of the model is left changed by it."""

import threading
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import nn

import headrace as hr
from headrace.costs import Costs
from headrace.layer_costs import LayerCosts
from headrace.planner import NoPlanFits
from headrace.profiling import profile, rehearsal
from headrace.profiling.rehearsal import rehearsed
from headrace.schedule import build
from headrace.schedule.joined import split_in
from headrace.schedule.schedule import Schedule
from headrace.simulate import simulate, simulate_as_run
from headrace.timeline import Timeline

X, Y = torch.randn(8, 6), torch.randn(8, 6)
LOSS = nn.functional.mse_loss


def layers(count: int = 4) -> LayerCosts:
    ones, none = (1.0,) * count, (0.0,) * count
    names = tuple(f"layer{i}" for i in range(count))
    return LayerCosts(names, 2, ones, ones, ones, none, none, none, none, none, none)


def model() -> nn.Sequential:
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Dropout(0.5), nn.Linear(6, 6))


@pytest.mark.parametrize("ranks", [1, 2])
def test_nothing_is_left_changed(ranks: int) -> None:
    own = model()
    own[0].weight.grad = torch.ones(6, 6)
    calls: list[Any] = []
    own[0].weight.register_post_accumulate_grad_hook(calls.append)
    before = {name: value.clone() for name, value in own.state_dict().items()}
    state = torch.get_rng_state()
    (found,) = rehearsed(own, (X, Y), LOSS, [layers()], ranks)
    assert all(seconds > 0 for seconds in (*found.forward, *found.backward))
    assert all(map(torch.equal, own.state_dict().values(), before.values()))
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(own[0].weight.grad, torch.ones(6, 6))
    assert own[1].weight.grad is None
    assert not calls


def test_predictions_are_what_the_steps_took(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stages of two layers: 1F1B takes F 3, B 5 and then F 4, B 6; ZB-H1 takes 1 more for each F, and I 4, W 3."""

    def steps(_: Any, batch: Any, __: Any, schedule: Schedule, cut: Sequence[int]) -> list[Timeline]:
        assert len(batch[0]) == 8
        assert cut == (2, 2)
        if schedule.name == "1f1b":
            return [simulate(schedule, Costs([3, 4], [4, 4], [1, 2]))]
        return [simulate_as_run(schedule, Costs([4, 5], 4, 3, backward=6))]

    monkeypatch.setattr(rehearsal, "_steps", steps)
    (found,) = rehearsed(model(), (X, Y), LOSS, [layers()], ranks=2)
    costs = found.stage_costs((2, 2))
    whole, halves = (build(name, ranks=2, micro_batches=4) for name in ("1f1b", "zb-h1"))
    taken = simulate(whole, Costs([3, 4], [4, 4], [1, 2])).makespan
    assert simulate(whole, costs).makespan == pytest.approx(taken, rel=1e-12)
    assert costs.per_stage(2)["F"] == pytest.approx([3, 4])
    assert costs.per_stage(2)["B"] == pytest.approx([5, 6])
    assert split_in(halves.rows[0]) == frozenset() != split_in(halves.rows[1])  # so stage 0 shows B only, which is 6
    assert costs.per_stage(2)["I"] == pytest.approx([6 / 2 + 1, 4 + 1])  # with what F costs more
    assert costs.per_stage(2)["W"] == pytest.approx([6 / 2, 3])


def test_what_goes_on_between_actions_is_spread_over_them(monkeypatch: pytest.MonkeyPatch) -> None:
    def steps(_: Any, __: Any, ___: Any, schedule: Schedule, ____: Any) -> list[Timeline]:
        spans = simulate(schedule, Costs(2, 2, 2)).spans
        return [Timeline(1, [s._replace(start=2 * s.start, end=s.start + s.end) for s in spans])]

    monkeypatch.setattr(rehearsal, "_steps", steps)
    (found,) = rehearsed(model(), (X, Y), LOSS, [layers()], ranks=1)
    schedule = build("1f1b", ranks=1, micro_batches=4)
    taken = steps(None, None, None, schedule, None)[0].makespan
    assert simulate(schedule, found.stage_costs((4,))).makespan == pytest.approx(taken, rel=1e-12)


def test_a_batch_is_used_only_as_far_as_it_tells_something(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    steps = rehearsal._steps

    def watched(model: Any, batch: Any, *rest: Any) -> Any:
        seen.append(len(batch[0]))
        return steps(model, batch, *rest)

    monkeypatch.setattr(rehearsal, "_steps", watched)
    rehearsed(model(), (torch.randn(100, 6), torch.randn(100, 6)), LOSS, [layers()], ranks=1)
    assert set(seen) == {8}


def test_what_cannot_be_rehearsed_stays_as_it_was_measured() -> None:
    one_by_one = layers()
    assert rehearsed(model().to("meta"), (X, Y), LOSS, [one_by_one], ranks=2)[0] is one_by_one
    assert rehearsed(model(), (X, Y), LOSS, [one_by_one], ranks=5)[0] is one_by_one
    own = model()
    own[0].lock = threading.Lock()
    with pytest.warns(UserWarning, match="the model cannot be copied .* no step is rehearsed"):
        assert rehearsed(own, (X, Y), LOSS, [one_by_one], ranks=2)[0] is one_by_one


def test_bytes_stay() -> None:
    own = model()
    measured = profile(own, X[:2], loss_fn=LOSS, target=Y[:2]).layer_costs(2)
    (found,) = rehearsed(own, (X, Y), LOSS, [measured], ranks=2)
    for name in ("activations", "for_weight", "output", "parameters", "trained", "transient", "rows", "names"):
        assert getattr(found, name) == getattr(measured, name)


def tied() -> nn.Sequential:
    """In halves it would be cut between the layers that share a weight."""
    own = nn.Sequential(*(nn.Linear(6, 6) for _ in range(4)))
    own[2].weight = own[1].weight
    return own


def test_tied_layers_stay_in_one_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    cuts: list[Sequence[int]] = []
    steps = rehearsal._steps

    def watched(*given: Any) -> Any:
        cuts.append(given[-1])
        return steps(*given)

    monkeypatch.setattr(rehearsal, "_steps", watched)
    rehearsed(tied(), (X, Y), LOSS, [layers()], ranks=2)
    assert set(cuts) <= {(1, 3), (3, 1)} != set()
    assert hr.plan(tied(), (X, Y), LOSS, ranks=2, schedules=["1f1b"], micro_batches=[2]).cut in {(1, 3), (3, 1)}
    assert hr.measured_cut(tied(), X, ranks=2) in {(1, 3), (3, 1)}


def test_what_tied_layers_leave_uncut_is_not_rehearsed() -> None:
    own = tied()
    own[3].weight = own[0].weight
    one_by_one = layers()
    assert rehearsed(own, (X, Y), LOSS, [one_by_one], ranks=2)[0] is one_by_one
    with pytest.raises(NoPlanFits, match=r"tied weights\) leaves 1 piece"):
        hr.plan(own, (X, Y), LOSS, ranks=2, schedules=["1f1b"])


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_steps_are_rehearsed_even_where_gradients_are_switched_off(mode: Any) -> None:
    own = model()
    with mode():
        x, y = torch.randn(8, 6), torch.randn(8, 6)
        (found,) = rehearsed(own, (x, y), LOSS, [layers()], ranks=2)
        assert not torch.is_grad_enabled()
    assert all(seconds > 0 for seconds in (*found.forward, *found.backward))
