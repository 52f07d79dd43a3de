"""Whatever goes wrong in one process, all of them end within seconds and say what it was; nothing stays behind."""

import gc
import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from runtime.cases import Do
from torch import Tensor, nn

import headrace as hr
from distributed.crew import Crew, Outcome, say, stop_taking_orders
from headrace.runtime.failure import PipelineFailure

CREWS = Callable[[int], Crew]
SECONDS = 5
both_links = pytest.mark.parametrize("links", ["shared_memory", "process_group"])


class Fault(Exception):
    """What goes wrong in these tests."""


def chain(ranks: int, *, at: int, fault: Callable[[Tensor], Tensor], links: str, **more: Any) -> hr.Pipeline:
    """A pipeline of which stage `at` has a layer that does `fault`."""
    stages = [
        nn.Sequential(nn.Linear(4, 4), Do(fault) if stage == at else nn.Tanh(), nn.Linear(4, 4))
        for stage in range(ranks)
    ]
    usual = {"micro_batches": 4, "loss_fn": nn.functional.mse_loss, "cut": [3] * ranks}
    return hr.Pipeline(nn.Sequential(*stages), ranks=ranks, links=links, **{**usual, **more})


def batch() -> tuple[Tensor, Tensor]:
    return torch.ones(8, 4), torch.zeros(8, 4)


def works_anew(ranks: int, links: str) -> bool:
    with chain(ranks, at=-1, fault=torch.tanh, links=links) as pipe:
        return bool(pipe.step(*batch()).isfinite())


# -- exceptions ------------------------------------------------------------------------------------------------------


class RaisesInBackward(torch.autograd.Function):
    """Raises in the fourth backward."""

    calls = 0

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:  # noqa: ARG004 - as autograd calls it
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # noqa: ARG004 - as autograd calls it
        RaisesInBackward.calls += 1
        if RaisesInBackward.calls == 4:
            raise Fault("the user's own words")
        return gradient


def fourth_forward() -> Callable[[Tensor], Tensor]:
    calls = iter(range(1, 100))

    def layer(x: Tensor) -> Tensor:
        if next(calls) == 4:
            raise Fault("the user's own words")
        return x.tanh()

    return layer


def fail(what: str, links: str) -> dict[str, Any]:
    RaisesInBackward.calls = 0
    fault = fourth_forward() if what == "forward" else RaisesInBackward.apply
    pipe = chain(4, at=2, fault=fault, links=links)
    with pytest.raises(PipelineFailure) as first:
        pipe.step(*batch())
    unspoilt = all(p.grad is None for p in pipe.parameters())
    again = []
    for use in (lambda: pipe.step(*batch()), lambda: pipe.evaluate(*batch()), pipe.timeline):
        with pytest.raises(PipelineFailure, match=r"(?s)own words.*make a new one") as later:
            use()
        again.append((later.value.rank, str(later.value.action)))
    pipe.close()
    with pytest.raises(RuntimeError, match="closed: make a new one"):
        pipe.step(*batch())
    return {
        "text": str(first.value),
        "rank": first.value.rank,
        "action": str(first.value.action),
        "cause": type(first.value.__cause__),
        "unspoilt": unspoilt,
        "again": again,
        "anew": works_anew(4, links),
    }


@both_links
@pytest.mark.parametrize("what", ["forward", "backward"])
def test_an_exception_in_stage_2_of_4_at_micro_batch_3_ends_all(crew: CREWS, what: str, links: str) -> None:
    action = {"forward": "2F3", "backward": "2B3"}[what]
    outcomes = crew(4).outcomes(fail, what, links)
    for rank, outcome in enumerate(outcomes):
        assert outcome.error is None, outcome.text
        assert outcome.seconds < SECONDS
        assert outcome.result["rank"] == 2
        assert outcome.result["action"] == action
        words = f"rank 2 failed at {action} ({what} of stage 2, micro-batch 3): "
        assert outcome.result["text"].startswith(words)
        assert 'raise Fault("the user\'s own words")' in outcome.result["text"]
        assert outcome.result["cause"] is (Fault if rank == 2 else type(None))
        assert outcome.result["unspoilt"]
        assert outcome.result["again"] == [(2, action)] * 3
        assert outcome.result["anew"]


def fault(*_: Any) -> Any:
    raise Fault("in what the user gave")


