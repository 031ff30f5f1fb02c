"""What happens to unresponsive connections, and to the thread that works on them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from kafka.errors import KafkaTimeoutError
from kafka.net.manager import KafkaConnectionManager
from kafka.net.selector import NetworkSelector
from kafka.protocol.metadata import MetadataRequest

from sparkonce.sinks.kafka import connection as connection_module
from sparkonce.sinks.kafka.connection import KafkaConnection
from sparkonce.sinks.kafka.outcomes import BrokerAnswer


class Future:
    def __init__(self, value: object) -> None:
        self.value, self.exception = value, None

    def add_both(self, call: Callable[[object], object]) -> None:
        call(self)


class Library:
    """Stands in for kafka-python, with brokers that answer with their number.

    Attributes:
        silent: The brokers that do not answer.
        done: The calls to its two objects, in order.
        ends: True if the network thread ends when requested.
    """

    def __init__(self) -> None:
        self.silent: set[int] = set()
        self.done: list[str] = []
        self.ends = True
        self._stop = threading.Event()
        self._io_thread = threading.Thread(target=self._stop.wait, daemon=True)
        self._conns: dict[object, Any] = {}
        self._auth_failures: dict[object, Any] = {}

    def start(self) -> None:
        self.done.append("start")
        self._io_thread = threading.Thread(target=self._stop.wait, daemon=True)
        self._io_thread.start()

    def stop(self, timeout_ms: float) -> None:
        self.done.append("stop")
        if self.ends:
            self.end()

    def end(self) -> None:
        self._stop.set()
        self._io_thread.join(30.0)
        self._stop.clear()

    def close(self) -> None:
        self.done.append("close")

    def call_soon(self, ask: Callable[..., Coroutine[Any, Any, Any]], *given: object) -> Future:
        try:
            ask(*given).send(None)
        except StopIteration as ended:
            return Future(ended.value)
        raise AssertionError("nothing here is waited for")

    def call_soon_with_future(self, make: Callable[[], Any]) -> Future:
        return Future(make())

    def get_connection(self, node: int, *, refresh_metadata_on_err: bool) -> Any:
        def close(_: object) -> None:
            self.done.append(f"close {node}")

        return SimpleNamespace(node_id=node, send_request=lambda *_, **__: node, close=close)

    async def wait_for(self, node: int, timeout_ms: float) -> int:
        if node in self.silent:
            raise KafkaTimeoutError("no answer")
        return node


@pytest.fixture
def library(monkeypatch) -> Iterator[Library]:
    made = Library()

    async def bootstrap(*_: object) -> None:
        pass

    monkeypatch.setattr(connection_module, "NetworkSelector", lambda **_: made)
    monkeypatch.setattr(connection_module, "KafkaConnectionManager", lambda *_, **__: made)
    monkeypatch.setattr(KafkaConnection, "_bootstrap", bootstrap)
    yield made
    made.end()


def ask(connection: KafkaConnection, *nodes: int) -> list[int | None]:
    requests = [(SimpleNamespace(API_VERSION=1), node) for node in nodes]
    deadline_s = time.monotonic() + 3600.0
    replies = connection.call(lambda: connection.gather(requests, deadline_s), deadline_s)
    return [None if isinstance(one, BrokerAnswer) else one for one in replies]


def test_one_that_is_silent_loses_its_own_connection_alone(library):
    connection = KafkaConnection({})
    assert ask(connection, 1, 2) == [1, 2]
    library.silent = {2}
    assert ask(connection, 1, 2) == [1, None]
    assert ask(connection, 1) == [1]
    assert library.done == ["start", "close 2"]


def test_where_nobody_answers_all_begins_afresh(library):
    connection = KafkaConnection({})
    library.silent = {1, 2}
    assert ask(connection, 1, 2) == [None, None]
    library.silent = set()
    assert ask(connection, 1, 2) == [1, 2]
    assert library.done == ["start", "close 1", "close 2", "stop", "close", "close", "start"]


def test_connections_are_not_closed_beside_a_thread_that_works_on_them(library, caplog):
    """The thread may be waiting for a DNS server, which cannot be interrupted."""
    connection = KafkaConnection({})
    assert ask(connection, 1) == [1]
    library.ends = False
    connection.close()
    assert library.done == ["start", "stop"]
    assert "network thread does not end" in caplog.text
    library.end()


def test_what_is_used_of_kafka_python_beside_its_api_is_there():
    """A minor version may remove these internals. The allowed versions are in pyproject.toml."""
    net = NetworkSelector(bootstrap_servers="localhost:1")
    manager = KafkaConnectionManager(net, bootstrap_servers="localhost:1", proxy_url="sparkonce://direct")
    net.start()
    try:
        assert net._io_thread.is_alive()
        assert (manager._conns, manager._auth_failures) == ({}, {})
        assert callable(manager.cluster.add_coordinator)
        assert callable(manager.cluster.update_metadata)
        assert [(one.host, one.port) for one in manager.cluster.bootstrap_brokers()] == [("localhost", 1)]
        assert MetadataRequest(topics=[]).API_VERSION is None, "it is given one just before it is written"
    finally:
        net.stop(timeout_ms=10_000)
        manager.close()
        net.close()
