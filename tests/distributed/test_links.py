"""The parts of links: blocks, the inbox, the alarm and its switchboard, the link over shared memory."""

import gc
import os
import pickle
import resource
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch
from torch import Tensor

from headrace.runtime.failure import PipelineFailure
from headrace.runtime.transport.distributed.alarm import Alarm
from headrace.runtime.transport.distributed.collective import Collective
from headrace.runtime.transport.distributed.frames import Frames
from headrace.runtime.transport.distributed.inbox import Inbox
from headrace.runtime.transport.distributed.segments import OwnSegments, TheirSegments
from headrace.runtime.transport.distributed.shared_memory import SharedMemoryLink
from headrace.runtime.transport.distributed.switchboard import JOIN, Address, Switchboard
from headrace.runtime.transport.distributed.wire import pack
from headrace.schedule.messages import Message

T = TypeVar("T")


def aside(function: Callable[..., T], *arguments: Any) -> "Future[T]":
    """The result of a call in another thread, which nobody waits for if it hangs."""
    result: Future[T] = Future()

    def call() -> None:
        try:
            result.set_result(function(*arguments))
        except BaseException as error:
            result.set_exception(error)

    threading.Thread(target=call, daemon=True).start()
    return result


def all_at_once(count: int, function: Callable[[int], T]) -> list[T]:
    """The results of function(0), function(1) … all called at the same time."""
    return [call.result(10) for call in [aside(function, i) for i in range(count)]]


# -- blocks ----------------------------------------------------------------------------------------------------------


def test_a_block_is_done_only_when_its_last_view_died() -> None:
    own, theirs = OwnSegments(), TheirSegments()
    segment = own.take(100_000)
    segment.memory[:3] = b"abc"
    assert segment.descriptor is not None
    theirs.add(segment.number, os.dup(segment.descriptor))
    segment.passed_on()

    tensor = torch.frombuffer(theirs.open(segment.number), dtype=torch.uint8)
    view = tensor[1:3]
    del tensor
    gc.collect()
    assert list(theirs.done) == []
    assert bytes(view.tolist()) == b"bc"
    del view
    assert list(theirs.done) == [segment.number]


def test_blocks_are_filled_again_only_when_given_back() -> None:
    own = OwnSegments()
    first, second = own.take(100_000), own.take(100_000)
    assert first.number != second.number
    own.give_back(first.number)
    assert own.take(70_000) is first, "it fits"
    assert own.take(200_000) not in (first, second), "none is large enough"
    assert own.take(100_000) not in (first, second), "all are in use"
    own.close()


@pytest.mark.parametrize("size", [1, 4096, 65_536, 65_537, 3_000_000])
def test_a_block_has_room(size: int) -> None:
    own = OwnSegments()
    segment = own.take(size)
    segment.memory[size - 1 : size] = b"x"
    assert size <= segment.size <= max(65_536, 2 * size)
    own.close()


def test_blocks_cost_no_descriptors() -> None:
    """A process may have a thousand, and more blocks than that under way."""
    before = len(list(Path("/proc/self/fd").iterdir()))
    own, theirs = OwnSegments(), TheirSegments()
    for _ in range(50):
        segment = own.take(100)
        assert segment.descriptor is not None
        theirs.add(segment.number, os.dup(segment.descriptor))
        segment.passed_on()
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    own.close()


# -- alarm -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def alarms() -> Iterator[Callable[[int], list[Alarm]]]:
    """alarms(p): the alarms of p processes, all in this one."""
    made: list[Alarm] = []

    def make(processes: int) -> list[Alarm]:
        address: list[Any] = []
        known = threading.Event()

        def from_first(value: Any) -> Any:
            if value is not None:
                address.append(value)
                known.set()
            assert known.wait(10)
            return address[0]

        made.extend(all_at_once(processes, lambda rank: Alarm(rank, processes, from_first)))
        return made

    yield make
    for alarm in reversed(made):
        alarm.close()


