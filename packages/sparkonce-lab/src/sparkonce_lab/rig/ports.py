"""Free ports on the loopback interface for servers that keep them when they are started again."""

from __future__ import annotations

import secrets
import socket
import time

from sparkonce.errors import PreflightError

HOST = "127.0.0.1"

# Below the ports that systems give to outgoing connections: a client that tries to reach a stopped server could be
# given the server's own port, connect to itself, and keep the server from coming back.
_PORTS = range(20_000, 32_000)
_FOUND_WITHIN_S = 10.0


def is_free(port: int) -> bool:
    """Tells whether a server can listen on this loopback port now."""
    with socket.socket() as candidate:
        candidate.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers' own sockets do
        try:
            candidate.bind((HOST, port))
        except OSError:
            return False
    return True


def free_port() -> int:
    """Finds a port that nobody listens on now."""
    return free_ports(1)[0]


def free_ports(count: int) -> list[int]:
    """Finds so many different ports on which nothing listens now.

    Raises:
        PreflightError: if there are not so many.
    """
    found: set[int] = set()
    give_up_at = time.monotonic() + _FOUND_WITHIN_S
    while len(found) < count:
        port = secrets.choice(_PORTS)
        if is_free(port):
            found.add(port)
        elif time.monotonic() > give_up_at:
            raise PreflightError(
                f"There are no {count} free ports from {_PORTS.start} to {_PORTS.stop}.",
                next_step="End what listens there.",
            )
    return list(found)
