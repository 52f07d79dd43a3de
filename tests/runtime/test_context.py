"""What the caller has switched on, or hung onto the model, works inside the ranks as well."""

import contextvars
import copy
import threading
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import headrace as hr
from runtime.cases import DIM, Do, make
from runtime.pipes import SEED, Race, Watch, four_linears, pipe_of
from runtime.reference import differing, gradients, same

mse = nn.functional.mse_loss


@pytest.mark.parametrize("recompute", ["never", "always"])
@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("name", ["plain", "dropout", "layer_norm", "tied_in_a_stage"])
def test_autocast(name: str, ranks: int, recompute: str) -> None:
    race = Race(name, ranks, 3, recompute=recompute)
    dtypes: list[torch.dtype] = []
    for layer in race.case.model:
        layer.register_forward_hook(lambda _layer, _inputs, output: dtypes.append(output.dtype))
    with torch.autocast("cpu", torch.bfloat16):
        for step in range(2):
            race.step(*race.case.batch(step))
        race.pipe.evaluate(*race.case.batch(0))
    assert torch.bfloat16 in dtypes
    dtypes.clear()
    race.step(*race.case.batch(2))
    assert set(dtypes) == {torch.float32}


def test_ranks_leave_the_cache_of_cast_weights_to_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    """All threads share it: the first rank that is done must not empty it for the others."""

    class InFull(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            with torch.autocast("cpu", enabled=False):
                return super().forward(x.float())

    emptied: list[str] = []
    pipe = hr.Pipeline(nn.Sequential(InFull(DIM, DIM), nn.Linear(DIM, DIM)), mse, ranks=2, micro_batches=2)
    with torch.autocast("cpu", torch.bfloat16), monkeypatch.context() as patched:
        patched.setattr(torch, "clear_autocast_cache", lambda: emptied.append(threading.current_thread().name))
        pipe.step(torch.randn(2, DIM), torch.randn(2, DIM))
    assert emptied == []


@pytest.mark.usefixtures("double")
def test_the_default_dtype() -> None:
    seen: list[torch.dtype] = []
    model = nn.Sequential(nn.Linear(DIM, DIM), Do(lambda x: x * torch.ones(1)), Watch(lambda x: seen.append(x.dtype)))
    loss = hr.Pipeline(model, mse, ranks=3, micro_batches=2).step(torch.randn(2, DIM), torch.randn(2, DIM))
    assert (loss.dtype, set(seen)) == (torch.float64, {torch.float64})


def test_context_variables() -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")
    seen: list[tuple[str, str]] = []
    watch = [Watch(lambda _: seen.append((threading.current_thread().name, variable.get()))) for _ in range(2)]
    pipe = hr.Pipeline(
        nn.Sequential(watch[0], nn.Linear(DIM, DIM), watch[1]), mse, ranks=2, micro_batches=1, cut=(1, 2)
    )
    token = variable.set("set")
    pipe.step(torch.zeros(1, DIM), torch.zeros(1, DIM))
    variable.reset(token)
    assert sorted(seen) == [("headrace rank 0", "set"), ("headrace rank 1", "set")]
    pipe.predict(torch.zeros(1, DIM))
    assert [value for _, value in seen[2:]] == ["unset", "unset"]


def test_inference_mode_reaches_the_ranks_for_one_call() -> None:
    seen: list[bool] = []
    model = nn.Sequential(nn.Linear(DIM, DIM), Watch(lambda _: seen.append(torch.is_inference_mode_enabled())))
    pipe = hr.Pipeline(model, mse, ranks=2, micro_batches=1)
    with torch.inference_mode():
        pipe.predict(torch.zeros(1, DIM))
    pipe.step(torch.zeros(1, DIM), torch.zeros(1, DIM))
    assert seen == [True, False]


@pytest.mark.parametrize(("threads", "ranks", "each"), [(2, 2, 1), (4, 2, 2), (2, 1, 2), (3, 2, 1)])
def test_ranks_share_out_the_cores(threads: int, ranks: int, each: int) -> None:
    seen: list[int] = []
    torch.set_num_threads(threads)
    model = nn.Sequential(
        *(Watch(lambda _: seen.append(torch.get_num_threads())) for _ in range(ranks)), nn.Linear(DIM, DIM)
    )
    pipe = hr.Pipeline(model, mse, ranks=ranks, micro_batches=1)
    pipe.step(torch.zeros(1, DIM), torch.zeros(1, DIM))
    assert seen == [each] * ranks
    assert torch.get_num_threads() == threads
    of_others: list[int] = []
    other = threading.Thread(target=lambda: of_others.append(torch.get_num_threads()))
    other.start()
    other.join()
    assert of_others == [threads]


of_dynamo = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")


@of_dynamo
@pytest.mark.parametrize("recompute", ["never", "always"])
@pytest.mark.parametrize("name", ["plain", "dropout", "layer_norm"])
def test_compiled_layers(name: str, recompute: str) -> None:
    torch._dynamo.reset()
    race = Race(name, 2, 3, recompute=recompute)
    for layer in race.case.model:
        layer.compile(backend="eager")
    for step in range(3):
        race.step(*race.case.batch(step))
    race.pipe.predict(race.case.x)
    race.step(*race.case.batch(3))


@of_dynamo
def test_layers_made_by_torch_compile() -> None:
    """Compiled layers draw where nothing can be caught, and still draw the same, whatever the number of ranks."""
    losses, grads = [], []
    for ranks, recompute in [(1, "never"), (2, "always")]:
        torch._dynamo.reset()
        case = make("dropout")
        layers = [torch.compile(layer, backend="aot_eager") for layer in case.model]
        torch.manual_seed(SEED)
        pipe = hr.Pipeline(nn.Sequential(*layers), mse, ranks=ranks, micro_batches=2, recompute=recompute)
        losses.append([float(pipe.step(*case.batch(step))) for step in range(2)])
        grads.append(gradients(case.model))
    assert losses[0] == losses[1]
    assert differing(*grads) == []


# -- hooks -------------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:Full backward hook is firing when gradients are computed")
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_hooks_of_parameters_and_layers_fire(ranks: int) -> None:
    model = four_linears()
    counts: dict[str, int] = dict.fromkeys(["accumulated", "gradient", "before", "after", "backward"], 0)
    lock = threading.Lock()

    def count(what: str) -> None:
        with lock:
            counts[what] += 1

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda _: count("accumulated"))
        parameter.register_hook(lambda _: count("gradient"))
    for layer in model:
        layer.register_forward_pre_hook(lambda *_: count("before"))
        layer.register_forward_hook(lambda *_: count("after"))
        layer.register_full_backward_hook(lambda *_: count("backward"))
    pipe = hr.Pipeline(model, mse, ranks=ranks, micro_batches=3)
    pipe.step(torch.randn(3, DIM), torch.randn(3, DIM))
    assert counts == {"accumulated": 24, "gradient": 24, "before": 12, "after": 12, "backward": 12}


