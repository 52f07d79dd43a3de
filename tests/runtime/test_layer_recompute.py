"""Layers that recompute one by one: the bits of a run without, whatever the model, the schedule and the layers."""

import random
from collections import OrderedDict
from dataclasses import replace
from typing import Any, Final

import pytest
import torch
from torch import Tensor, nn

import headrace as hr
from headrace.runtime.model.chain import layers_of
from headrace.runtime.model.warn import BatchStatisticsWarning
from headrace.schedule import build
from runtime.cases import CASES, DIM, Case, Do, make
from runtime.parity import assert_parity, cut_of, with_rows_for
from runtime.pipes import SEED, Race, pipe_of
from runtime.reference import differing, everything, gradients, same
from runtime.schedules import SYNCHRONOUS, schedule_of
from runtime.sequences import assert_loop_parity, tiny_gpt

pytestmark = pytest.mark.filterwarnings(f"ignore::{BatchStatisticsWarning.__module__}.BatchStatisticsWarning")

mse = nn.functional.mse_loss
FOR_THREADS: Final = [name for name in CASES if make(name).threads]
FEW: Final = [("gpipe", 1, 3), ("1f1b", 3, 4), ("zb-h1", 2, 3), ("zb-h2", 4, 7)]


def recomputing(case: Case, which: Any = "layer") -> Case:
    """The case with an argument for its pipeline."""
    return replace(case, options={**case.options, "recompute": which})


@pytest.mark.parametrize(("schedule", "ranks", "micro_batches"), FEW)
@pytest.mark.parametrize("name", CASES)
def test_every_case_is_bitwise_the_unsplit_model(name: str, schedule: str, ranks: int, micro_batches: int) -> None:
    case = make(name)
    if not case.threads and ranks > 1:
        pytest.skip("refused where ranks are threads")
    order = build(schedule, ranks=ranks, micro_batches=micro_batches)
    assert_parity(recomputing(case), make(name), order, case.cut(ranks))


@pytest.mark.parametrize("number", range(3))
@pytest.mark.parametrize("name", FOR_THREADS)
def test_any_layers_may_be_chosen(name: str, number: int) -> None:
    case = make(name)
    choose = random.Random(f"{name} {number}")
    layers = [layer for layer in layers_of(case.model) if choose.random() < 0.5]
    order = build(("1f1b", "zb-h1", "gpipe")[number], ranks=2, micro_batches=3)
    assert_parity(recomputing(case, layers), make(name), order, case.cut(2))


@pytest.mark.parametrize("schedule", [name for name in SYNCHRONOUS if name != "seq1f1b"])
@pytest.mark.parametrize("name", ["dropout", "deep_skip", "tied_in_a_stage"])
def test_every_schedule(name: str, schedule: str) -> None:
    order = schedule_of(schedule, 2, "m = 2p + 1", "never")
    case, twin = (with_rows_for(make(name), order.micro_batches) for _ in range(2))
    cut = cut_of(case, order.stages)
    if cut is None:
        pytest.skip("too few layers")
    assert_parity(recomputing(case), twin, order, cut)


