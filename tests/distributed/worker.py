"""The process that forks workers, and what a worker does."""

import contextlib
import faulthandler
import gc
import os
import pickle
import select
import signal
import socket
import sys
import time
import traceback
import warnings
from multiprocessing.connection import Connection
from pathlib import Path

import torch
import torch._dynamo
import torch.distributed as dist
import torch.utils.checkpoint

import distributed.work  # noqa: F401 - so that workers need not import it
from distributed.crew import Outcome, take_orders_from


def _serve(requests: socket.socket) -> None:
    torch.set_num_threads(1)
    assert len(list(Path("/proc/self/task").iterdir())) == 1, "only the forking thread lives on in a worker"
    gc.collect()
    gc.freeze()  # what is common to all workers, none of them goes through again
    warnings.simplefilter("error")  # as pytest is told to
    warnings.filterwarnings("ignore", category=DeprecationWarning, module="torch.*")
    while True:
        message, descriptors, _, _ = socket.recv_fds(requests, 10_000, 2)
        if not message:
            os._exit(0)
        what, *details = pickle.loads(message)
        if what == "fork":
            pid = os.fork()
            if pid == 0:
                requests.close()
                os.dup2(descriptors[1], 2)
                os.close(descriptors[1])
                os.environ.update(details[0])
                return _work(Connection(descriptors[0]))
            for descriptor in descriptors:
                os.close(descriptor)
            requests.send(pickle.dumps(pid))
        else:
            requests.send(pickle.dumps(_exit_code(*details)))


def _exit_code(pid: int, seconds: float) -> int | None:
    ended = os.pidfd_open(pid)
    try:
        if not select.select([ended], [], [], seconds)[0]:
            return None
    finally:
        os.close(ended)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _work(orders: Connection) -> None:
    take_orders_from(orders)
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", store=dist.FileStore(os.environ["STORE"], size), rank=rank, world_size=size)
    with contextlib.suppress(EOFError):
        while (order := pickle.loads(orders.recv_bytes())) is not None:
            module, name, arguments = order
            start = time.monotonic()
            try:
                __import__(module)
                result = getattr(sys.modules[module], name)(*arguments)
                outcome = pickle.dumps(("outcome", Outcome(result, seconds=time.monotonic() - start)))
                del result
            except Exception as error:
                outcome = _raised(error, time.monotonic() - start)
            except KeyboardInterrupt as error:
                outcome = _raised(error, time.monotonic() - start)
            gc.collect()  # pipelines that only a traceback in a cycle holds
            orders.send_bytes(outcome)


def _raised(error: BaseException, seconds: float) -> bytes:
    text = "".join(traceback.format_exception(error))
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        error = RuntimeError(f"{type(error).__name__}: {error}")
    return pickle.dumps(("outcome", Outcome(error=error, text=text, seconds=seconds)))


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))
