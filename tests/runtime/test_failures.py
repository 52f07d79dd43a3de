"""When a layer raises, the user is interrupted, or arguments are wrong: loud, whole, and the pipeline works again."""

import gc
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

import headrace as hr
from headrace.schedule import Action
from runtime.cases import DIM, Case, Do, On
from runtime.pipes import SEED, Watch, pipe_of
from runtime.reference import Unsplit, backward_order, differing, gradients, same

mse = nn.functional.mse_loss


class Bomb(nn.Module):
    """Fails for the micro-batch that is marked 3: in its `when`."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(DIM, DIM)
        self.when = ""
        self.ran = 0

    def forward(self, value: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        x, mark = value
        if int(mark[0]) == 3:
            self.ran += 1
            if self.when == ["", "F", "R"][min(self.ran, 2)]:
                go_off()
        hidden = self.layer(x)
        if self.when == "B" and int(mark[0]) == 3:
            hidden = _Explodes.apply(hidden)
        return hidden, mark


class _Explodes(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:  # noqa: ARG004 - autograd's signature
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # noqa: ARG004 - autograd's signature
        return go_off()


class Explodes(nn.Module):
    """Fails in its backward."""

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, _Explodes.apply(x))


def go_off() -> Tensor:
    raise ArithmeticError("the user's own words")


def bomb_case() -> tuple[Case, Bomb]:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        bomb = Bomb()
        model = nn.Sequential(On(0, nn.Linear(DIM, DIM)), On(0, nn.Dropout(0.2)), bomb, Do(lambda v: v[0]))
        return Case(model, (torch.randn(6, DIM), torch.arange(6)), torch.randn(6, DIM), mse), bomb


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize("kind", ["F", "B", "R"])
def test_an_exception_ends_all_ranks_and_the_next_step_works(kind: Any, schedule: str) -> None:
    case, bomb = bomb_case()
    unsplit = Unsplit(bomb_case()[0], SEED)
    pipe = pipe_of(case, 4, 6, schedule=schedule, recompute="always" if kind == "R" else "never")
    for step in range(3):
        if step != 1:
            bomb.when = kind
            bomb.ran = 0
            began = time.perf_counter()
            with pytest.raises(hr.PipelineFailure) as caught:
                pipe.step(*case.batch(0))
            assert time.perf_counter() - began < 5
            assert (caught.value.rank, caught.value.action) == (2, Action(2, kind, 3))
            assert isinstance(caught.value.__cause__, ArithmeticError)
            words = str(caught.value)
            what = {"F": "forward", "B": "backward", "R": "recompute"}[kind]
            first, second = words.splitlines()[:2]
            assert first.startswith(
                f"rank 2 failed at 2{kind}3 ({what} of stage 2, micro-batch 3): ArithmeticError: the user's own words"
            )
            assert second.startswith("Traceback")
            assert "in go_off" in words
            assert all(p.grad is None for p in pipe.parameters())
            assert pipe.steps == step
            bomb.when = ""
        loss = pipe.step(*case.batch(step))
        assert same(loss, unsplit.step(case.batch(step), backward_order(pipe.schedule)))
        assert differing(gradients(case.model), gradients(unsplit.case.model)) == []
        case.model.zero_grad()
        unsplit.case.model.zero_grad()


@pytest.mark.parametrize("recompute", ["never", "always"])
def test_a_failed_step_keeps_no_activations(recompute: str) -> None:
    between: list[StorageWeakRef] = []
    model = nn.Sequential(
        nn.Linear(DIM, DIM), nn.Tanh(), Watch(lambda x: between.append(StorageWeakRef(x.untyped_storage()))), Explodes()
    )
    pipe = hr.Pipeline(model, mse, ranks=1, micro_batches=3, schedule="gpipe", recompute=recompute)
    with pytest.raises(hr.PipelineFailure, match="the user's own words"):
        pipe.step(torch.randn(3, DIM), torch.randn(3, DIM))
    gc.collect()
    assert all(tensor.expired() for tensor in between)


def test_an_exception_in_an_evaluation() -> None:
    case, bomb = bomb_case()
    pipe = pipe_of(case, 4, 6)
    bomb.when = "F"
    with pytest.raises(hr.PipelineFailure, match="rank 2 failed at 2F3"):
        pipe.predict(case.x)
    assert all(module.training for module in case.model.modules())
    bomb.when = ""
    pipe.evaluate(case.x, case.y)
    pipe.step(*case.batch(0))


@pytest.mark.parametrize(
    ("loss_fn", "complaint"),
    [
        (lambda output, target: (output - target).square(), r"loss_fn must return one number.*shape \(2, 6\)"),
        (lambda *_: 3.0, "loss_fn must return one number as a tensor, such as .*, not 3.0"),
        (lambda *_: go_off(), "the user's own words"),
    ],
)
def test_a_bad_loss_is_named(loss_fn: Any, complaint: str) -> None:
    pipe = hr.Pipeline(nn.Sequential(nn.Linear(DIM, DIM), nn.Tanh()), loss_fn, ranks=2, micro_batches=2)
    with pytest.raises(hr.PipelineFailure, match=complaint) as caught:
        pipe.step(torch.zeros(4, DIM), torch.zeros(4, DIM))
    assert caught.value.action == Action(1, "F", 0)


def test_a_bad_metric_is_named() -> None:
    pipe = hr.Pipeline(nn.Sequential(nn.Linear(DIM, DIM), nn.Tanh()), mse, ranks=2, micro_batches=2)
    with pytest.raises(hr.PipelineFailure, match="accuracy must return one number"):
        pipe.evaluate(torch.zeros(4, DIM), torch.zeros(4, DIM), metrics={"accuracy": lambda output, _: output})


def test_what_cannot_pass_a_boundary_is_named() -> None:
    pipe = hr.Pipeline(nn.Sequential(Do(lambda x: (x, object())), Do(lambda v: v[0])), mse, ranks=2, micro_batches=2)
    with pytest.raises(
        hr.PipelineFailure, match="the output of stage 0 contains a object: only tensors, None"
    ) as caught:
        pipe.step(torch.zeros(4, DIM), torch.zeros(4, DIM))
    assert isinstance(caught.value.__cause__, TypeError)


def test_a_failure_can_be_pickled() -> None:
    import pickle

    failure = hr.PipelineFailure(1, Action(1, "B", 2), "what")
    again = pickle.loads(pickle.dumps(failure))
    assert (again.rank, again.action, str(again)) == (1, Action(1, "B", 2), str(failure))


INTERRUPTED = """
import os, signal, threading, torch, headrace as hr
from torch import nn

signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell's background jobs do not inherit

class Interrupts(nn.Module):
    on = True
    def forward(self, x):
        if self.on:
            os.kill(os.getpid(), signal.SIGINT)
            self.on = False
        return x

layer = Interrupts()
model = nn.Sequential(nn.Linear(4, 4), layer, nn.Dropout(), nn.Linear(4, 4))
pipe = hr.Pipeline(model, nn.functional.mse_loss, ranks=4, micro_batches=50)
x, y = torch.ones(50, 4), torch.zeros(50, 4)
try:
    pipe.step(x, y)
except KeyboardInterrupt:
    assert all(p.grad is None for p in model.parameters()), "gradients are left"
    print("interrupted", flush=True)
torch.manual_seed(3)
again = [pipe.step(x, y), *(p.grad for p in model.parameters())]
model.zero_grad()
fresh = hr.Pipeline(model, nn.functional.mse_loss, ranks=4, micro_batches=50)
torch.manual_seed(3)
assert all(map(torch.equal, [fresh.step(x, y), *(p.grad for p in model.parameters())], again))
print("again", flush=True)
"""

EXITS = """
import torch, headrace as hr
from torch import nn

class Layer(nn.Module):
    def forward(self, x):
        raise RuntimeError("deliberate") if len(x) > 1 else None

keeps = hr.Pipeline(nn.Sequential(nn.Linear(4, 4), nn.Tanh()), nn.functional.mse_loss, ranks=2, micro_batches=2)
keeps.step(torch.ones(4, 4), torch.zeros(4, 4))
broken = hr.Pipeline(nn.Sequential(nn.Linear(4, 4), Layer()), nn.functional.mse_loss, ranks=2, micro_batches=2)
print("live", flush=True)
broken.step(torch.ones(4, 4), torch.zeros(4, 4))
"""


def run(script: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", script],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=Path(__file__).parent,
        check=False,
    )


def test_an_interrupt_ends_the_step_and_the_next_one_works() -> None:
    done = run(INTERRUPTED)
    assert (done.returncode, done.stdout.split(), done.stderr) == (0, ["interrupted", "again"], "")


def test_a_program_ends_with_pipelines_alive_one_of_them_broken() -> None:
    done = run(EXITS)
    assert (done.returncode, done.stdout.split()) == (1, ["live"])
    assert "RuntimeError: deliberate\nraised by layer" in done.stderr
