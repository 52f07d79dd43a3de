"""Names, state, norms, and what a pipeline refuses to be made of."""

import copy
from typing import Any

import pytest
import torch
from torch import nn

import headrace as hr
from headrace.schedule import Action, InvalidSchedule, Placement, Schedule, build
from runtime.cases import DIM, Do, make
from runtime.pipes import Watch, four_linears, pipe_of
from runtime.reference import differing, everything

mse = nn.functional.mse_loss
MODELS = ["nested", "named_layers", "layer_occurs_twice", "tied_in_a_stage", "spectral_norm", "batch_norm", "conv_net"]


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("name", MODELS)
def test_names_are_those_of_the_unsplit_model(name: str, ranks: int) -> None:
    case = make(name)
    pipe = pipe_of(case, ranks, 2)
    expected = case.model.state_dict()
    assert list(pipe.state_dict()) == list(expected)
    assert [n for n, _ in pipe.named_parameters()] == [n for n, _ in case.model.named_parameters()]
    assert [id(p) for p in pipe.parameters()] == [id(p) for p in case.model.parameters()]
    assert [n for n, _ in pipe.named_buffers()] == [n for n, _ in case.model.named_buffers()]
    torch.optim.AdamW(pipe.named_parameters())


@pytest.mark.parametrize("name", MODELS)
def test_state_goes_from_one_cut_to_another_and_to_the_unsplit_model(name: str) -> None:
    trained, fresh, unsplit = make(name), make(name), make(name)
    with torch.no_grad():
        for tensor in trained.model.state_dict().values():
            tensor.add_(1)
    state = pipe_of(trained, 4, 2).state_dict()
    pipe_of(fresh, 2, 2).load_state_dict(state)
    unsplit.model.load_state_dict(state)
    assert differing(everything(fresh.model), everything(trained.model)) == []
    assert differing(everything(unsplit.model), everything(trained.model)) == []


def test_state_that_does_not_fit_is_refused_by_name() -> None:
    pipe = pipe_of(make("nested"), 2, 2)
    state = pipe.state_dict()
    with pytest.raises(ValueError, match=r"keys that belong to no layer of the model: 7.weight"):
        pipe.load_state_dict({**state, "7.weight": torch.zeros(1)})
    del state["0.0.bias"]
    with pytest.raises(ValueError, match=r"state lacks what this process holds: 0.0.bias"):
        pipe.load_state_dict(state)


@pytest.mark.parametrize("norm_type", [2.0, 1.0, float("inf")])
def test_the_norm_is_torchs_whatever_the_cut(norm_type: float) -> None:
    norms = set()
    for name in ("layer_norm", "frozen_layers"):
        clipped = []
        for ranks in (1, 2, 3, 4):
            case = make(name)
            pipe = pipe_of(case, ranks, 1)
            pipe.step(*case.batch(0))
            unsplit = copy.deepcopy(case.model)
            for ours, theirs in zip(case.model.parameters(), unsplit.parameters(), strict=True):
                theirs.grad = None if ours.grad is None else ours.grad.clone()
            expected = nn.utils.clip_grad_norm_(unsplit.parameters(), 0.1, norm_type)
            norm = pipe.clip_grad_norm_(0.1, norm_type)
            assert norm == expected
            for ours, theirs in zip(case.model.parameters(), unsplit.parameters(), strict=True):
                torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-6, atol=0)
            clipped.append(float(norm))
        assert len(set(clipped)) == 1
        norms.add(clipped[0])
    assert len(norms) == 2


def test_the_norm_of_no_gradients_is_zero() -> None:
    assert pipe_of(make("plain"), 2, 2).clip_grad_norm_(1.0) == 0


def test_training_flags() -> None:
    case = make("dropout")
    pipe = pipe_of(case, 2, 2)
    pipe.eval()
    assert not any(m.training for layer in case.model for m in layer.modules())
    pipe.train()
    assert all(m.training for layer in case.model for m in layer.modules())


# -- refusals ----------------------------------------------------------------------------------------------------------


class Own(nn.Sequential):
    def forward(self, x: Any) -> Any:
        return super().forward(x) * 2


def hooked() -> nn.Sequential:
    model = four_linears()
    model.register_forward_hook(lambda *_: None)
    return model


@pytest.mark.parametrize(
    ("model", "error", "complaint"),
    [
        (nn.Linear(2, 2), TypeError, r"model is a Linear, but a pipeline cuts a chain of layers: write it as nn.Seq"),
        (Own(nn.Linear(2, 2)), TypeError, "model is a Own with a forward of its own"),
        (nn.Sequential(), ValueError, "model is an empty nn.Sequential"),
        (hooked(), ValueError, "model has hooks on the nn.Sequential itself"),
    ],
)
def test_models_that_are_no_chain(model: Any, error: type[Exception], complaint: str) -> None:
    with pytest.raises(error, match=complaint):
        hr.Pipeline(model, mse, ranks=1, micro_batches=1)