class Attends(nn.Module):
    """Products of many kinds, in one function of torch."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(DIM, 2, dropout=0.2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.attention(x, x, x, need_weights=False)[0]
        return x + result


@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1"])
def test_attention(schedule: str) -> None:
    def case() -> Case:
        torch.manual_seed(SEED)
        model = nn.Sequential(nn.Linear(DIM, DIM), Attends(), Attends(), nn.LayerNorm(DIM), nn.Linear(DIM, DIM))
        return Case(model, torch.randn(6, 5, DIM), torch.randn(6, 5, DIM), mse)

    assert_parity(recomputing(case()), case(), build(schedule, ranks=2, micro_batches=3), None)


@pytest.mark.parametrize("segments", [2, 3])
def test_what_segments_carry_is_there_again(segments: int) -> None:
    case, twin = (tiny_gpt(4, 6, dropout=0.3) for _ in range(2))
    order = build("seq1f1b", ranks=2, micro_batches=4, segments=segments)
    assert_loop_parity(recomputing(case), twin, order)


def test_a_layer_that_occurs_twice_carries_twice() -> None:
    """Each occurrence takes what it put itself."""

    def case() -> Case:
        gpt = tiny_gpt(4, 6)
        layers = [*gpt.model]
        return replace(gpt, model=nn.Sequential(*layers[:2], layers[1], layers[1], *layers[2:]))

    ours, theirs = case(), case()
    order = build("seq1f1b", ranks=1, micro_batches=2, segments=3)
    with (
        hr.Pipeline(ours.model, ours.loss_fn, ranks=1, micro_batches=2, schedule=order, recompute="layer") as pipe,
        hr.Pipeline(theirs.model, theirs.loss_fn, ranks=1, micro_batches=2, schedule=order) as other,
    ):
        assert same(pipe.step(*ours.batch(0)), other.step(*theirs.batch(0)))
    assert differing(gradients(ours.model), gradients(theirs.model)) == []


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("name", ["plain", "dropout", "layer_norm", "tied_in_a_stage"])
def test_autocast(name: str, ranks: int) -> None:
    race = Race(name, ranks, 3, recompute="layer")
    with torch.autocast("cpu", torch.bfloat16):
        for step in range(2):
            race.step(*race.case.batch(step))
    race.step(*race.case.batch(2))


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("name", ["plain", "dropout", "layer_norm"])
def test_compiled_layers(name: str, backend: str) -> None:
    def trained(recompute: str) -> tuple[list[Tensor], dict[str, Tensor]]:
        torch._dynamo.reset()
        case = make(name)
        with pipe_of(case, 2, 3, recompute=recompute) as pipe:
            for layer in case.model:
                layer.compile(backend=backend)
            optimizer = torch.optim.SGD(case.model.parameters(), lr=0.1)
            losses = []
            for step in range(3):
                losses.append(pipe.step(*case.batch(step)))
                optimizer.step()
                optimizer.zero_grad()
            return losses, everything(case.model)

    (losses, state), (others, other) = trained("layer"), trained("never")
    assert all(map(same, losses, others))
    assert differing(state, other) == []


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1"])
def test_a_compiled_function_within_a_layer(schedule: str) -> None:
    torch._dynamo.reset()

    class Body(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(DIM, DIM), nn.Linear(DIM, DIM)
            self.between = torch.compile(self._between, backend="aot_eager")

        def _between(self, x: Tensor) -> Tensor:
            return nn.functional.gelu(x) * x.sigmoid() @ self.last.weight

        def forward(self, x: Tensor) -> Tensor:
            result: Tensor = self.last(self.between(self.first(x)))
            return result

    trained = []
    for recompute in ("never", "layer"):
        torch.manual_seed(SEED)
        model = nn.Sequential(nn.Linear(DIM, DIM), Body(), Body(), nn.Linear(DIM, DIM))
        x, y = torch.randn(6, DIM), torch.randn(6, DIM)
        with hr.Pipeline(model, mse, ranks=2, micro_batches=3, schedule=schedule, recompute=recompute) as pipe:
            for _ in range(2):
                pipe.step(x, y)
        trained.append(gradients(model))
    assert differing(*trained) == []


@pytest.mark.parametrize(("name", "schedule"), [("dropout", "pipedream"), ("batch_norm", "pipedream-2bw")])
def test_weights_that_are_updated_meanwhile(name: str, schedule: str) -> None:
    """A second run reads the version that the first one read."""
    states = []
    for recompute in ("layer", "never"):
        case = make(name)
        optimizer = lambda parameters: torch.optim.SGD(parameters, lr=0.1)  # noqa: E731
        with pipe_of(case, 2, 6, schedule=schedule, recompute=recompute, optimizer=optimizer) as pipe:
            losses = [pipe.step(*case.batch(step)) for step in range(3)]
            states.append({**everything(case.model), **{f"loss {step}": loss for step, loss in enumerate(losses)}})
    assert differing(*states) == []


# -- what runs, and when -----------------------------------------------------------------------------------------------


class Runs(nn.Module):
    """A layer that counts its forwards."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(DIM, DIM)
        self.runs = 0

    def forward(self, x: Tensor) -> Tensor:
        self.runs += 1
        result: Tensor = self.layer(x).tanh()
        return result