GIVEN: dict[str, Callable[[str], Any]] = {
    "loss_fn": lambda links: chain(2, at=-1, fault=fault, links=links, loss_fn=fault).step(*batch()),
    "loss_weight": lambda links: chain(2, at=-1, fault=fault, links=links, loss_weight=fault).step(*batch()),
    "a metric": lambda links: chain(2, at=-1, fault=fault, links=links).evaluate(*batch(), {"metric": fault}),
    "a layer in predict": lambda links: chain(2, at=1, fault=fault, links=links).predict(batch()[0]),
    "a stage's output": lambda links: chain(2, at=0, fault=Unsendable, links=links, cut=[2, 4]).step(*batch()),
}


class Unsendable:
    """Nothing that can pass from stage to stage."""

    def __init__(self, value: Tensor) -> None:
        self.value = value


def fail_in(what: str, links: str) -> None:
    try:
        GIVEN[what](links)
    finally:
        assert works_anew(2, links)


@both_links
@pytest.mark.parametrize("what", GIVEN)
def test_whatever_the_user_gave_may_raise(crew: CREWS, what: str, links: str) -> None:
    for outcome in crew(2).outcomes(fail_in, what, links):
        words = "contains a Unsendable" if what == "a stage's output" else "in what the user gave"
        assert words in str(outcome.error)
        assert outcome.seconds < SECONDS


# -- signals ---------------------------------------------------------------------------------------------------------


def step_slowly(links: str, busy: int) -> float:
    """A step in which stage `busy` takes its time; everybody else waits for it."""

    def slow(x: Tensor) -> Tensor:
        say("busy")
        time.sleep(0.7)
        return x

    dist.barrier()
    with chain(3, at=busy, fault=slow, links=links, micro_batches=1) as pipe:
        return float(pipe.step(*batch()))


@both_links
@pytest.mark.parametrize("interrupted", [0, 1, 2])
def test_an_interrupt_of_one_process_ends_all(crew: CREWS, interrupted: int, links: str) -> None:
    three = crew(3)
    three.run(works_anew, 3, links)
    three.start(step_slowly, links, 1)
    three.wait_for_word(1)
    start = time.monotonic()
    os.kill(three.pids[interrupted], signal.SIGINT)
    outcomes = three.finish()
    assert time.monotonic() - start < SECONDS
    for rank, outcome in enumerate(outcomes):
        if rank == interrupted:
            assert isinstance(outcome.error, KeyboardInterrupt), outcome
        else:
            assert isinstance(outcome.error, PipelineFailure), outcome
            assert outcome.error.rank == interrupted
            assert outcome.text.endswith("KeyboardInterrupt\n")
    assert three.run(works_anew, 3, links) == [True] * 3


def step_for_ever(links: str, child: bool = False) -> None:
    pipe = chain(3, at=-1, fault=torch.tanh, links=links)
    pipe.step(*batch())
    if child and os.fork() == 0:  # as a DataLoader's worker: it has copies of all connections
        stop_taking_orders()
        time.sleep(20)
        os._exit(0)
    say("stepping")
    while True:
        pipe.step(*batch())


@both_links
@pytest.mark.parametrize("killed", [0, 1, 2])
def test_a_killed_process_is_named_by_all_others(fresh_crew: CREWS, killed: int, links: str) -> None:
    assert_killed_is_named(fresh_crew(3), killed, step_for_ever, links)


def test_a_killed_process_with_children_is_named_too(fresh_crew: CREWS) -> None:
    assert_killed_is_named(fresh_crew(3), 2, step_for_ever, "shared_memory", True)


def assert_killed_is_named(crew: Crew, killed: int, function: Callable[..., Any], *arguments: Any) -> None:
    crew.start(function, *arguments)
    for rank in range(crew.size):
        crew.wait_for_word(rank)
    start = time.monotonic()
    os.kill(crew.pids[killed], signal.SIGKILL)
    outcomes = crew.finish()
    assert time.monotonic() - start < SECONDS
    for rank, outcome in enumerate(outcomes):
        if rank == killed:
            assert outcome.exit_code == -signal.SIGKILL
        else:
            assert isinstance(outcome.error, PipelineFailure), outcome
            assert outcome.error.rank == killed, outcome.text
            assert f"rank {killed} failed: its process is gone" in str(outcome.error)
    exit_codes = crew.close()
    assert [code for rank, code in enumerate(exit_codes) if rank != killed] == [0, 0]


def idle_then_step(links: str) -> None:
    pipe = chain(3, at=-1, fault=torch.tanh, links=links)
    pipe.step(*batch())
    say("idle")
    time.sleep(0.5)  # one process is killed meanwhile
    pipe.step(*batch())


