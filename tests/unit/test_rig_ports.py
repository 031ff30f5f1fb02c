"""The ports of servers stay reserved while the servers are down, so that nobody else gets them."""

import socket
from pathlib import Path

import pytest

from sparkonce.errors import PreflightError
from sparkonce_lab.rig import process
from sparkonce_lab.rig.servers.rabbitmq import RabbitServer


def test_ports_are_different_and_below_those_of_outgoing_connections(tmp_path: Path) -> None:
    found = process.free_ports(50)
    assert len(set(found)) == 50
    assert max(found) < 32_000

    server = RabbitServer(tmp_path)
    own = {value for name, value in vars(server).items() if name == "port" or name.endswith("_port")}
    assert len(own) == 6
    assert max(own) < 32_000


def test_a_port_that_is_taken_is_never_given(monkeypatch):
    monkeypatch.setattr(process, "_FOUND_WITHIN_S", 0.0)
    with socket.create_server((process.HOST, 0)) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setattr(process, "_PORTS", range(port, port + 1))
        with pytest.raises(PreflightError, match="no 1 free ports"):
            process.free_port()
