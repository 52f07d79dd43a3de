"""Crews of worker processes that do what tests tell them: one crew per number of ranks, started once per session.

    pytest ── crew.run(function, …) ──▶ worker of rank 0   function(…) ─▶ result or exception
                                    └─▶ worker of rank 1   …

Workers are forked from a process that has imported torch and nothing else, so a fresh crew, which some tests kill,
costs milliseconds. Every call has a deadline; at that, all workers dump their tracebacks, and the test fails.
"""

import contextlib
import os
import pickle
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from typing import Any, Final

import pytest

DEADLINE: Final = 40.0
_TESTS: Final = Path(__file__).parents[1]


@dataclass(frozen=True)
class Outcome:
    """What a call came to in one process.

    Attributes:
        result: what the function returned.
        error: what it raised; None if it returned.
        text: the traceback of `error`.
        seconds: how long the call took.
        exit_code: of the process, if it ended instead; negative for a signal.
    """

    result: Any = None
    error: BaseException | None = None
    text: str = ""
    seconds: float = 0.0
    exit_code: int | None = None


class Crew:
    """As many worker processes as there are ranks, with torchrun's environment and torch.distributed initialised.

    That goes over a file: torch's TCP store asks a name server about everybody who connects, and may wait for seconds.

    Args:
        size: how many.
        fork_server: see `fork_server`.
    """

    def __init__(self, size: int, fork_server: "ForkServer") -> None:
        self.size = size
        self._server = fork_server
        self._folder = tempfile.TemporaryDirectory(prefix="crew-")
        self._pipes: list[Connection] = []
        self.pids: list[int] = []
        for rank in range(size):
            ours, theirs = Pipe()
            environment = {
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(size),
                "MASTER_ADDR": "127.0.0.1",
                "STORE": str(Path(self._folder.name) / "store"),
            }
            with self._errors_path(rank).open("wb") as errors:
                self.pids.append(fork_server.fork(theirs.fileno(), errors.fileno(), environment))
            theirs.close()
            self._pipes.append(ours)
        self._exit_codes: list[int | None] = [None] * size

    @property
    def usable(self) -> bool:
        """Whether all its processes are there."""
        return all(code is None for code in self._exit_codes)

    def run(self, function: Callable[..., Any], *arguments: Any, deadline: float = DEADLINE) -> list[Any]:
        """Call `function` in every process at once; its results by rank. No process may raise or end."""
        outcomes = self.outcomes(function, *arguments, deadline=deadline)
        for rank, outcome in enumerate(outcomes):
            if outcome.error is not None or outcome.exit_code is not None:
                what = outcome.text or f"ended with exit code {outcome.exit_code}\n{self.errors(rank)}"
                pytest.fail(f"rank {rank} of {self.size}: {what}")
        return [outcome.result for outcome in outcomes]

    def outcomes(self, function: Callable[..., Any], *arguments: Any, deadline: float = DEADLINE) -> list[Outcome]:
        """Call `function` in every process at once; how each call ended, by rank."""
        self.start(function, *arguments)
        return self.finish(deadline)

    def start(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Begin a call in every process."""
        order = pickle.dumps((function.__module__, function.__qualname__, arguments))
        for pipe in self._pipes:
            pipe.send_bytes(order)

    def wait_for_word(self, rank: int, deadline: float = DEADLINE) -> Any:
        """What the process of `rank` says (see `say`) in the call under way."""
        if not self._pipes[rank].poll(deadline):
            self._fail(f"rank {rank} said nothing within {deadline:g} s")
        what, word = pickle.loads(self._pipes[rank].recv_bytes())
        if what != "word":
            pytest.fail(f"rank {rank} was to say something, but ended its call: {word}")
        return word

    def finish(self, deadline: float = DEADLINE) -> list[Outcome]:
        """Wait for the call under way to end everywhere, by returning, raising or exiting."""
        end = time.monotonic() + deadline
        outcomes: dict[int, Outcome] = {}
        while len(outcomes) < self.size:
            waiting = [pipe for rank, pipe in enumerate(self._pipes) if rank not in outcomes]
            ready = wait(waiting, max(0.0, end - time.monotonic()))
            if not ready:
                missing = [rank for rank in range(self.size) if rank not in outcomes]
                self._fail(f"ranks {missing} did not end within {deadline:g} s; the others: {outcomes}")
            for pipe in ready:
                rank = self._pipes.index(pipe)  # type: ignore[arg-type]
                try:
                    what, word = pickle.loads(self._pipes[rank].recv_bytes())
                except (EOFError, ConnectionResetError):
                    self._exit_codes[rank] = self._server.exit_code(self.pids[rank], max(0.1, end - time.monotonic()))
                    outcomes[rank] = Outcome(exit_code=self._exit_codes[rank])
                else:
                    if what == "outcome":
                        outcomes[rank] = word
        return [outcome for _, outcome in sorted(outcomes.items())]

    def errors(self, rank: int) -> str:
        """What the process of `rank` has written to stderr."""
        return self._errors_path(rank).read_text()

    def close(self, deadline: float = DEADLINE) -> list[int]:
        """Have all processes exit as Python does; their exit codes."""
        for pipe in self._pipes:
            with contextlib.suppress(BrokenPipeError):
                pipe.send_bytes(pickle.dumps(None))
        end = time.monotonic() + deadline
        for rank, pid in enumerate(self.pids):
            if self._exit_codes[rank] is None:
                self._exit_codes[rank] = self._server.exit_code(pid, max(0.1, end - time.monotonic()))
        if None in self._exit_codes:
            self._fail(f"did not exit within {deadline:g} s: exit codes {self._exit_codes}")
        for pipe in self._pipes:
            pipe.close()
        return [code for code in self._exit_codes if code is not None]

    def clean_up(self) -> None:
        """Kill what is left."""
        for rank, pid in enumerate(self.pids):
            if self._exit_codes[rank] is None:
                os.kill(pid, signal.SIGKILL)
                self._exit_codes[rank] = self._server.exit_code(pid, 10)
        self._folder.cleanup()

    def _errors_path(self, rank: int) -> Path:
        return Path(self._folder.name) / f"stderr-{rank}"

    def _fail(self, what: str) -> None:
        for rank, pid in enumerate(self.pids):
            if self._exit_codes[rank] is None:
                os.kill(pid, signal.SIGUSR1)
        time.sleep(1)  # for the tracebacks
        errors = "\n".join(f"--- rank {rank}\n{self.errors(rank)}" for rank in range(self.size))
        self.clean_up()
        pytest.fail(f"{what}\n{errors}")


# -- the process that forks workers ----------------------------------------------------------------------------------


class ForkServer:
    """Forks workers, and waits for their exit codes, as only their parent can."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        environment["PYTHONPATH"] = os.pathsep.join([str(_TESTS), environment.get("PYTHONPATH", "")])
        command = [sys.executable, "-m", "distributed.worker", str(theirs.fileno())]
        self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()], env=environment)
        theirs.close()

    def fork(self, pipe: int, errors: int, environment: dict[str, str]) -> int:
        """A new worker; its process id."""
        socket.send_fds(self._socket, [pickle.dumps(("fork", environment))], [pipe, errors])
        return int(self._answer())

    def exit_code(self, pid: int, seconds: float) -> int | None:
        """The exit code of a worker, as subprocess gives it; None if it has not ended in that time."""
        self._socket.send(pickle.dumps(("exit code", pid, seconds)))
        code: int | None = self._answer()
        return code

    def close(self) -> None:
        self._socket.close()
        self._process.wait(10)

    def _answer(self) -> Any:
        answer = self._socket.recv(1000)
        if not answer:
            raise RuntimeError(f"the fork server ended with {self._process.wait(10)}")
        return pickle.loads(answer)


@contextlib.contextmanager
def fork_server() -> Iterator[ForkServer]:
    """A fork server, for as long as the context lasts."""
    server = ForkServer()
    try:
        yield server
    finally:
        server.close()


# -- in a worker -----------------------------------------------------------------------------------------------------

_orders: list[Connection] = []


def take_orders_from(pipe: Connection) -> None:
    """From now on this process is a worker."""
    _orders.append(pipe)


def stop_taking_orders() -> None:
    """In a child of a worker: leave the worker's end of the pipe to the worker."""
    _orders.pop().close()


def everywhere(results: list[Any]) -> Any:
    """The result that all ranks must have."""
    assert all(result == results[0] for result in results), results
    return results[0]


def say(word: Any) -> None:
    """Within a call: something for the test to wait for."""
    _orders[0].send_bytes(pickle.dumps(("word", word)))
