"""Which processes share a host, and a socket between each two of them that exchange messages."""

import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, Final

_SECONDS: Final = 60


def host_identity() -> str:
    """Equal in two processes that can reach each other by a path and pass file descriptors; "" if none can here."""
    if sys.platform != "linux":
        return ""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot} {Path('/proc/self/ns/mnt').readlink()} {os.getuid()}"


def connect(rank: int, peers: Collection[int], gather: Callable[[Any], list[Any]]) -> dict[int, socket.socket]:
    """A connected socket to each of `peers`. Every process must call it at the same time.

    Args:
        rank: of this process.
        peers: ranks of processes on this host that name this one among their peers as well.
        gather: exchanges a value between all processes.

    Raises:
        TimeoutError: a peer did not connect.
    """
    folder = Path(tempfile.mkdtemp(prefix="headrace-"))
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(str(folder / "socket"))
            listener.listen(len(peers) + 1)
            listener.settimeout(_SECONDS)
            addresses = gather(str(folder / "socket"))
            found = {}
            for peer in peers:
                if peer < rank:
                    found[peer] = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                    found[peer].settimeout(_SECONDS)
                    found[peer].connect(addresses[peer])
                    found[peer].send(str(rank).encode())
            while len(found) < len(peers):
                connection, _ = listener.accept()
                connection.settimeout(_SECONDS)
                found[int(connection.recv(32))] = connection
            return found
    finally:
        shutil.rmtree(folder, ignore_errors=True)
