"""Memory, threads and their end; several pipelines; and what a step leaves to look at."""

import gc
import itertools
import sys
import threading
import time
import weakref
from typing import Any

import naive
import pytest
import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

import headrace as hr
from headrace.runtime.transport.local.mailbox import Mailbox
from headrace.schedule import Schedule, build
from headrace.schedule.messages import Message
from runtime.cases import DIM, Do, make
from runtime.pipes import SEED, Race, Watch, four_linears, pipe_of, plus_one
from runtime.reference import Unsplit, backward_order, differing, gradients, same

mse = nn.functional.mse_loss


def rank_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("headrace rank")]


def ended(threads: list[threading.Thread]) -> bool:
    """Wait for all of them to end, at most five seconds."""
    deadline = time.monotonic() + 5
    for thread in threads:
        thread.join(max(0, deadline - time.monotonic()))
    return not any(thread.is_alive() for thread in threads)


def live_tensors() -> int:
    return sum(issubclass(type(thing), Tensor) for thing in gc.get_objects())


def test_two_thousand_steps_grow_nothing() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Dropout(), nn.Linear(2, 2))
    pipe = hr.Pipeline(model, mse, ranks=2, micro_batches=2, recompute="except_last")
    x, y = torch.randn(2, 2), torch.randn(2, 2)

    def after(steps: int) -> tuple[int, int, int]:
        for _ in range(steps):
            pipe.step(x, y)
        gc.collect()
        return sys.getallocatedblocks(), live_tensors(), threading.active_count()

    blocks, *rest = after(100)
    blocks_later, *rest_later = after(2000)
    assert rest_later == rest
    assert blocks_later - blocks < 1000  # not even one object in two steps


def test_a_step_leaves_no_garbage_that_only_the_collector_finds() -> None:
    case = make("skip_connection")
    pipe = pipe_of(case, 3, 4, recompute="except_last")
    for _ in range(3):
        pipe.step(*case.batch(0))
    gc.collect()
    gc.disable()
    try:
        before = live_tensors()
        for _ in range(5):
            pipe.step(*case.batch(0))
        assert live_tensors() == before
    finally:
        gc.enable()


def test_a_dropped_pipeline_ends_its_threads() -> None:
    gc.collect()
    others = set(rank_threads())
    model = four_linears()
    pipe = hr.Pipeline(model, mse, ranks=3, micro_batches=2)
    pipe.step(torch.zeros(2, DIM), torch.zeros(2, DIM))
    mine = [thread for thread in rank_threads() if thread not in others]
    assert len(mine) == 3
    there = weakref.ref(pipe)
    del pipe
    assert there() is None, "something refers to a dropped pipeline"
    assert ended(mine)


def test_a_closed_pipeline_says_so() -> None:
    others = set(rank_threads())
    with hr.Pipeline(four_linears(), mse, ranks=2, micro_batches=2) as pipe:
        mine = [thread for thread in rank_threads() if thread not in others]
    assert ended(mine)
    pipe.close()
    with pytest.raises(RuntimeError, match="this pipeline is closed: make a new one"):
        pipe.step(torch.zeros(2, DIM), torch.zeros(2, DIM))