def heard(alarm: Alarm) -> PipelineFailure:
    assert alarm._heard.wait(10)
    with pytest.raises(PipelineFailure) as info:
        alarm.raise_if_rung()
    return info.value


def test_all_hear_the_first_cause(alarms: Callable[[int], list[Alarm]]) -> None:
    four = alarms(4)
    failure = PipelineFailure(2, None, "first")
    assert four[2].ring(failure) is not None
    assert [heard(alarm) for alarm in four] == [failure] * 4
    assert four[1].ring(PipelineFailure(1, None, "second")) == failure
    assert [heard(alarm) for alarm in four] == [failure] * 4


def test_of_many_causes_at_once_all_hear_the_same(alarms: Callable[[int], list[Alarm]]) -> None:
    eight = alarms(8)
    told = all_at_once(8, lambda rank: eight[rank].ring(PipelineFailure(rank, None, f"of {rank}")))
    assert len({failure.rank for failure in told}) == 1
    assert [heard(alarm) for alarm in eight] == told


def test_who_rings_leaves_only_when_all_have_heard(alarms: Callable[[int], list[Alarm]]) -> None:
    three = alarms(3)
    with three[2]._lock:  # so it cannot hear yet
        ringing = aside(three[1].ring, PipelineFailure(1, None, "cause"))
        assert heard(three[0]).what == "cause"
        with pytest.raises(TimeoutError):
            ringing.result(0.2)
    ringing.result(10)
    assert all(alarm._heard.is_set() for alarm in three)


def test_a_failure_wakes_a_wait(alarms: Callable[[int], list[Alarm]]) -> None:
    one, other = alarms(2)
    inbox = Inbox(one)
    waiting = aside(inbox.receive, (1, Message("activation", 1, 0)), 1)
    other.ring(PipelineFailure(1, None, "cause"))
    with pytest.raises(PipelineFailure, match="cause"):
        waiting.result(10)
    inbox.close()


def test_failures_that_are_raised_again_do_not_collect_tracebacks(alarms: Callable[[int], list[Alarm]]) -> None:
    (alone,) = alarms(1)
    alone.ring(PipelineFailure(0, None, "cause"))
    first, second = heard(alone), heard(alone)
    assert first is not second
    with pytest.raises(PipelineFailure, match=r"(?s)cause.*make a new one"):
        alone.refuse_if_rung()


def test_a_line_that_breaks_is_a_failure(alarms: Callable[[int], list[Alarm]]) -> None:
    three = alarms(3)
    three[1]._line.socket.shutdown(socket.SHUT_RDWR)
    assert heard(three[0]) == heard(three[2]) == PipelineFailure(1, None, "its process is gone")


def test_a_goodbye_is_no_failure(alarms: Callable[[int], list[Alarm]]) -> None:
    three = alarms(3)
    three[1].close()
    three[0].close()  # the switchboard stays
    three[2].ring(PipelineFailure(2, None, "later"))
    assert heard(three[2]).what == "later"
    three[:2] = []


def test_strangers_are_not_listened_to(alarms: Callable[[int], list[Alarm]]) -> None:
    switchboard = Switchboard(1)
    for body in (b"", b"x" * 40):
        with socket.create_connection(switchboard.address[:2], timeout=10) as connection:
            stranger = Frames(connection)
            stranger.send(JOIN, body)
            with pytest.raises(OSError, match=r"closed by the other end|reset by peer"):
                stranger.receive()
    with socket.create_connection(switchboard.address[:2]):
        pass  # says nothing at all
    alarm = Alarm(0, 1, lambda _: switchboard.address)
    alarm.ring(PipelineFailure(0, None, "cause"))
    assert heard(alarm).what == "cause"
    alarm.close()
    assert isinstance(switchboard.address, Address)
    assert alarms(1)