@pytest.mark.parametrize(
    ("options", "error", "complaint"),
    [
        ({"cut": (2, 3)}, ValueError, r"cut=\(2, 3\) does not fit: .* 2 stages .* 4 layers in all"),
        ({"cut": (4, 0)}, ValueError, r"cut=\(4, 0\) does not fit"),
        ({"cut": (1, 1, 2)}, ValueError, "cut="),
        ({"cut": (1.0, 3)}, TypeError, "cut=.* must be whole numbers"),
        ({"cut": (True, 3)}, TypeError, "cut=.* must be whole numbers"),
        ({"ranks": 5}, ValueError, "5"),
        ({"ranks": 0}, ValueError, "ranks=0 must be at least 1"),
        ({"micro_batches": 0}, ValueError, "micro_batches=0 must be at least 1"),
        ({"micro_batches": 2.0}, TypeError, "micro_batches=2.0 must be a whole number"),
        ({"schedule": "2f2b"}, ValueError, "schedule='2f2b' is unknown: choose one of gpipe, 1f1b"),
        ({"schedule": 3}, TypeError, "schedule=3 must be a name"),
        ({"schedule": build("1f1b", ranks=3, micro_batches=2)}, ValueError, "is for ranks=3 and micro_batches=2"),
        (
            {"schedule": build("1f1b", ranks=2, micro_batches=2), "recompute": "always"},
            ValueError,
            "recompute='always'",
        ),
        ({"recompute": "sometimes"}, ValueError, "recompute='sometimes' is unknown"),
        ({"loss_fn": 3}, TypeError, "loss_fn=3 must be a function"),
        ({"loss_weight": "tokens"}, ValueError, "loss_weight='tokens' must be"),
        ({"devices": "warp"}, ValueError, "devices='warp' is no device"),
        ({"devices": ["cpu"]}, ValueError, "devices has 1 entries for 2 ranks"),
    ],
)
def test_arguments_that_do_not_fit(options: dict[str, Any], error: type[Exception], complaint: str) -> None:
    arguments = {"loss_fn": mse, "ranks": 2, "micro_batches": 2, **options}
    with pytest.raises(error, match=complaint):
        hr.Pipeline(four_linears(), **arguments)


def test_a_wrong_schedule_is_refuted_before_anything_runs() -> None:
    seen: list[Any] = []
    rows = ((Action(0, "F", 0),), (Action(1, "F", 0), Action(1, "B", 0)))
    wrong = Schedule("wrong", rows, Placement.loop(2), 1)
    with pytest.raises(InvalidSchedule, match="0B0"):
        hr.Pipeline(nn.Sequential(Watch(seen.append), nn.Linear(2, 2)), mse, ranks=2, micro_batches=1, schedule=wrong)
    assert seen == []


def test_weights_tied_across_stages_are_refused_by_both_names() -> None:
    model = make("tied_in_a_stage").model
    with pytest.raises(ValueError, match=r"1.weight in stage 0 and 3.weight in stage 1 are the same parameter"):
        hr.Pipeline(model, mse, ranks=2, micro_batches=1, cut=(2, 4))
    again = make("layer_occurs_twice").model
    with pytest.raises(ValueError, match=r"1.weight in stage 0 and 3.weight in stage 1 are the same parameter"):
        hr.Pipeline(again, mse, ranks=2, micro_batches=1, cut=(2, 4))


def test_an_even_cut_leaves_tied_layers_together() -> None:
    model = nn.Sequential(*(nn.Linear(DIM, DIM) for _ in range(4)))
    model[2].weight = model[1].weight
    assert hr.Pipeline(model, mse, ranks=2, micro_batches=1).cut in {(1, 3), (3, 1)}
    model[3].weight = model[0].weight
    with pytest.raises(ValueError, match=r"1.weight in stage 0 and 2.weight in stage 1 are the same parameter"):
        hr.Pipeline(model, mse, ranks=2, micro_batches=1)


def test_it_tells_what_it_is() -> None:
    pipe = hr.Pipeline(nn.Sequential(nn.Linear(DIM, DIM), Do(abs)), mse, ranks=2, micro_batches=3)
    assert repr(pipe) == "<Pipeline 1f1b: 2 ranks, 3 micro-batches, cut (1, 1)>"
