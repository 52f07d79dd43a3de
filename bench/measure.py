"""Fair timing: all contestants alive at once, measured in turn (A B A B …), medians with spreads.

    orchestrator ──pipe──▶ worker processes of contestant A   ┐ started once, asked for many cases;
                 ──pipe──▶ worker processes of contestant B   ┘ whoever is not asked sleeps

A round is one step that is not counted, so that all ranks are awake and together, and then a few that are. A step's
time goes from the end of the step before it (on its last rank) to its own end (on its last rank): back to back, as in
training. Processor time is user + system of all processes of the contestant during the counted steps.
"""

import argparse
import faulthandler
import multiprocessing
import os
import platform
import signal
import socket
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from cases import Case
from contestants import CONTESTANTS, Contestant

LIMIT = 120  # seconds that a worker may take for one order


@dataclass
class Samples:
    """What was measured of one contestant on one case.

    Attributes:
        seconds: wall-clock time of each counted step.
        cpu: processor seconds per step, one number for each round.
        loss: of the last step.
    """

    seconds: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    loss: float | None = None


class World(AbstractContextManager["World"]):
    """The worker processes of one contestant."""

    def __init__(self, contestant: Contestant, ranks: int) -> None:
        self.contestant = contestant
        processes = ranks if contestant.distributed else 1
        context = multiprocessing.get_context("spawn")
        port = _free_port()
        self._pipes: list[Connection] = []
        self._processes: list[Any] = []
        for rank in range(processes):
            here, there = context.Pipe()
            environment = {name: str(contestant.threads) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
            if contestant.distributed:
                environment |= {
                    "RANK": str(rank),
                    "LOCAL_RANK": str(rank),
                    "WORLD_SIZE": str(processes),
                    "LOCAL_WORLD_SIZE": str(processes),
                    "MASTER_ADDR": "127.0.0.1",
                    "MASTER_PORT": str(port),
                }
            process = context.Process(target=_work, args=(contestant, rank, processes, there), daemon=True)
            with _environment(environment):
                process.start()
            there.close()
            self._pipes.append(here)
            self._processes.append(process)

    def ask(self, order: str, *arguments: Any) -> list[Any]:
        """Give all workers an order; what each of them answers.

        Raises:
            RuntimeError: a worker failed, ended, or took too long.
        """
        for pipe in self._pipes:
            pipe.send((order, arguments))
        answers = []
        for rank, pipe in enumerate(self._pipes):
            if not pipe.poll(LIMIT):
                self._show_stacks()
                raise RuntimeError(f"{self.contestant.title}: process {rank} did not answer within {LIMIT} s")
            try:
                good, answer = pipe.recv()
            except EOFError:
                raise RuntimeError(f"{self.contestant.title}: process {rank} ended") from None
            if not good:
                raise RuntimeError(f"{self.contestant.title}: process {rank} failed\n{answer}")
            answers.append(answer)
        return answers

    def run(self, steps: int, into: Samples) -> None:
        """One round of `steps` counted steps."""
        answers = self.ask("run", steps)
        ends = [max(moments) for moments in zip(*(answer["ends"] for answer in answers), strict=True)]
        into.seconds += [after - before for before, after in pairwise(ends)]
        into.cpu.append(sum(answer["cpu"] for answer in answers) / steps)
        losses = [answer["loss"] for answer in answers if answer["loss"] is not None]
        into.loss = losses[-1]

    def _show_stacks(self) -> None:
        for process in self._processes:
            if process.is_alive():
                os.kill(process.pid, signal.SIGUSR1)
        time.sleep(1)

    def __exit__(self, *_: object) -> None:
        for pipe in self._pipes:
            try:
                pipe.send(("quit", ()))
            except OSError:
                continue
        for process in self._processes:
            process.join(10)
            if process.is_alive():
                process.kill()


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """These environment variables for a while, for what is started meanwhile."""
    before = dict(os.environ)
    os.environ.update(values)
    try:
        yield
    finally:
        for name in values:
            if name in before:
                os.environ[name] = before[name]
            else:
                del os.environ[name]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _work(contestant: Contestant, rank: int, processes: int, pipe: Connection) -> None:
    """A worker's life: it prepares cases and runs steps until it is told to quit."""
    faulthandler.register(signal.SIGUSR1)
    torch.set_num_threads(contestant.threads)
    worker = _Worker(contestant, rank, processes)
    while True:
        order, arguments = pipe.recv()
        if order == "quit":
            worker.close()
            return
        try:
            pipe.send((True, getattr(worker, order)(*arguments)))
        except BaseException:
            pipe.send((False, traceback.format_exc()))
            raise


class _Worker:
    def __init__(self, contestant: Contestant, rank: int, processes: int) -> None:
        self._contestant, self._rank, self._processes = contestant, rank, processes
        self._step: Callable[[], float | None] | None = None

    def prepare(self, case: Case, warm_up: int) -> None:
        """Build the case and run it a few times."""
        self.close()
        self._step = self._contestant.prepare(case, self._rank, self._processes)
        for _ in range(warm_up):
            self._step()

    def run(self, steps: int) -> dict[str, Any]:
        """A round: one step uncounted, then `steps` counted ones."""
        step = self._step
        if step is None:
            raise RuntimeError("nothing was prepared")
        loss = step()
        ends = [time.perf_counter()]  # on Linux the same clock in all processes
        before = time.process_time()
        for _ in range(steps):
            loss = step()
            ends.append(time.perf_counter())
        return {"ends": ends, "cpu": time.process_time() - before, "loss": loss}

    def memory(self, case: Case) -> Any:
        """Peak bytes of live tensors; see `live_bytes`."""
        from live_bytes import peaks_of

        self.close()
        return peaks_of(self._contestant, case, self._rank, self._processes)

    def close(self) -> None:
        """Let go of what was prepared."""
        close = getattr(self._step, "close", None)
        self._step = None
        if close is not None:
            close()


def compare(
    worlds: Mapping[str, World], case: Case, *, rounds: int, steps: int, warm_up: int = 2, same_loss: bool = True
) -> dict[str, Samples]:
    """Measure all contestants on `case` in interleaved rounds.

    Raises:
        RuntimeError: a worker failed, or the contestants' losses differ: they did not do the same work.
    """
    samples = {name: Samples() for name in worlds}
    for world in worlds.values():
        world.ask("prepare", case, warm_up)
    for _ in range(rounds):
        for name, world in worlds.items():
            world.run(steps, samples[name])
    losses = {name: s.loss for name, s in samples.items() if s.loss is not None}
    if same_loss and losses and max(losses.values()) - min(losses.values()) > 1e-4:
        raise RuntimeError(f"the contestants computed different losses: {losses}")
    return samples


@contextmanager
def worlds_of(names: Iterable[str], ranks: int) -> Iterator[dict[str, World]]:
    """The workers of the contestants called `names`, ended afterwards."""
    with ExitStack() as stack:
        yield {name: stack.enter_context(World(CONTESTANTS[name], ranks)) for name in names}


def spread(values: Sequence[float], scale: float = 1, digits: int = 2) -> str:
    """`median (lower quartile–upper quartile)`."""
    if len(values) == 1:
        return f"{values[0] * scale:.{digits}f}"
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return f"{middle * scale:.{digits}f} ({low * scale:.{digits}f}–{high * scale:.{digits}f})"


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; the first column to the left, the others to the right."""
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def machine() -> str:
    """One line that says where this was measured."""
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [line.split(":", 1)[1].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line]
        model = names[0] if names else model
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    load = os.getloadavg()[0]
    return (
        f"{cores} cores of {model}, {platform.system()} {platform.release()}, Python {platform.python_version()}, "
        f"torch {torch.__version__}; load average at the start {load:.1f}"
    )


def arguments(description: str, contestants: Sequence[str], **extra: dict[str, Any]) -> argparse.Namespace:
    """The options that all scripts share: `--quick`, `--only`, `--rounds`, `--steps`."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="fewer points and fewer steps")
    parser.add_argument("--only", nargs="+", choices=list(CONTESTANTS), default=list(contestants), metavar="NAME",
                        help=f"contestants out of {', '.join(CONTESTANTS)}")  # fmt: skip
    parser.add_argument("--rounds", type=int, help="rounds A B A B")
    parser.add_argument("--steps", type=int, help="counted steps in a round")
    for name, options in extra.items():
        parser.add_argument(f"--{name.replace('_', '-')}", **options)
    return parser.parse_args()


def opening(title: str) -> None:
    """Print what is measured, where and with which command."""
    command = " ".join(["python", f"bench/{Path(sys.argv[0]).name}", *sys.argv[1:]])
    print(f"### {title}\n\n`{command}` on {machine()}\n", flush=True)