@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1", "zb-v"])
@pytest.mark.parametrize(
    ("recompute", "runs"),
    [
        ({"1", "2"}, [4, 8, 8, 4]),
        (["3"], [4, 4, 4, 8]),
        ("layer", [8, 8, 8, 8]),
        ({0: "layer"}, [8, 8, 4, 4]),
        ({0, "3"}, [8, 8, 4, 8]),
        ({0: "always", 1: "layer"}, [8, 8, 8, 8]),
        ({0: "except_last", 1: "never"}, [7, 7, 4, 4]),
    ],
    ids=lambda given: str(sorted(given, key=str) if isinstance(given, set) else given),  # as sets have no order
)
def test_what_was_dropped_runs_once_more_and_nothing_else(schedule: str, recompute: Any, runs: list[int]) -> None:
    cut = None
    if schedule == "zb-v":  # twice as many stages, so twice as many layers: each stage has two again
        runs, cut = [*runs, 4, 4, 4, 4], (2, 2, 2, 2)
        if recompute == "layer":
            runs = [8] * 8
    model = nn.Sequential(*(Runs() for _ in runs))
    options: dict[str, Any] = {"ranks": 2, "micro_batches": 4, "schedule": schedule, "recompute": recompute, "cut": cut}
    with hr.Pipeline(model, mse, **options) as pipe:
        pipe.step(torch.randn(8, DIM), torch.randn(8, DIM))
        assert [layer.runs for layer in model] == runs
        pipe.evaluate(torch.randn(8, DIM), torch.randn(8, DIM))
        pipe.predict(torch.randn(8, DIM))
        assert [layer.runs for layer in model] == [count + 8 for count in runs]


def test_layers_go_with_a_schedule_that_is_made_already() -> None:
    model = nn.Sequential(*(Runs() for _ in range(4)))
    order = build("1f1b", ranks=2, micro_batches=4, recompute={0})
    with hr.Pipeline(model, mse, ranks=2, micro_batches=4, schedule=order, recompute={"2"}) as pipe:
        pipe.step(torch.randn(8, DIM), torch.randn(8, DIM))
        assert pipe.recomputed_layers == ("2",)
    assert [layer.runs for layer in model] == [8, 8, 8, 4]


def test_the_callers_random_numbers_are_left_alone() -> None:
    for ranks in (1, 2):
        case = make("dropout")
        pipe = pipe_of(case, ranks, 3, recompute="layer")
        before = torch.get_rng_state()
        pipe.step(*case.batch(0))
        assert torch.equal(before, torch.get_rng_state())


def test_hooks_hear_of_each_gradient_once() -> None:
    heard: dict[str, list[tuple[str, Tensor]]] = {}
    for recompute in ("never", "layer"):
        case = make("tied_in_a_stage")
        heard[recompute] = []
        for name, parameter in case.model.named_parameters():
            parameter.register_hook(lambda g, name=name, to=heard[recompute]: to.append((name, g.clone())))
        with pipe_of(case, 1, 2, recompute=recompute) as pipe:
            pipe.step(*case.batch(0))
    never, layer = heard["never"], heard["layer"]
    assert [name for name, _ in never] == [name for name, _ in layer]
    assert all(same(one, other) for (_, one), (_, other) in zip(never, layer, strict=True))


