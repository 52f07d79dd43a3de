"""Mistakes that would pass silently elsewhere: each is computed as unsplit, or refused in words."""

import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import headrace as hr
from headrace.runtime.failure import Stopped
from headrace.runtime.transport.local.mailbox import Mailbox
from headrace.schedule.messages import Message

X, Y = torch.arange(24.0).reshape(4, 6) / 24, torch.ones(4, 6)


def _chain(*layers: nn.Module) -> nn.Sequential:
    torch.manual_seed(0)
    for layer in layers:
        for parameter in layer.parameters():
            nn.init.normal_(parameter)
    return nn.Sequential(*layers)


def _pipe(*layers: nn.Module, **options: Any) -> hr.Pipeline:
    options = {"ranks": 2, "micro_batches": 2, **options}
    return hr.Pipeline(_chain(*layers), options.pop("loss_fn", nn.functional.mse_loss), **options)


class Call(nn.Module):
    """A layer that is a function."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Any) -> Any:
        return self.function(x)


class Counter(nn.Module):
    """Hands its buffer on, which has moved by the time of the next micro-batch."""

    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(6))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        self.count.add_(1)
        return x, self.count


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_a_buffer_that_is_handed_on_is_read_as_it_was(schedule: str) -> None:
    seen: list[float] = []

    def add(pair: tuple[Tensor, Tensor]) -> Tensor:
        seen.append(float(pair[1][0]))
        return pair[0] + pair[1]

    with _pipe(nn.Linear(6, 6), Counter(), Call(add), cut=[2, 1], micro_batches=4, schedule=schedule) as pipe:
        pipe.step(X, Y)
    assert seen == [1, 2, 3, 4]


def test_a_loss_that_writes_to_the_output_does_not_spoil_a_recompute() -> None:
    def loss(output: Tensor, target: Tensor) -> Tensor:
        return nn.functional.mse_loss(output.mul_(2), target)

    gradients = []
    for recompute in ("never", "always"):
        with _pipe(nn.Linear(6, 6), nn.Identity(), loss_fn=loss, recompute=recompute) as pipe:
            for _ in range(2):
                pipe.step(X, Y)
            gradients.append([p.grad for p in pipe.parameters()])
    for never, always in zip(*gradients, strict=True):
        assert torch.equal(never, always)


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_loss_that_draws_draws_the_same_in_a_recompute(ranks: int) -> None:
    def loss(output: Tensor, target: Tensor) -> Tensor:
        return nn.functional.mse_loss(output, target) + torch.rand(()) * output.square().mean()

    before = torch.default_generator.get_state()
    results = []
    for recompute in ("never", "always"):
        torch.default_generator.set_state(before)
        with _pipe(nn.Linear(6, 6), nn.Linear(6, 6), loss_fn=loss, recompute=recompute, ranks=ranks) as pipe:
            results.append((pipe.step(X, Y), [p.grad for p in pipe.parameters()]))
    assert torch.equal(results[0][0], results[1][0])
    assert all(map(torch.equal, results[0][1], results[1][1]))


class Lazy(nn.Module):
    """A buffer that the first forward makes, and one that moves only from the third on."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.calls = 0
        self.register_buffer("state", None if kind == "made" else torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        if self.kind == "made":
            self.state = torch.ones(()) if self.state is None else self.state + 1
        elif self.calls > 4:
            self.state.add_(1)
        return x * self.state


def test_a_buffer_that_the_first_forward_makes_is_made_once() -> None:
    states = []
    for recompute in ("never", "always"):
        with _pipe(nn.Linear(6, 6), Lazy("made"), recompute=recompute, schedule="gpipe") as pipe:
            states.append((pipe.step(X, Y), dict(pipe.named_buffers())["1.state"]))
    assert states[0] == states[1]
    assert states[0][1] == 2


def test_a_buffer_that_starts_to_move_later_is_noticed_under_recompute() -> None:
    with _pipe(nn.Linear(6, 6), Lazy("later"), recompute="always") as pipe:
        pipe.step(X, Y)
        with pytest.raises(hr.PipelineFailure, match="had not changed in the first forward"):
            pipe.step(X, Y)
        pipe.step(X, Y)


def test_writing_to_one_of_two_outputs_that_share_memory_is_refused() -> None:
    with (
        _pipe(
            nn.Linear(6, 6), Call(lambda x: (x, x)), Call(lambda pair: pair[0].add_(1) + pair[1]), cut=[2, 1]
        ) as pipe,
        pytest.raises(hr.PipelineFailure, match="share memory"),
    ):
        pipe.step(X, Y)


def test_shared_buffers_and_patched_forwards_are_refused() -> None:
    norm = nn.BatchNorm1d(6, affine=False)
    with pytest.raises(
        ValueError, match=r"0\.running_mean in stage 0 and 2\.running_mean in stage 1 are the same buffer"
    ):
        _pipe(norm, nn.Linear(6, 6), norm, cut=[2, 1])
    model = _chain(nn.Linear(6, 6), nn.Linear(6, 6))
    model.forward = lambda x: x  # type: ignore[method-assign]
    with pytest.raises(TypeError, match="a forward of its own"):
        hr.Pipeline(model, nn.functional.mse_loss, ranks=2, micro_batches=2)


class Tempered(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.temperature = nn.Parameter(torch.ones(()))

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        return nn.functional.mse_loss(output * self.temperature, target)


def test_what_would_not_be_trained_is_refused() -> None:
    with pytest.raises(ValueError, match="loss_fn has parameters of its own"):
        _pipe(nn.Linear(6, 6), nn.Linear(6, 6), loss_fn=Tempered())
    with (
        _pipe(nn.Linear(6, 6), nn.Linear(6, 6), loss_fn=lambda o, y: (o - y).square().mean().detach()) as pipe,
        pytest.raises(hr.PipelineFailure, match="nothing would be trained"),
    ):
        pipe.step(X, Y)


def test_names_and_numbers_that_hide_something_are_refused() -> None:
    with _pipe(nn.Linear(6, 6), nn.Linear(6, 6), loss_weight=lambda _: float("inf")) as pipe:
        with pytest.raises(ValueError, match="loss_weight returned inf"):
            pipe.step(X, Y)
        with pytest.raises(ValueError, match="an entry called loss"):
            pipe.evaluate(X, Y, metrics={"loss": nn.functional.l1_loss})
        with pytest.raises(ValueError, match="x has 0 rows"):
            pipe.predict(X[:0])


def test_a_pipeline_within_itself_is_refused() -> None:
    pipes: list[hr.Pipeline] = []
    for use in (lambda pipe: pipe.predict(X), lambda pipe: pipe.close()):
        pipes[:] = [_pipe(nn.Linear(6, 6), Call(lambda x, use=use: use(pipes[0]) or x))]
        with pytest.raises(hr.PipelineFailure, match="used the pipeline it runs in"):
            pipes[0].step(X, Y)
        pipes[0].close()


def test_a_forked_child_cannot_use_its_parents_threads() -> None:
    with _pipe(nn.Linear(6, 6), nn.Linear(6, 6)) as pipe:
        pipe.step(X, Y)
        child = os.fork()
        if child == 0:
            try:
                pipe.step(X, Y)
            except RuntimeError as error:
                os._exit(7 if "make a new one here" in str(error) else 8)
            os._exit(9)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def test_inference_tensors_are_evaluated() -> None:
    with torch.inference_mode():
        x = torch.ones(5, 6)
    with _pipe(nn.Linear(6, 6), nn.Linear(6, 6)) as pipe:
        for _ in range(2):
            assert torch.equal(pipe.predict(x), pipe.predict(torch.ones(5, 6)))


def test_a_failure_stops_ranks_whose_messages_are_all_there() -> None:
    box = Mailbox()
    first, second = Message("activation", 1, 0), Message("activation", 1, 1)
    box.put(first, "payload")
    box.put(second, "payload")
    assert box.get(second) == "payload"
    box.stop()
    with pytest.raises(Stopped):
        box.get(first)


@pytest.mark.parametrize("ranks", [1, 2])
def test_evaluation_builds_no_graph(ranks: int) -> None:
    seen: list[bool] = []
    probe = Call(lambda x: seen.append(torch.is_grad_enabled()) or x)
    with _pipe(nn.Linear(6, 6), probe, ranks=ranks) as pipe:
        pipe.evaluate(X, Y)
        pipe.predict(X)
        pipe.step(X, Y)
    assert seen == [False] * 4 + [True] * 2
