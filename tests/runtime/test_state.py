"""What a model carries from step to step: random numbers, buffers, training flags. Only `step` moves them, and once."""

import warnings
from collections import defaultdict
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import headrace as hr
from headrace.runtime.model.warn import BatchStatisticsWarning
from headrace.schedule import build
from runtime.cases import DIM, Case, Checkpointed, Do, make
from runtime.pipes import SEED, Race, Watch, four_linears, pipe_of
from runtime.reference import Unsplit, backward_order, differing, everything, gradients, same

mse = nn.functional.mse_loss
quiet = pytest.mark.filterwarnings(f"ignore::{BatchStatisticsWarning.__module__}.BatchStatisticsWarning")


class Masks(nn.Module):
    """A dropout that remembers its masks by micro-batch, whose number comes in beside its input."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[int, list[Tensor]] = defaultdict(list)

    def forward(self, value: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        x, k = value
        mask = nn.functional.dropout(torch.ones(8, 8), training=self.training)
        self.seen[int(k[0])].append(mask)
        return x * mask[0, 0], k


def masks_pipe(ranks: int, recompute: str, schedule: str = "1f1b") -> tuple[hr.Pipeline, list[Masks]]:
    layers = [Masks() for _ in range(4)]
    model = nn.Sequential(First(), *layers, Do(lambda v: v[0]))
    torch.manual_seed(SEED)
    return hr.Pipeline(model, mse, ranks=ranks, micro_batches=3, schedule=schedule, recompute=recompute), layers


class First(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(DIM, DIM)

    def forward(self, value: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        return self.layer(value[0]), value[1]


X = (torch.randn(3, DIM), torch.arange(3))
Y = torch.randn(3, DIM)


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_a_recompute_draws_what_the_first_run_drew(ranks: int) -> None:
    pipe, layers = masks_pipe(ranks, "always")
    pipe.step(X, Y)
    for layer in layers:
        assert all(len(masks) == 2 and torch.equal(*masks) for masks in layer.seen.values())


def test_masks_depend_on_layer_micro_batch_step_and_seed_alone() -> None:
    drawn = []
    for ranks, recompute, schedule in [(1, "never", "gpipe"), (3, "never", "1f1b"), (4, "except_last", "gpipe")]:
        pipe, layers = masks_pipe(ranks, recompute, schedule)
        for _ in range(2):
            pipe.step(X, Y)
        with_r = 1 if recompute == "never" else 2
        drawn.append(
            [layer.seen[0][s] for layer in layers for s in (0, with_r)] + [layer.seen[2][-1] for layer in layers]
        )
    for other in drawn[1:]:
        assert all(map(torch.equal, drawn[0], other))
    different = {mask.numpy().tobytes() for mask in drawn[0]}
    assert len(different) == len(drawn[0])
    pipe, layers = masks_pipe(1, "never")
    torch.manual_seed(SEED + 1)
    pipe.step(X, Y)
    assert layers[0].seen[0][0].numpy().tobytes() not in different


def test_a_resumed_run_draws_what_the_first_would_have() -> None:
    first, layers = masks_pipe(2, "never")
    first.step(X, Y)
    first.step(X, Y)
    resumed, again = masks_pipe(2, "never")
    resumed.steps = 1
    resumed.step(X, Y)
    assert torch.equal(again[3].seen[1][0], layers[3].seen[1][1])


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("name", ["dropout", "noise", "checkpointed"])
def test_the_users_generator_is_left_alone(name: str, ranks: int) -> None:
    case = make(name)
    pipe = pipe_of(case, ranks, 3, recompute="always")
    torch.manual_seed(77)
    expected = torch.rand(3)
    torch.manual_seed(77)
    pipe.step(*case.batch(0))
    pipe.evaluate(*case.batch(0))
    pipe.predict(case.batch(0)[0])
    assert torch.equal(torch.rand(3), expected)


def test_the_users_generator_is_left_alone_by_a_failure() -> None:
    def fail(_: Tensor) -> Tensor:
        raise ArithmeticError("deliberate")

    for ranks in (1, 2):
        pipe = hr.Pipeline(nn.Sequential(nn.Dropout(), Do(fail)), mse, ranks=ranks, micro_batches=2)
        before = torch.get_rng_state()
        with pytest.raises(hr.PipelineFailure, match="deliberate"):
            pipe.step(torch.zeros(2, DIM), torch.zeros(2, DIM))
        assert torch.equal(before, torch.get_rng_state())


def test_drawing_in_a_backward_is_refused_between_threads() -> None:
    case = make("checkpointed_dropout")
    pipe = pipe_of(case, 2, 2)
    with pytest.raises(hr.PipelineFailure, match=r"draws random numbers in a backward.*recompute=.*torchrun"):
        pipe.step(*case.batch(0))
    pipe.eval()  # where nothing draws
    pipe.step(*case.batch(0))


class DrawsLater(nn.Module):
    """Draws only when told to."""

    def __init__(self) -> None:
        super().__init__()
        self.on = False

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rand(()) if self.on else x


def test_a_layer_that_begins_to_draw_later() -> None:
    late = DrawsLater()
    model = nn.Sequential(nn.Linear(DIM, DIM), late)
    x, y = torch.randn(4, DIM), torch.randn(4, DIM)
    torch.manual_seed(SEED)
    pipe = hr.Pipeline(model, mse, ranks=2, micro_batches=2)
    pipe.step(x, y)
    late.on = True
    with pytest.warns(UserWarning, match="random numbers were drawn outside of their streams"):
        pipe.step(x, y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.manual_seed(SEED)
        known = pipe.step(x, y)
    torch.manual_seed(SEED)
    fresh = hr.Pipeline(model, mse, ranks=2, micro_batches=2, recompute="always")
    fresh.steps = 2
    assert same(fresh.step(x, y), known)
    late.on = False
    recomputing = hr.Pipeline(model, mse, ranks=2, micro_batches=2, recompute="always")
    recomputing.step(x, y)
    late.on = True
    model.zero_grad()
    with pytest.raises(RuntimeError, match=r"drawn outside of their streams.*so the gradients of this step are wrong"):
        recomputing.step(x, y)
    assert all(p.grad is None for p in model.parameters())
    recomputing.step(x, y)


class DrawsMuch(nn.Module):
    """Takes its time over random numbers."""

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(10):
            x = x + nn.functional.dropout(x)
        return x


def test_checkpoints_beside_draws() -> None:
    """While one rank's layers recompute themselves, and put back the shared generator, another rank draws."""

    def case() -> Case:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            layers = [*(Checkpointed() for _ in range(8)), DrawsMuch(), nn.Linear(DIM, DIM)]
            return Case(nn.Sequential(*layers), torch.randn(20_000, DIM), torch.randn(20_000, DIM), mse)

    mine, unsplit = case(), Unsplit(case(), SEED)
    pipe = pipe_of(mine, 2, 8, cut=(8, 2))
    before = torch.get_rng_state()
    loss = pipe.step(*mine.batch(0))
    assert torch.equal(torch.get_rng_state(), before)
    assert same(loss, unsplit.step(unsplit.case.batch(0), backward_order(pipe.schedule)))
    assert differing(gradients(mine.model), gradients(unsplit.case.model)) == []


