"""A persistent thread per rank, with its share of the processor's cores.

Kernels of several ranks run at once, each with its own team of intra-op threads; teams as large as the machine would
fight for its cores. The size of the team belongs to a thread, so it is set once in each.
"""

import threading
from collections.abc import Callable
from queue import SimpleQueue

import torch

from headrace.runtime.process.shares import share_of_threads

Job = Callable[[], None]


class RankThread:
    """Runs jobs one after the other in a thread of its own; the thread ends with `close`."""

    def __init__(self, name: str, intra_op_threads: int) -> None:
        self._jobs: SimpleQueue[tuple[Job, Job] | None] = SimpleQueue()
        ready: SimpleQueue[None] = SimpleQueue()
        self._thread = threading.Thread(
            target=_work, args=(self._jobs, ready, intra_op_threads), name=name, daemon=True
        )
        self._thread.start()
        ready.get()

    def do(self, job: Job, finished: Job) -> None:
        """Have the thread run `job`, then `finished` when it keeps nothing of the job any more; neither may raise."""
        self._jobs.put((job, finished))

    def is_current(self) -> bool:
        """Whether this is called in that thread."""
        return threading.current_thread() is self._thread

    def close(self) -> None:
        """End the thread after the jobs that it has."""
        self._jobs.put(None)
        if not self.is_current():
            self._thread.join(timeout=5)


def _work(jobs: "SimpleQueue[tuple[Job, Job] | None]", ready: "SimpleQueue[None]", intra_op_threads: int) -> None:
    # torch gives a thread the process's number when it is first asked or used; only afterwards does ours stay
    torch.get_num_threads()
    torch.set_num_threads(intra_op_threads)
    ready.put(None)
    while (both := jobs.get()) is not None:
        job, finished = both
        job()
        # or the last step's tensors, or those that a failure's traceback holds, would live on in this thread
        del job, both
        finished()
        del finished


def start_threads(names: list[str]) -> list[RankThread]:
    """One thread per name, sharing out as many cores as this thread may use."""
    mine = torch.get_num_threads()
    share = share_of_threads(len(names))
    threads = [RankThread(name, share) for name in names]
    # set_num_threads in a thread also changes what threads made later start with; put that back
    torch.set_num_threads(mine)
    return threads
