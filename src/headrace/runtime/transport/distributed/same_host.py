"""Which processes share a host, and a socket between each two of them that exchange messages."""

import hmac
import os
import secrets
import socket
import sys
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, Final

from headrace.runtime.transport.distributed.forks import not_for_children

_SECONDS: Final = 60
_HELLO: Final = 256


def host_identity() -> str:
    """Equal in two processes that can reach each other by a Unix socket and pass file descriptors; "" if none can."""
    if sys.platform != "linux":
        return ""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot} {Path('/proc/self/ns/net').readlink()} {os.getuid()}"


def connect(rank: int, peers: Collection[int], gather: Callable[[Any], list[Any]]) -> dict[int, socket.socket]:
    """A connected socket to each of `peers`. Every process must call it at the same time.

    The sockets' names are Linux's abstract ones, which no folder holds and which are gone with their processes.

    Args:
        rank: of this process.
        peers: ranks of processes on this host that name this one among their peers as well.
        gather: exchanges a value between all processes.

    Raises:
        TimeoutError: a peer did not connect.
    """
    with _socket() as listener:
        name, token = f"\0headrace-{secrets.token_hex(16)}", secrets.token_hex(16)
        listener.bind(name)
        listener.listen(len(peers) + 1)
        addresses = gather((name, token))
        found = {}
        for peer in peers:
            if peer < rank:
                found[peer] = _socket()
                found[peer].connect(addresses[peer][0])
                found[peer].send(f"{addresses[peer][1]} {rank}".encode())
        while len(found) < len(peers):
            connection, _ = listener.accept()
            connection.settimeout(_SECONDS)
            theirs, _, number = connection.recv(_HELLO).decode(errors="replace").partition(" ")
            if hmac.compare_digest(theirs.encode(), token.encode()):
                found[int(number)] = not_for_children(connection)
            else:
                connection.close()
        return found


def _socket() -> socket.socket:
    result = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    result.settimeout(_SECONDS)
    return not_for_children(result)
