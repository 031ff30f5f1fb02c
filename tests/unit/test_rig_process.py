import os
import signal
import socket
import sys
from pathlib import Path

import pytest

from eventually import eventually
from sparkonce.errors import PreflightError
from sparkonce_lab.rig import process as process_module
from sparkonce_lab.rig.process import HOST, ServerProcess, free_port, free_ports, freeze, is_running, last_lines
from sparkonce_lab.rig.servers.rabbitmq import RabbitServer

SLEEP = "import sys, time; print('up', flush=True); time.sleep(600)"


@pytest.fixture
def start(tmp_path):
    started = []

    def run(program=SLEEP, dies_with_parent=False):
        mark, log = str(tmp_path / f"mark-{len(started)}"), tmp_path / f"log-{len(started)}"
        command = [sys.executable, "-c", program, mark]
        process = ServerProcess(command, mark=mark, log=log, dies_with_parent=dies_with_parent)
        started.append(process)
        eventually(lambda: "up" in last_lines(log, 1), "it is up")
        return process

    yield run
    for process in started:
        process.kill()


def test_signals_reach_a_process_that_is_paused_and_none_that_has_ended(start):
    process = start(dies_with_parent=True)
    process.signal(signal.SIGSTOP)
    process.kill()
    assert process.exit_code == -signal.SIGKILL

    process = start()
    process.kill()
    process.signal(signal.SIGTERM)
    assert process.wait(1)

    assert not start().wait(0.05)


BUSY = """
import threading, sys
def count(n):
    while True:
        n[0] += 1
for _ in range(8):
    threading.Thread(target=count, args=([0],), daemon=True).start()
print('up', flush=True)
threading.Event().wait(600)
"""


def test_nothing_of_a_frozen_process_runs(start):
    process = start(BUSY)
    for _ in range(50):
        freeze(lambda: [process.pid])
        states = {
            path.read_text().rpartition(")")[2].split()[0] for path in Path(f"/proc/{process.pid}/task").glob("*/stat")
        }
        assert states == {"T"}
        os.kill(process.pid, signal.SIGCONT)


def test_what_does_not_stop_is_named(start, monkeypatch):
    process = start()
    monkeypatch.setattr("sparkonce_lab.rig.process.os.kill", lambda *_: None)
    with pytest.raises(TimeoutError, match=str(process.pid)):
        freeze(lambda: [process.pid], 0.01)
    monkeypatch.undo()


def test_ports_are_different_and_below_those_of_outgoing_connections(tmp_path):
    found = free_ports(50)
    assert len(set(found)) == 50
    assert max(found) < 32_000

    server = RabbitServer(tmp_path)
    own = {value for name, value in vars(server).items() if name == "port" or name.endswith("_port")}
    assert len(own) == 6
    assert max(own) < 32_000


def test_a_port_that_is_taken_is_never_given(monkeypatch):
    monkeypatch.setattr(process_module, "_FOUND_WITHIN_S", 0.0)
    with socket.create_server((HOST, 0)) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setattr(process_module, "_PORTS", range(port, port + 1))
        with pytest.raises(PreflightError, match="no 1 free ports"):
            free_port()


def test_a_process_is_itself_only_with_its_mark(start):
    process = start()
    assert is_running(process.pid, process.mark)
    assert not is_running(process.pid, process.mark + "-other")
    process.kill()
    assert process.exit_code == -signal.SIGKILL
    assert not is_running(process.pid, process.mark)
