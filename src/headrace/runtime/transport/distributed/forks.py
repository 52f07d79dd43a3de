"""Connections that children of this process must not keep open.

A DataLoader forks its workers. As long as one of them has a copy of a connection, the other end sees nothing of this
process's death.
"""

import os
import socket
import weakref

_connections: "weakref.WeakSet[socket.socket]" = weakref.WeakSet()


def not_for_children(connection: socket.socket) -> socket.socket:
    """`connection`, to be closed in every process that this one forks."""
    _connections.add(connection)
    return connection


def _close_all() -> None:
    for connection in list(_connections):
        connection.close()


os.register_at_fork(after_in_child=_close_all)