# -- buffers ---------------------------------------------------------------------------------------------------------


@quiet
@pytest.mark.parametrize("recompute", ["never", "always", "except_last"])
@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("name", ["batch_norm", "spectral_norm", "counting_buffer", "replaced_buffer"])
def test_buffers_move_once_per_micro_batch(name: str, ranks: int, recompute: str) -> None:
    race = Race(name, ranks, 3, recompute=recompute)
    for step in range(2):
        race.step(*race.case.batch(step))
    for module in race.case.model.modules():
        if isinstance(module, nn.BatchNorm1d):
            assert module.num_batches_tracked == 6


def test_the_user_is_told_of_batch_norm_once_and_by_name() -> None:
    case = make("batch_norm")
    pipe = pipe_of(case, 2, 2)
    with pytest.warns(
        BatchStatisticsWarning, match=r"^1, 4, 5: batch normalisation sees each of 2 micro-batches"
    ) as told:
        pipe.step(*case.batch(0))
    assert len(told) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pipe.step(*case.batch(0))


def test_the_user_is_not_told_of_batch_norm_where_it_is_the_same() -> None:
    for micro_batches, training in [(1, True), (2, False)]:
        case = make("batch_norm")
        pipe = pipe_of(case, 2, micro_batches).train(training)
        pipe.step(*case.batch(0))


# -- evaluation ------------------------------------------------------------------------------------------------------