@both_links
def test_a_process_killed_between_steps_is_named_at_the_next(fresh_crew: CREWS, links: str) -> None:
    assert_killed_is_named(fresh_crew(3), 1, idle_then_step, links)


def leave_early(links: str, how: str) -> Any:
    pipe = chain(3, at=-1, fault=torch.tanh, links=links)
    pipe.step(*batch())
    if dist.get_rank() == 1:
        if how == "exit":
            raise SystemExit(3)
        pipe.close()
        return None
    return pipe.step(*batch())


@both_links
@pytest.mark.parametrize("how", ["exit", "close"])
def test_a_process_that_leaves_early_is_named(fresh_crew: CREWS, how: str, links: str) -> None:
    three = fresh_crew(3)
    outcomes = three.outcomes(leave_early, links, how)
    assert outcomes[1].exit_code == (3 if how == "exit" else None)
    for rank in (0, 2):
        assert isinstance(outcomes[rank].error, PipelineFailure)
        assert outcomes[rank].error.rank == 1, outcomes[rank].text
        assert "gone" in str(outcomes[rank].error) or "closed" in str(outcomes[rank].error)
        assert outcomes[rank].seconds < SECONDS


def die_before_the_pipeline(links: str) -> None:
    if dist.get_rank() == 1:
        os._exit(7)
    chain(3, at=-1, fault=torch.tanh, links=links)


def test_a_process_that_never_makes_the_pipeline_ends_all(fresh_crew: CREWS) -> None:
    outcomes = fresh_crew(3).outcomes(die_before_the_pipeline, "auto")
    assert outcomes[1] == Outcome(exit_code=7)
    for rank in (0, 2):
        assert "a process ended before it came to make this pipeline" in outcomes[rank].text
        assert outcomes[rank].seconds < SECONDS


# -- endings ---------------------------------------------------------------------------------------------------------

_left: list[Any] = []


def leave_open(links: str, how: str) -> None:
    """Steps, and what a script may leave when it ends."""
    pipe = chain(2, at=-1, fault=torch.tanh, links=links)
    pipe.step(*batch())
    pipe.predict(torch.ones(4, 4))
    if how == "in a global":
        _left.append(pipe)
    elif how == "in a cycle":
        _left.append([pipe])
        _left[-1].append(_left.pop())
        del pipe
        gc.collect()
    elif how == "torch.distributed ended":
        _left.append(pipe)
        dist.destroy_process_group()
    elif how == "failed":
        _left.append(pipe)
        with pytest.raises((ValueError, PipelineFailure)):
            pipe.step()


@pytest.fixture
def nothing_left() -> Iterator[None]:
    """Nothing in the folders in which processes leave things."""

    def ours() -> set[Path]:
        folders = (Path("/dev/shm"), Path(tempfile.gettempdir()))
        return {path for folder in folders for path in folder.iterdir() if "headrace" in path.name}

    before = ours()
    yield
    assert ours() <= before


@both_links
@pytest.mark.parametrize("how", ["in a global", "in a cycle", "torch.distributed ended", "failed"])
@pytest.mark.usefixtures("nothing_left")
def test_exit_without_close_is_quiet_and_quick(fresh_crew: CREWS, how: str, links: str) -> None:
    two = fresh_crew(2)
    two.run(leave_open, links, how)
    start = time.monotonic()
    assert two.close() == [0, 0]
    assert time.monotonic() - start < SECONDS
    assert [two.errors(rank) for rank in range(2)] == ["", ""]


def keep_received(links: str) -> list[bool]:
    """Tensors in shared blocks live as long as somebody holds them, and nobody writes to them."""
    kept: list[Tensor] = []

    def keep(x: Tensor) -> Tensor:
        kept.append(x.detach())
        return x

    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), Do(keep), nn.Linear(4, 4))
    torch.manual_seed(0)
    pipe = hr.Pipeline(model, nn.functional.mse_loss, ranks=2, micro_batches=2, cut=[2, 2], links=links)
    copies = []
    for step in range(5):
        pipe.evaluate(torch.full((8000, 4), float(step)), torch.zeros(8000, 4))
        copies += [t.clone() for t in kept[len(copies) :]]
    alive = [torch.equal(t, copy) for t, copy in zip(kept, copies, strict=True)]
    pipe.close()
    del pipe
    gc.collect()
    return alive + [torch.equal(t, copy) for t, copy in zip(kept, copies, strict=True)]


@both_links
def test_what_a_layer_keeps_stays_as_it_is(crew: CREWS, links: str) -> None:
    assert crew(2).run(keep_received, links) == [[], [True] * 20]