def test_a_hook_may_change_gradients() -> None:
    plain, hooked = four_linears(), four_linears()
    for parameter in hooked.parameters():
        parameter.register_hook(lambda gradient: gradient * 2)
    x, y = torch.randn(4, DIM), torch.randn(4, DIM)
    for model in (plain, hooked):
        hr.Pipeline(model, mse, ranks=2, micro_batches=2).step(x, y)
    for one, other in zip(plain.parameters(), hooked.parameters(), strict=True):
        assert same(one.grad * 2, other.grad)  # type: ignore[operator]


def test_an_optimizer_in_the_backward() -> None:
    """Parameters may even be updated as soon as their gradient is there, with one micro-batch."""
    model = four_linears()
    unsplit = copy.deepcopy(model)

    def update(parameter: Tensor) -> None:
        with torch.no_grad():
            parameter -= 0.1 * parameter.grad
        parameter.grad = None

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(update)
    x, y = torch.randn(4, DIM), torch.randn(4, DIM)
    pipe = hr.Pipeline(model, mse, ranks=2, micro_batches=1)
    optimizer = torch.optim.SGD(unsplit.parameters(), lr=0.1)
    for _ in range(2):
        pipe.step(x, y)
        mse(unsplit(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    for one, other in zip(model.parameters(), unsplit.parameters(), strict=True):
        torch.testing.assert_close(one, other)


def test_autocast_of_predictions() -> None:
    case = make("plain")
    pipe = pipe_of(case, 2, 2)
    with torch.autocast("cpu", torch.bfloat16):
        predicted: Any = pipe.predict(case.x)
    assert predicted.dtype == torch.bfloat16
    assert differing(gradients(case.model), gradients(make("plain").model)) == []