@quiet
@pytest.mark.parametrize("recompute", ["never", "always"])
@pytest.mark.parametrize("first", ["step", "evaluate"])
@pytest.mark.parametrize("name", ["dropout", "batch_norm", "spectral_norm", "counting_buffer", "in_place_first"])
def test_evaluation_changes_nothing(name: str, first: str, recompute: str) -> None:
    one, other = make(name), make(name)
    for model in (one.model, other.model):
        model[1].eval()  # one layer of its own mind
    with pipe_of(one, 3, 3, recompute=recompute) as plain, pipe_of(other, 3, 3, recompute=recompute) as evaluated:
        for step in range(3):
            torch.manual_seed(SEED)
            plain.step(*one.batch(step))
            if step or first == "evaluate":
                before = everything(other.model), gradients(other.model)
                flags = [module.training for module in other.model.modules()]
                evaluated.evaluate(*other.batch(1))
                evaluated.predict(other.batch(2)[0])
                with torch.inference_mode():
                    evaluated.evaluate(*other.batch(1), metrics={"mse": mse})
                assert [module.training for module in other.model.modules()] == flags
                assert differing(before[0], everything(other.model)) == []
                assert differing(before[1], gradients(other.model)) == []
            evaluated.step(*other.batch(step))
            for model in (one.model, other.model):
                torch.optim.SGD(model.parameters(), lr=0.1).step()
            assert differing(gradients(one.model), gradients(other.model)) == []
            assert differing(everything(one.model), everything(other.model)) == []


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("name", ["dropout", "expanded_output", "token_ids", "conv_net", "in_place_first"])
@pytest.mark.parametrize("context", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_predictions_are_those_of_the_unsplit_model(name: str, ranks: int, context: Any) -> None:
    case, unsplit = make(name), make(name)
    pipe = pipe_of(case, ranks, 3)
    unsplit.model.eval()
    x, y = case.batch(0)
    parts = [unsplit.model(part) for part in [p.clone() for p in x.clone().tensor_split(3)]]
    with context():
        predicted = pipe.predict(x)
        evaluated = pipe.evaluate(x, y, metrics={"largest": lambda output, _: output.max(), "rows": _rows})
    torch.testing.assert_close(predicted, torch.cat(parts).detach())
    assert not predicted.requires_grad
    torch.testing.assert_close(evaluated["loss"], unsplit.loss_fn(unsplit.model(x), y).detach())
    sizes = [3, 2, 2]
    largest = sum(float(part.detach().max()) * size / 7 for part, size in zip(parts, sizes, strict=True))
    assert float(evaluated["largest"]) == pytest.approx(largest)
    assert float(evaluated["rows"]) == pytest.approx(sum(size * size / 7 for size in sizes))
    pipe.step(x, y)  # nothing of inference mode is left in the model


def _rows(output: Tensor, _: Tensor) -> int:
    return len(output)


def test_a_single_row_can_be_predicted() -> None:
    case = make("plain")
    x = case.x[:1]
    torch.testing.assert_close(pipe_of(case, 3, 4).predict(x), make("plain").model.eval()(x).detach())


def test_a_prediction_may_be_a_nest() -> None:
    model = nn.Sequential(nn.Linear(DIM, DIM), Do(lambda x: {"x": x, "n": 3, "parts": (x[:, :1], None)}))
    x = torch.randn(5, DIM)
    predicted = hr.Pipeline(model, mse, ranks=2, micro_batches=2).predict(x)
    assert predicted["n"] == 3
    assert predicted["parts"][1] is None
    torch.testing.assert_close(predicted["x"], model[0](x).detach())
    assert predicted["parts"][0].shape == (5, 1)


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_a_step_without_gradients_is_refused(context: Any) -> None:
    pipe = hr.Pipeline(four_linears(), mse, ranks=2, micro_batches=2)
    with context(), pytest.raises(ValueError, match=r"step needs gradients, .*: use evaluate there"):
        pipe.step(torch.zeros(2, DIM), torch.zeros(2, DIM))


def test_no_layer_runs_on_made_up_data() -> None:
    """A layer sees each micro-batch once per step, and nothing before."""
    seen: list[Tensor] = []
    model = nn.Sequential(Watch(seen.append), nn.Linear(DIM, DIM), Watch(seen.append))
    pipe = hr.Pipeline(model, mse, ranks=2, schedule=build("gpipe", ranks=2, micro_batches=2), micro_batches=2)
    assert seen == []
    pipe.step(torch.randn(4, DIM), torch.randn(4, DIM))
    assert len(seen) == 4