class DiffersInForward(nn.Module):
    """Takes a gradient in its forward, of what it has just saved."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(DIM, DIM)

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x).tanh()
        (slope,) = torch.autograd.grad(y.sum(), self.layer.weight, create_graph=True)
        return y + slope.sum()


def test_a_layer_that_differentiates_in_its_forward() -> None:
    grads = []
    for recompute in ("never", "layer"):
        torch.manual_seed(SEED)
        model = nn.Sequential(nn.Linear(DIM, DIM), DiffersInForward(), nn.Linear(DIM, DIM))
        x, y = torch.randn(4, DIM), torch.randn(4, DIM)
        with hr.Pipeline(model, mse, ranks=2, micro_batches=2, recompute=recompute) as pipe:
            pipe.step(x, y)
        grads.append(gradients(model))
    assert differing(*grads) == []


# -- refused -----------------------------------------------------------------------------------------------------------


def chain(*layers: nn.Module) -> nn.Sequential:
    names = ("embedding", "block0", "block1", "head")
    return nn.Sequential(OrderedDict(zip(names, layers or [nn.Linear(DIM, DIM) for _ in names], strict=False)))


@pytest.mark.parametrize(
    ("recompute", "error", "says"),
    [
        ({"blok1"}, ValueError, r"names 'blok1', which is no layer: did you mean 'block1'\?"),
        ({"7"}, ValueError, "names '7', which is no layer: there are embedding, block0, block1, head"),
        ("block1", ValueError, r"recompute='block1' is unknown: choose one of never, .* and layer, or name"),
        ([0, "block0"], ValueError, "names layer 'block0', but stage 0, which has it, recomputes as a whole already"),
        ({2: "layer"}, ValueError, "names stage 2, but there are only stages 0…1"),
        ({0: "layers"}, ValueError, "has an unknown 'layers'"),
        ({5, "block0"}, ValueError, "names stage 5, but there are only stages 0…1"),
        ({1.5, "block0"}, TypeError, "names the stage 1.5: stages are whole numbers"),
        (3, TypeError, "recompute=3 must be one of"),
    ],
)
def test_what_recompute_cannot_mean(recompute: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        hr.Pipeline(chain(), mse, ranks=2, micro_batches=2, recompute=recompute)


def test_a_schedule_that_is_made_already_has_its_own_stages() -> None:
    order = build("1f1b", ranks=2, micro_batches=2, recompute={0})
    for layers in ({"block0"}, "layer", {0: "layer"}):
        with pytest.raises(ValueError, match="stage 0, which has it, recomputes as a whole already"):
            hr.Pipeline(chain(), mse, ranks=2, micro_batches=2, schedule=order, recompute=layers)  # type: ignore[arg-type]
    hr.Pipeline(chain(), mse, ranks=2, micro_batches=2, schedule=order, recompute={1: "layer"}).close()
    for which in ({0, "block1"}, "always", {0: "always"}):
        with pytest.raises(ValueError, match="a Schedule has its own R actions: name only layers"):
            hr.Pipeline(chain(), mse, ranks=2, micro_batches=2, schedule=order, recompute=which)  # type: ignore[arg-type]


class Changes(nn.Module):
    """Another forward each time."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x.sigmoid() * x if self.calls % 2 else x.sigmoid()


def test_a_layer_that_does_something_else_the_second_time() -> None:
    x = torch.randn(2, DIM)
    with (
        hr.Pipeline(chain(nn.Linear(DIM, DIM), Changes()), mse, ranks=1, micro_batches=1, recompute="layer") as pipe,
        pytest.raises(hr.PipelineFailure, match=r"layer block0 saved other tensors .* leave it out of recompute="),
    ):
        pipe.step(x, x)


class WritesLater(nn.Module):
    """In place, but not in the first steps."""

    def __init__(self) -> None:
        super().__init__()
        self.now = False

    def forward(self, x: Tensor) -> Tensor:
        return x.mul_(2) if self.now else x * 2


