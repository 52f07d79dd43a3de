"""I and W together are B, bit by bit, whatever the model and the schedule; and W comes when the schedule says so."""

import random
from typing import Any, Final

import naive
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import headrace as hr
from headrace.runtime.failure import PipelineFailure
from headrace.runtime.model.warn import BatchStatisticsWarning
from headrace.schedule import Action
from headrace.schedule.joined import split_in
from runtime.cases import CASES, make
from runtime.pipes import four_linears, pipe_of
from runtime.splits import ONE_RANK, Seen, assert_parity, row, seen, split

pytestmark = pytest.mark.filterwarnings(f"ignore::{BatchStatisticsWarning.__module__}.BatchStatisticsWarning")
__all__ = ["seen"]

KEEPS_NO_STATE: Final = [
    name
    for name in CASES
    if make(name).threads and name not in ("batch_norm", "spectral_norm", "counting_buffer", "replaced_buffer")
]
FEW: Final = [
    (1, 3, "1f1b", "never", 1),
    (2, 4, "1f1b", "always", 2),
    (3, 3, "gpipe", "except_last", 1),
    (4, 7, "1f1b", "never", 3),
]


@pytest.mark.parametrize(("ranks", "micro_batches", "schedule", "recompute", "lag"), FEW)
@pytest.mark.parametrize("name", CASES)
def test_every_case_is_bitwise_the_unsplit_model(
    name: str, ranks: int, micro_batches: int, schedule: str, recompute: str, lag: int
) -> None:
    if not make(name).threads and ranks > 1:
        pytest.skip("refused when ranks are threads")
    whole = hr.schedule.build(schedule, ranks=ranks, micro_batches=micro_batches, recompute=recompute)
    assert_parity(lambda: make(name), split(whole, lag))


@pytest.mark.parametrize("name", ["conv_net", "dropout", "token_weights", "used_twice_in_a_layer", "unused_output"])
def test_gradients_are_added_up_in_the_order_of_w(name: str) -> None:
    assert_parity(lambda: make(name), row(ONE_RANK))


@settings(max_examples=40, deadline=None)
@given(
    name=st.sampled_from(KEEPS_NO_STATE),
    stages=st.integers(1, 4),
    ranks=st.integers(1, 4),
    micro_batches=st.integers(1, 4),
    rng=st.randoms(use_true_random=False),
)
def test_random_schedules(name: str, stages: int, ranks: int, micro_batches: int, rng: random.Random) -> None:
    schedule = naive.random_schedule(rng, stages, min(ranks, stages), micro_batches, ["IW", "RIW"])
    assert_parity(lambda: make(name), schedule)


def test_whole_and_split_backwards_in_one_row() -> None:
    schedule = row("0F0 0F1 0F2 0B1 0I0 0R2 0W0 0I2 0W2")
    assert_parity(lambda: make("dropout"), schedule)


def test_w_computes_what_is_heavy_and_only_that_waits(seen: Seen) -> None:
    assert_parity(lambda: make("layer_norm"), row(ONE_RANK), steps=1)
    linears = sorted([(6, 6), (6,), (12, 6), (12,), (6, 12), (6,), (12, 6), (12,), (6, 12), (6,), (6, 6), (6,)])
    assert seen.leaves == [linears] * 3
    assert seen.products == [6, 6, 6]


