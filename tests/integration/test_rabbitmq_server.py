"""Tests of the rig's RabbitMQ: other tests trust what it keeps, and that nothing of it is left."""

from __future__ import annotations

import os
import socket
import ssl
import subprocess
import sys
import time
from pathlib import Path

import pika
import pytest
from pika.exceptions import ChannelClosedByBroker

from secured import make_keys
from sparkonce.errors import PreflightError
from sparkonce.rig.process import is_running
from sparkonce.rig.servers.process import HOST
from sparkonce.rig.servers.rabbitmq import RabbitServer

pytestmark = [
    pytest.mark.skipif(not RabbitServer.is_installed(), reason="rabbitmq-server is not installed"),
    pytest.mark.drawn(1, "rabbitmq servers"),
]

GONE_WITHIN_S = 30


def ours(folder: Path) -> list[int]:
    """Lists the processes that have a folder in their command line, the server's and its epmd's."""
    pids = [int(one.name) for one in Path("/proc").iterdir() if one.name.isdigit() and int(one.name) != os.getpid()]
    return [pid for pid in pids if is_running(pid, str(folder))]


def await_none(folder: Path) -> None:
    give_up_at = time.monotonic() + GONE_WITHIN_S
    while left := ours(folder):
        assert time.monotonic() < give_up_at, f"the processes {left} are left"
        time.sleep(0.05)


def await_queue(connection: pika.BlockingConnection, name: str) -> str:
    """Asks for a queue until it is there: a node that is up may still be looking for the leader of a stream."""
    give_up_at = time.monotonic() + 60
    while True:
        try:
            return connection.channel().queue_declare(name, passive=True).method.queue
        except ChannelClosedByBroker as error:  # noqa: PERF203 - each try is a question
            if "down or inaccessible" not in error.reply_text or time.monotonic() >= give_up_at:
                raise
            time.sleep(0.1)


def test_what_it_was_told_survives_a_kill_and_nothing_is_left_when_it_ends(tmp_path: Path) -> None:
    with RabbitServer(tmp_path / "data") as server:
        connection = pika.BlockingConnection(pika.URLParameters(server.url))
        channel = connection.channel()
        channel.queue_declare("kept", durable=True, arguments={"x-queue-type": "stream"})
        channel.confirm_delivery()
        channel.basic_publish("", "kept", b"1")
        connection.close()
        server.settle()
        server.restart()
        after = pika.BlockingConnection(pika.URLParameters(server.url))
        assert await_queue(after, "kept") == "kept"
        after.close()
        assert server.stop()
        assert ours(server.folder) == []


def test_two_at_once_know_nothing_of_each_other(tmp_path: Path) -> None:
    users = {"ada": "secret"}
    with RabbitServer(tmp_path / "one" / "data", users=users, permissions=[("ada", "/", "", "", "")]) as one:
        with RabbitServer(tmp_path / "two" / "data") as two:
            login = pika.PlainCredentials("ada", "secret")
            pika.BlockingConnection(pika.ConnectionParameters(HOST, one.port, credentials=login)).close()
            with pytest.raises(PreflightError, match="authenticate_user"):
                two.control("authenticate_user", "ada", "secret")
            assert two.node not in one.control("cluster_status")
        assert one.is_up()


def test_tls_at_both_ports(tmp_path: Path) -> None:
    keys = make_keys(tmp_path)
    tls = (keys / "ca.pem", keys / "broker.pem", keys / "broker.key")
    with RabbitServer(tmp_path / "data", tls=tls) as server:
        context = ssl.create_default_context(cafile=keys / "ca.pem")
        for port in (server.tls_port, server.stream_tls_port):
            plain = socket.create_connection((HOST, port), timeout=10)
            with plain, context.wrap_socket(plain, server_hostname=HOST) as secure:
                assert secure.version() is not None


def test_a_killed_parent_leaves_no_server_and_no_epmd(tmp_path: Path) -> None:
    program = (
        "import os, signal, sys; from pathlib import Path; from sparkonce.rig.servers.rabbitmq import RabbitServer\n"
        "RabbitServer(Path(sys.argv[1])).start(); os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path / "data")], check=False, timeout=120)
    assert done.returncode == -9
    await_none(tmp_path / "data")
