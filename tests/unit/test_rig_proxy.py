from __future__ import annotations

import gc
import queue
import re
import socket
import struct
import threading
import warnings
from collections.abc import Iterator

import pytest

from eventually import LIMIT_S
from sparkonce_lab.rig.proxy import HOST, FaultProxy, RequestFault, Trap


class Echo:
    def __init__(self) -> None:
        self.lines: list[bytes] = []
        self.clients: list[socket.socket] = []
        self.gone: queue.Queue[socket.socket] = queue.Queue()
        self.changed = threading.Condition()
        self.listener = socket.create_server((HOST, 0))
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def place(self) -> tuple[str, int]:
        return (HOST, self.listener.getsockname()[1])

    def wait_for(self, *lines: bytes) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: self.lines == list(lines), LIMIT_S), self.lines

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            self.clients.append(client)
            threading.Thread(target=self._serve, args=[client], daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, client.makefile("rb") as lines:
            try:
                for line in lines:
                    with self.changed:
                        self.lines.append(line)
                        self.changed.notify_all()
                    client.sendall(line)
            except OSError:
                pass
        self.gone.put(client)


@pytest.fixture
def server() -> Iterator[Echo]:
    echo = Echo()
    yield echo
    echo.listener.shutdown(socket.SHUT_RDWR)
    echo.listener.close()


@pytest.fixture
def proxy(server) -> Iterator[FaultProxy]:
    with FaultProxy(server.place, {"commit": b"COMMIT", "prepare": re.compile(rb"PRE(PARE)?")}) as proxy:
        yield proxy


@pytest.fixture
def client(proxy) -> Iterator[socket.socket]:
    with socket.create_connection((HOST, proxy.port), LIMIT_S) as client:
        yield client


def ask(client: socket.socket, line: bytes) -> bytes:
    client.sendall(line)
    return client.recv(100)


def is_cut(client: socket.socket) -> bool:
    try:
        return client.recv(100) == b""
    except ConnectionResetError:
        return True


def test_cut_resets_connections_and_lets_new_ones_through(proxy, client):
    ask(client, b"hello\n")
    proxy.cut()
    with pytest.raises(ConnectionResetError):
        client.recv(100)
    with socket.create_connection((HOST, proxy.port), LIMIT_S) as again:
        assert ask(again, b"hello\n") == b"hello\n"


def test_a_server_does_not_hear_that_its_client_is_gone(proxy, server, client):
    ask(client, b"before\n")
    proxy.swallow(replies=False)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()
    (other,) = server.clients
    for _ in range(3):  # the first write detects that the client is gone
        other.sendall(b"still there?\n")
        with pytest.raises(queue.Empty):
            server.gone.get(timeout=0.1)
    proxy.heal()
    assert server.gone.get(timeout=LIMIT_S) is other


def test_replies_alone_are_swallowed(proxy, server, client):
    ask(client, b"before\n")
    proxy.swallow(requests=False)
    client.sendall(b"COMMIT\n")
    server.wait_for(b"before\n", b"COMMIT\n")
    server.clients[0].shutdown(socket.SHUT_RDWR)
    client.settimeout(0.2)
    with pytest.raises(TimeoutError):
        client.recv(100)
    client.settimeout(LIMIT_S)
    proxy.heal()
    assert is_cut(client)


def test_half_of_a_request_arrives(proxy, server, client):
    trap = proxy.trap("commit", RequestFault.HALVED)
    ask(client, b"before\n")
    client.sendall(b"COMMIT 1\n")
    assert is_cut(client)
    assert trap.sprung.wait(LIMIT_S)
    assert b"COMMIT 1\n" not in server.lines


def held(proxy: FaultProxy, client: socket.socket, line: bytes = b"COMMIT 1\n") -> Trap:
    trap = proxy.trap("commit", RequestFault.HELD)
    ask(client, b"before\n")
    client.sendall(line)
    assert trap.sprung.wait(LIMIT_S)
    return trap


def test_last_words_of_a_server_are_no_answer(proxy, server, client):
    trap = held(proxy, client)
    server.clients[0].sendall(b"too late\n")
    server.clients[0].shutdown(socket.SHUT_RDWR)
    assert trap.deliver() == b""
    assert server.lines == [b"before\n"]


def test_no_answer_is_not_taken_for_an_end(proxy, client, monkeypatch):
    monkeypatch.setattr("sparkonce_lab.rig.proxy._REPLY_WITHIN_S", 0.2)
    trap = held(proxy, client, b"COMMIT without its end")
    with pytest.raises(TimeoutError, match="not answered"):
        trap.deliver()


def test_a_request_is_stalled_until_its_client_is_gone(proxy, server, client):
    trap = proxy.trap("prepare", RequestFault.STALLED)
    client.sendall(b"PREPARE 1\n")
    assert trap.sprung.wait(LIMIT_S)
    client.settimeout(0.1)
    with pytest.raises(TimeoutError):
        client.recv(100)
    client.close()
    assert trap.deliver()
    server.wait_for(b"PREPARE 1\n")


def test_a_request_that_comes_in_pieces_is_seen_once(proxy, client):
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    assert ask(client, b"1\nCOM") == b"1\n"
    assert ask(client, b"MIT\n") == b"COMMIT\n"
    assert ask(client, b"2\n") == b"2\n"
    assert proxy.seen == {"commit": 1}


def test_it_passes_on_what_it_is_given(proxy, client):
    with pytest.raises(KeyError):
        proxy.trap("abort", RequestFault.HELD)

    assert ask(client, b"COMMIT 1\n") == b"COMMIT 1\n"
    assert ask(client, b"PREPARE 1\n") == b"PREPARE 1\n"
    assert proxy.seen == {"commit": 1, "prepare": 1}

    client.shutdown(socket.SHUT_WR)
    assert client.recv(100) == b""


def test_clients_that_connect_while_it_ends_leave_no_socket_open(server):
    for _ in range(5):
        proxy, clients = FaultProxy(server.place), []
        with proxy:
            for _ in range(50):
                clients.append(socket.socket())
                clients[-1].setblocking(False)
                clients[-1].connect_ex((HOST, proxy.port))
        for client in clients:
            client.close()
        del proxy
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            gc.collect()
        assert [str(one.message) for one in found] == []