def test_weights_have_no_gradient_before_w() -> None:
    model = four_linears()
    had: list[list[bool]] = []

    class Look(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            had.append([p.grad is not None for p in model.parameters()])
            return x

    chain = nn.Sequential(*model, Look())
    schedule = row("0F0 0F1 0I0 0R1 0W0 0I1 0W1")
    with hr.Pipeline(chain, nn.functional.mse_loss, ranks=1, micro_batches=2, schedule=schedule) as pipe:
        pipe.step(torch.randn(4, 6), torch.randn(4, 6))
    assert had == [[False] * 8] * 3
    assert all(p.grad is not None for p in model.parameters())


def test_adjacent_halves_run_as_a_whole_backward(seen: Seen) -> None:
    assert_parity(lambda: make("dropout"), row("0F0 0F1 0I0 0W0 0I1 0W1"))
    assert (seen.forwards, seen.products) == (0, [])


def test_which_backwards_are_split() -> None:
    actions = row("0F0 0F1 0F2 0F3 0I0 0I1 0W1 0W0 0B2 0I3 0W3").rows[0]
    assert split_in(actions) == {(0, 0)}
    assert split_in(tuple(Action.parse(a) for a in ("0I0", "1W0", "1I1", "0W0"))) == {(0, 0), (1, 1)}


def test_what_is_recomputed_is_split(seen: Seen) -> None:
    assert_parity(lambda: make("plain"), row("0F0 0F1 0R0 0I0 0R1 0I1 0W0 0W1"), steps=1)
    assert seen.products == [3, 3]


def test_evaluation_and_prediction_do_not_split(seen: Seen) -> None:
    case = make("plain")
    with pipe_of(case, 1, 3, schedule=row(ONE_RANK)) as pipe:
        pipe.evaluate(case.x, case.y)
        pipe.predict(case.x)
    assert (seen.operations, seen.products) == (0, [])


def test_a_failure_in_w_says_where() -> None:
    case = make("plain")
    whole = hr.schedule.build("1f1b", ranks=2, micro_batches=3)
    calls: list[int] = []

    def fail(_: Tensor) -> None:
        calls.append(1)
        if len(calls) == 2:
            raise ZeroDivisionError("in a hook")

    with pipe_of(case, 2, 3, schedule=split(whole)) as pipe:
        handle = case.model[-1].weight.register_hook(fail)
        with pytest.raises(
            PipelineFailure, match=r"rank 1 failed at 1W1 .*weight gradient.*ZeroDivisionError"
        ) as failed:
            pipe.step(case.x, case.y)
        assert failed.value.action == Action(1, "W", 1)
        assert all(p.grad is None for p in case.model.parameters())
        handle.remove()
        assert all(not stage._halves for stage in pipe._holding.stages.values())
        pipe.step(case.x, case.y)


def test_hooks_hear_of_each_gradient_once_and_whole() -> None:
    schedule = row("0F0 0F1 0I0 0I1 0W0 0W1")

    def heard(run: Any) -> list[tuple[str, str, Tensor]]:
        case = make("used_twice_in_a_layer")
        result: list[tuple[str, str, Tensor]] = []
        for name, p in case.model.named_parameters():
            p.register_hook(lambda g, name=name: result.append(("hook", name, g.clone())))
            p.register_hook(lambda g, name=name: g * 2 if "bias" in name else None)
            p.register_post_accumulate_grad_hook(
                lambda p, name=name: result.append(("accumulated", name, p.grad.clone()))
            )
        run(case)
        return sorted(result, key=lambda entry: entry[:2])

    def pipeline(case: Any) -> None:
        with pipe_of(case, 1, 2, schedule=schedule) as pipe:
            pipe.step(case.x, case.y)

    def plain(case: Any) -> None:
        xs, ys = case.x.tensor_split(2), case.y.tensor_split(2)
        losses = [nn.functional.mse_loss(case.model(x.clone()), y) for x, y in zip(xs, ys, strict=True)]
        for loss, y in zip(losses, ys, strict=True):
            loss.backward(torch.tensor(len(y) / len(case.y)))

    ours, theirs = heard(pipeline), heard(plain)
    assert [entry[:2] for entry in ours] == [entry[:2] for entry in theirs]
    assert all(torch.equal(one[2], other[2]) for one, other in zip(ours, theirs, strict=True))


def test_all_of_a_step_in_many_steps_with_different_data() -> None:
    whole = hr.schedule.build("1f1b", ranks=3, micro_batches=5, recompute="except_last")
    assert_parity(lambda: make("token_weights"), split(whole, 2), steps=8)


def test_a_schedule_with_split_backwards_is_accepted_and_its_spans_are_its_actions() -> None:
    case, schedule = make("plain"), split(hr.schedule.build("1f1b", ranks=2, micro_batches=3))
    with pipe_of(case, 2, 3, schedule=schedule) as pipe:
        pipe.step(case.x, case.y)
        assert _spans(pipe) == dict(enumerate(schedule.rows))


def _spans(pipe: hr.Pipeline) -> dict[int, tuple[Action, ...]]:
    spans: dict[int, list[Action]] = {}
    for span in pipe.timeline().spans:
        spans.setdefault(span.rank, []).append(span.action)
    return {rank: tuple(actions) for rank, actions in spans.items()}