def test_gathering_large_and_small_values(alarms: Callable[[int], list[Alarm]]) -> None:
    three = alarms(3)
    inboxes = [Inbox(alarm) for alarm in three]
    collectives = [Collective(alarm, inbox) for alarm, inbox in zip(three, inboxes, strict=True)]
    for size in (0, 10, 5_000_000):
        values = [(rank, b"x" * size * rank) for rank in range(3)]
        assert all_at_once(3, lambda rank, of=values: collectives[rank].gather(of[rank])) == [values] * 3
    for inbox in inboxes:
        inbox.close()


def test_a_gathering_that_cannot_end_fails(alarms: Callable[[int], list[Alarm]]) -> None:
    three = alarms(3)
    inboxes = [Inbox(alarm) for alarm in three]
    collectives = [Collective(alarm, inbox) for alarm, inbox in zip(three, inboxes, strict=True)]
    waiting = aside(collectives[2].gather, 1)
    three[1].close()
    with pytest.raises(PipelineFailure, match="rank 1 failed: its process has closed the pipeline"):
        waiting.result(10)
    for inbox in inboxes:
        inbox.close()
    del three[1]


class Interrupted:
    """An inbox in which a failure is heard just after the values have come."""

    def __init__(self, alarm: Alarm) -> None:
        self.alarm = alarm

    def nudge(self) -> None:
        pass

    def wait(self) -> None:
        self.alarm._gathered.append(pickle.dumps([pickle.dumps("of rank 0")]))
        raise PipelineFailure(0, None, "in the next step")


def test_what_was_gathered_before_a_failure_counts(alarms: Callable[[int], list[Alarm]]) -> None:
    alarm = alarms(2)[1]
    inbox: Any = Interrupted(alarm)
    assert Collective(alarm, inbox).gather("ignored") == ["of rank 0"]


# -- inbox -----------------------------------------------------------------------------------------------------------

KEYS = [(1, Message("activation", 1, k)) for k in range(4)]


def test_messages_wait_until_they_are_wanted(alarms: Callable[[int], list[Alarm]]) -> None:
    (alarm,) = alarms(1)
    inbox = Inbox(alarm)
    inbox.keep(KEYS[1], "b")
    inbox.deliver(KEYS[0], "a")
    inbox.deliver((2, KEYS[1][1]), "of the next round")
    assert inbox.receive(KEYS[0], 0) == "a"
    assert inbox.receive(KEYS[1], 0) == "b"
    assert inbox.receive((2, KEYS[1][1]), 0) == "of the next round"
    inbox.close()


def test_what_was_delivered_before_a_connection_closed_is_received(alarms: Callable[[int], list[Alarm]]) -> None:
    (alarm,) = alarms(1)
    inbox = Inbox(alarm)
    inbox.deliver(KEYS[0], "last words")
    inbox.lost(0)
    assert inbox.receive(KEYS[0], 0) == "last words"
    with pytest.raises(PipelineFailure, match="rank 0 lost it"):
        inbox.receive(KEYS[1], 0)
    inbox.close()


def test_nobody_is_held_up_by_an_inbox_that_nobody_reads(alarms: Callable[[int], list[Alarm]]) -> None:
    (alarm,) = alarms(1)
    inbox = Inbox(alarm)
    for _ in range(200_000):  # more than a pipe holds
        inbox.nudge()
    inbox.close()
    inbox.nudge()


# -- the link over shared memory -------------------------------------------------------------------------------------


class Ends:
    """Both ends of a link, in this process."""

    def __init__(self, alarms: list[Alarm]) -> None:
        self.inboxes = [Inbox(alarm) for alarm in alarms]
        self.sockets = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.links = [SharedMemoryLink(1 - i, self.sockets[i], self.inboxes[i], alarms[i]) for i in range(2)]

    def close(self) -> None:
        for link in self.links:
            link.close()
        for inbox in self.inboxes:
            inbox.close()


@pytest.fixture
def ends(alarms: Callable[[int], list[Alarm]]) -> Iterator[Ends]:
    both = Ends(alarms(2))
    yield both
    both.close()


def send(ends: Ends, number: int, *tensors: Tensor) -> None:
    ends.links[0].send(pack(number, KEYS[0][1], tensors))