@pytest.mark.parametrize("behind", [False, True], ids=["itself", "through a view"])
def test_a_layer_whose_input_is_written_to_later(behind: bool) -> None:
    late = WritesLater()
    passes = [nn.Identity()] if behind else []  # hands its input on, and the next layer writes to it

    def model(late: nn.Module) -> nn.Sequential:
        torch.manual_seed(SEED)
        return nn.Sequential(nn.Linear(DIM, DIM), *passes, late, nn.Linear(DIM, DIM))

    ours, theirs = model(late), model(WritesLater())
    theirs[-2].now = True
    x = torch.randn(4, DIM)
    options: dict[str, Any] = {"ranks": 1, "micro_batches": 2}
    with (
        hr.Pipeline(ours, mse, recompute={"1"}, **options) as pipe,
        hr.Pipeline(theirs, mse, **options) as other,
    ):
        pipe.step(x, x)
        late.now = True
        ours.zero_grad()
        with pytest.raises(hr.PipelineFailure, match=r"input of layer 1, .* was written to in place.*repeat the step"):
            pipe.step(x, x)
        pipe.step(x, x)
        other.step(x, x)
    assert differing(gradients(ours), gradients(theirs)) == []


def test_writing_to_an_input_that_shares_memory_is_refused() -> None:
    model = nn.Sequential(
        nn.Linear(DIM, DIM), Do(lambda x: (x * 1, x)), Do(lambda v: (v[0], v[0])), Do(lambda v: v[0].add_(1) + v[1])
    )
    x = torch.randn(2, DIM)
    with hr.Pipeline(model, mse, ranks=1, micro_batches=1, recompute={"3"}) as pipe:
        for _ in range(2):
            with pytest.raises(hr.PipelineFailure, match=r"layer 3, .* writes in place to its input, whose .* share"):
                pipe.step(x, x)
    with hr.Pipeline(model, mse, ranks=1, micro_batches=1, recompute={"0", "1", "2"}) as pipe:
        pipe.step(x, x)


def test_what_cannot_be_kept_is_refused() -> None:
    model = nn.Sequential(nn.Linear(DIM, DIM), Do(lambda x: {"x": x, "of": object()}), Do(lambda v: v["x"] * 2))
    x = torch.randn(2, DIM)
    with hr.Pipeline(model, mse, ranks=1, micro_batches=1, recompute={"0", "1"}) as pipe:
        pipe.step(x, x)
    with (
        hr.Pipeline(model, mse, ranks=1, micro_batches=1, recompute={"2"}) as pipe,
        pytest.raises(hr.PipelineFailure, match="the input of layer 2, which recompute= names, contains a object"),
    ):
        pipe.step(x, x)


class SpoilsItself(nn.Module):
    """Writes to what its own backward needs."""

    def forward(self, x: Tensor) -> Tensor:
        return x.sigmoid().add_(1).exp()


def test_a_layer_that_spoils_its_own_backward_fails_as_without() -> None:
    x = torch.randn(2, DIM)
    for recompute, says in (
        ("never", "modified by an inplace operation"),
        ("layer", "layer block0 writes in place to"),
    ):
        model = chain(nn.Linear(DIM, DIM), SpoilsItself())
        with (
            hr.Pipeline(model, mse, ranks=1, micro_batches=1, recompute=recompute) as pipe,
            pytest.raises(hr.PipelineFailure, match=says),
        ):
            pipe.step(x, x)


class WritesToTheLastOne(nn.Module):
    """Hands its input on, and writes to it when the next micro-batch comes."""

    def __init__(self) -> None:
        super().__init__()
        self.last: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.last is not None:
            self.last.add_(1)
        self.last = x.detach()
        return x