def test_refused_pipelines_leave_no_threads() -> None:
    others = set(rank_threads())
    for wrong in ({"cut": (1, 1)}, {"schedule": "none"}, {"devices": "nowhere"}, {"loss_weight": "tokens"}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            hr.Pipeline(four_linears(), mse, ranks=2, micro_batches=2, **wrong)  # type: ignore[arg-type]
    assert set(rank_threads()) <= others


def test_two_pipelines_take_turns() -> None:
    one, other = Race("dropout", 2, 3), Race("dropout", 3, 2, schedule="gpipe", recompute="always")
    for step in range(3):
        one.step(*one.case.batch(step))
        other.step(*other.case.batch(step))


@pytest.mark.parametrize("names", [("dropout", "dropout"), ("noise", "dropout"), ("plain", "conv_net")])
def test_two_pipelines_step_at_once(names: tuple[str, str]) -> None:
    """From two threads: the streams of random numbers do not get in each other's way."""
    torch.manual_seed(SEED)
    cases = [make(name) for name in names]
    pipes = [pipe_of(case, 2, 3, recompute="always") for case in cases]
    barrier = threading.Barrier(2)
    losses: list[list[Tensor]] = [[], []]
    failures: list[BaseException] = []

    def train(i: int) -> None:
        try:
            barrier.wait(10)
            for step in range(8):
                losses[i].append(pipes[i].step(*cases[i].batch(step)))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=train, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    assert ended(threads)
    assert failures == []
    for name, case, pipe, of_pipe in zip(names, cases, pipes, losses, strict=True):
        unsplit = Unsplit(make(name), SEED)
        for step, loss in enumerate(of_pipe):
            assert same(loss, unsplit.step(unsplit.case.batch(step), backward_order(pipe.schedule)))
        assert differing(gradients(case.model), gradients(unsplit.case.model)) == []


# -- tensors between stages --------------------------------------------------------------------------------------------


class Asks(torch.autograd.Function):
    """Hands a tensor on; calls `ask` when the backward comes by."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, ask: Any) -> Tensor:
        ctx.ask = ask
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        ctx.ask()
        return gradient, None


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_what_was_sent_is_freed_before_its_backward(schedule: str) -> None:
    """The output of stage 0 is saved by nobody: no memory holds it when stage 0 goes backward."""
    outputs: list[StorageWeakRef] = []
    alive: list[int] = []

    def ask() -> None:
        alive.append(sum(not output.expired() for output in outputs))

    model = nn.Sequential(
        nn.Linear(DIM, DIM),
        Do(lambda x: Asks.apply(x, ask)),
        plus_one(),
        Watch(lambda x: outputs.append(StorageWeakRef(x.untyped_storage()))),
        plus_one(),
        nn.Linear(DIM, DIM),
    )
    pipe = hr.Pipeline(model, mse, ranks=2, micro_batches=4, schedule=schedule, cut=(4, 2))
    x, y = torch.randn(8, DIM), torch.randn(8, DIM)
    pipe.step(x, y)
    outputs.clear()
    alive.clear()
    for _ in range(3):
        pipe.step(x, y)
    if schedule == "gpipe":  # all forwards of stage 1 precede the first backward of stage 0
        assert alive == [0] * 12
    else:  # stage 1 may be at work on the newest one
        assert max(alive) <= 1


@pytest.mark.parametrize(
    ("recompute", "alive"), [("never", [1, 1]), ("except_last", [0, 1, 1]), ("always", [0, 0, 1, 1])]
)
def test_what_will_be_recomputed_is_not_even_kept_during_the_forward(recompute: str, alive: list[int]) -> None:
    """In each F and R of a rank: how much of what passed between two layers is still there two layers on."""
    between: list[StorageWeakRef] = []
    seen: list[int] = []
    model = nn.Sequential(
        nn.Linear(DIM, DIM),
        nn.Tanh(),  # saves its output, as the next Linear does
        Watch(lambda x: between.append(StorageWeakRef(x.untyped_storage()))),
        nn.Linear(DIM, DIM),
        plus_one(),
        Watch(lambda _: seen.append(not between[-1].expired())),
    )
    pipe = hr.Pipeline(model, mse, ranks=1, micro_batches=2, recompute=recompute)
    pipe.step(torch.randn(2, DIM), torch.randn(2, DIM))
    assert sorted(seen) == alive


def test_every_micro_batch_starts_a_graph_of_its_own() -> None:
    received: list[Tensor] = []
    model = nn.Sequential(nn.Linear(DIM, DIM), Watch(received.append), nn.Linear(DIM, DIM))
    pipe = hr.Pipeline(model, mse, ranks=2, micro_batches=3, cut=(1, 2))
    pipe.step(torch.randn(3, DIM), torch.randn(3, DIM))
    assert all(x.requires_grad for x in received)
    assert len({x.grad_fn for x in received}) == len({x.data_ptr() for x in received}) == 3


def test_a_frozen_first_stage_gets_no_gradients() -> None:
    """No backward runs through it, and its input needs none."""
    asked: list[None] = []
    model = nn.Sequential(
        nn.Linear(DIM, DIM).requires_grad_(False),
        Do(lambda x: Asks.apply(x, lambda: asked.append(None))),
        nn.Linear(DIM, DIM),
    )
    hr.Pipeline(model, mse, ranks=3, micro_batches=2).step(torch.randn(2, DIM), torch.randn(2, DIM))
    assert asked == []


def test_only_gradients_that_are_needed_are_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[Message] = []
    put = Mailbox.put

    def note(self: Mailbox, message: Message, payload: Any) -> None:
        sent.append(message)
        put(self, message, payload)

    monkeypatch.setattr(Mailbox, "put", note)
    case = make("output_without_grad")
    pipe_of(case, 4, 1).step(*case.batch(0))  # what enters its third stage needs no gradient
    assert sorted(sent) == [
        *(("activation", stage, 0) for stage in (1, 2, 3)),
        *(("gradient", stage, 0) for stage in (0, 2)),
    ]


# -- the timeline ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "schedule",
    [build("gpipe", ranks=3, micro_batches=4, recompute="always"), build("1f1b", ranks=4, micro_batches=5)],
    ids=lambda schedule: schedule.name,
)
def test_the_timeline_is_what_happened(schedule: Schedule) -> None:
    with hr.Pipeline(
        four_linears(), mse, ranks=schedule.ranks, micro_batches=schedule.micro_batches, schedule=schedule
    ) as pipe:
        assert pipe.timeline().spans == ()
        for _ in range(2):
            pipe.step(torch.randn(5, DIM), torch.randn(5, DIM))
        timeline = pipe.timeline()
    rows = tuple(tuple(s.action for s in timeline.spans if s.rank == rank) for rank in range(schedule.ranks))
    assert rows == schedule.rows
    spans = {span.action: span for span in timeline.spans}
    needed = naive.needs(schedule)
    for span in timeline.spans:
        assert 0 <= span.start <= span.end
        assert all(spans[before].end <= span.start for before in needed[span.action])
    for row in rows:
        assert all(spans[a].end <= spans[b].start for a, b in itertools.pairwise(row))
    assert min(span.start for span in timeline.spans) == 0