def receive(ends: Ends, number: int) -> tuple[Tensor, ...]:
    result: tuple[Tensor, ...] = ends.inboxes[1].receive((number, KEYS[0][1]), 0)
    return result


@pytest.mark.parametrize("size", [10, 4000, 100_000])
def test_hundreds_of_messages_under_way(ends: Ends, size: int) -> None:
    for i in range(400):
        send(ends, i, torch.full((size,), float(i)))
    assert ends.links[0]._unsent, "the socket took all of it, so this test tests nothing"
    finished = aside(ends.links[0].finish)
    for i in range(400):
        (tensor,) = receive(ends, i)
        assert tensor.eq(i).all()
    finished.result(10)


def test_after_a_jam_nobody_spins(ends: Ends) -> None:
    send(ends, 0, torch.ones(10))
    while not ends.links[0]._unsent:
        send(ends, 0, torch.ones(4000))
    ends.inboxes[1].wait()
    ends.links[0].finish()
    assert ends.inboxes[0]._poll.poll(0) == []


def test_blocks_come_back(ends: Ends) -> None:
    for i in range(100):
        send(ends, i, torch.full((50_000,), float(i)))
        (tensor,) = receive(ends, i)
        assert tensor.eq(i).all()
        del tensor
        ends.links[1].finish()
    assert len(ends.links[0]._own._all) <= 2


def test_blocks_that_are_held_are_not_written_to(ends: Ends) -> None:
    held = []
    for i in range(20):
        send(ends, i, torch.full((50_000,), float(i)))
        held.append(receive(ends, i)[0])
        ends.links[1].finish()
    assert all(tensor.eq(i).all() for i, tensor in enumerate(held))


@pytest.mark.parametrize("strings", [1, 40_000, 300_000])
@pytest.mark.parametrize("size", [1, 30_000])
def test_headers_of_any_length(ends: Ends, strings: int, size: int) -> None:
    from headrace.runtime.stage.boundary import Parcel, take_apart

    value = {"x": torch.ones(size), "text": "é" * strings}
    tensors, skeleton = take_apart(value, "value")
    ends.links[0].send(pack(1, KEYS[0][1], Parcel(tensors, (True,), skeleton)))
    came: Any = receive(ends, 1)
    assert came.value["text"] == value["text"]
    assert came.value["x"].eq(1).all()


def test_what_comes_over_a_socket_is_aligned_as_torch_aligns(ends: Ends) -> None:
    for i in range(50):
        send(ends, i, torch.ones(3 + i), torch.ones(5))
        assert [tensor.data_ptr() % 64 for tensor in receive(ends, i)] == [0, 0]


def test_what_was_sent_before_a_close_is_received(ends: Ends) -> None:
    for i in range(5):
        send(ends, i, torch.full((50_000,), float(i)))
    ends.links[0].close()
    ends.links[1]._theirs.done.extend([0, 1])
    ends.links[1]._send(b"")  # which finds the connection closed
    for i in range(5):
        assert receive(ends, i)[0].eq(i).all()
    with pytest.raises(PipelineFailure, match="rank 0 failed: its process is gone, or has closed the pipeline"):
        receive(ends, 5)
    with pytest.raises(PipelineFailure, match="rank 0 failed"):
        ends.links[1].send(pack(1, KEYS[0][1], (torch.ones(1),)))


def test_too_many_open_files_are_named(ends: Ends) -> None:
    send(ends, 1, torch.ones(50_000))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (4, hard))
    try:
        with pytest.raises(OSError, match="too many open files to take another shared block"):
            receive(ends, 1)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_wait_costs_no_cpu_time(ends: Ends) -> None:
    def wait() -> float:
        start = time.thread_time()
        receive(ends, 1)
        return time.thread_time() - start

    waiting = aside(wait)
    time.sleep(0.3)
    send(ends, 1, torch.ones(1))
    assert waiting.result(10) < 0.05