def test_an_input_that_is_written_to_after_the_forward() -> None:
    model = chain(nn.Linear(DIM, DIM), WritesToTheLastOne(), nn.Linear(DIM, DIM))
    x = torch.randn(6, DIM)
    with hr.Pipeline(model, mse, ranks=1, micro_batches=3, schedule="gpipe", recompute={"block1"}) as pipe:
        with pytest.raises(hr.PipelineFailure, match=r"input of layer block1, .* was written to in place"):
            pipe.step(x, x)
        pipe.step(x, x)


class HandsItsBufferOn(nn.Module):
    """The buffer has moved by the time of the next micro-batch."""

    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(DIM))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        self.count.add_(1)
        return x, self.count


def test_a_buffer_that_is_handed_on_is_read_as_it_was() -> None:
    seen: list[float] = []

    def add(pair: tuple[Tensor, Tensor]) -> Tensor:
        seen.append(float(pair[1][0]))
        return (pair[0] + pair[1]).tanh()

    model = chain(nn.Linear(DIM, DIM), HandsItsBufferOn(), Do(add))
    x = torch.randn(8, DIM)
    with hr.Pipeline(model, mse, ranks=1, micro_batches=4, schedule="gpipe", recompute={"block1"}) as pipe:
        pipe.step(x, x)
        pipe.step(x, x)
    assert seen == [1, 2, 3, 4, 4, 3, 2, 1, 5, 6, 7, 8, 8, 7, 6, 5]


class FailsAgain(nn.Module):
    """Raises in its second run, if told to."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(DIM, DIM)
        self.armed, self.runs = True, 0

    def forward(self, x: Tensor) -> Tensor:
        self.runs += 1
        if self.armed and self.runs > 2:
            raise ZeroDivisionError("once more")
        result: Tensor = self.layer(x)
        return result


def test_a_failure_in_a_second_run_says_where() -> None:
    model = chain(nn.Linear(DIM, DIM), nn.Tanh(), FailsAgain(), nn.Linear(DIM, DIM))
    x = torch.randn(4, DIM)
    with hr.Pipeline(model, mse, ranks=2, micro_batches=2, schedule="gpipe", recompute="layer") as pipe:
        with pytest.raises(hr.PipelineFailure, match=r"rank 1 failed at 1B1 .*ZeroDivisionError: once more") as failed:
            pipe.step(x, x)
        assert "raised by layer block1 (FailsAgain)" in str(failed.value)
        assert all(p.grad is None for p in model.parameters())
        model.block1.armed = False
        pipe.step(x, x)


class DrawsLater(nn.Module):
    """Draws only when told to."""

    def __init__(self) -> None:
        super().__init__()
        self.on = False

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rand(()) if self.on else x * 1


def test_a_layer_that_begins_to_draw_later_is_noticed() -> None:
    late = DrawsLater()
    model = nn.Sequential(nn.Linear(DIM, DIM), late)
    x = torch.randn(4, DIM)
    with hr.Pipeline(model, mse, ranks=2, micro_batches=2, recompute={"1"}) as pipe:
        pipe.step(x, x)
        late.on = True
        with pytest.raises(RuntimeError, match=r"drawn outside of their streams.*gradients of this step are wrong"):
            pipe.step(x, x)
        pipe.step(x, x)


class MovesLater(nn.Module):
    """A buffer that moves only when told to."""

    state: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.on = False
        self.register_buffer("state", torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        if self.on:
            self.state.add_(1)
        return x * self.state


def test_a_buffer_that_starts_to_move_later_is_noticed_where_it_matters() -> None:
    late = MovesLater()
    x = torch.randn(4, DIM)
    for which, matters in (({"1"}, True), ({"0"}, False)):
        late.on = False
        with hr.Pipeline(
            nn.Sequential(nn.Linear(DIM, DIM), late), mse, ranks=1, micro_batches=2, recompute=which
        ) as pipe:
            pipe.step(x, x)
            late.on = True
            if matters:
                with pytest.raises(hr.PipelineFailure, match="had not changed in the first forward"):
                    pipe.step(x, x)
            pipe.step(x, x)
