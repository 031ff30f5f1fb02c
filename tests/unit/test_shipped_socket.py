"""A worker acknowledges received data, so that the JVM sends the rows without delay."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable
from contextlib import ExitStack
from typing import IO

import pytest

from sparkonce.spark.shipped import acknowledge_at_once

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="TCP_QUICKACK is Linux's")


def connected(stack: ExitStack) -> tuple[socket.socket, socket.socket]:
    listening = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
    sent = stack.enter_context(socket.create_connection(listening.getsockname()))
    return sent, stack.enter_context(listening.accept()[0])


def main(infile: IO[bytes], work: Callable[[], bool]) -> bool:
    """A stand-in with the name and parameter of the function in PySpark's worker that reads from the JVM."""
    return work()


def acknowledges(received: socket.socket) -> bool:
    return bool(received.getsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK))


def test_the_socket_of_pysparks_worker_acknowledges_at_once():
    with ExitStack() as stack:
        sent, received = connected(stack)
        received.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 0)
        before = acknowledges(received)
        infile = stack.enter_context(os.fdopen(os.dup(received.fileno()), "rb"))
        assert main(infile, acknowledge_at_once)
        assert (before, acknowledges(received)) == (False, True)
        sent.sendall(b"rows")  # the socket is still open, so that the worker can go on reading
        assert infile.read(4) == b"rows"


def test_the_socket_still_waits_for_rows_where_the_user_has_set_a_time_limit():
    with ExitStack() as stack:
        _, received = connected(stack)
        infile = stack.enter_context(os.fdopen(os.dup(received.fileno()), "rb"))
        stack.callback(socket.setdefaulttimeout, None)
        socket.setdefaulttimeout(30)
        main(infile, acknowledge_at_once)
        assert os.get_blocking(infile.fileno())


def test_a_socket_of_another_kind_stays_as_it_is():
    ours, theirs = socket.socketpair(socket.AF_UNIX)
    with ours, theirs, os.fdopen(os.dup(ours.fileno()), "rb") as infile:
        assert not main(infile, acknowledge_at_once)
        theirs.sendall(b"rows")
        assert infile.read(4) == b"rows"

    assert not acknowledge_at_once()
