"""Tests the rig's RabbitMQ: other tests rely on its storage, and on its leaving nothing behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from eventually import eventually
from sparkonce.errors import PreflightError
from sparkonce_lab.rig.process import is_running
from sparkonce_lab.rig.servers.rabbitmq import RabbitServer

pytestmark = [
    pytest.mark.skipif(not RabbitServer.is_installed(), reason="rabbitmq-server is not installed"),
    pytest.mark.slow,
]


def ours(folder: Path) -> list[int]:
    """Lists the processes that have a folder in their command line, the server's and its epmd's."""
    pids = [int(one.name) for one in Path("/proc").iterdir() if one.name.isdigit() and int(one.name) != os.getpid()]
    return [pid for pid in pids if is_running(pid, str(folder))]


def test_two_at_once_know_nothing_of_each_other_and_leave_nothing(tmp_path):
    with RabbitServer(tmp_path / "one", users={"ada": "secret"}) as one:
        with RabbitServer(tmp_path / "two") as two:
            one.control("authenticate_user", "ada", "secret")
            with pytest.raises(PreflightError, match="authenticate_user"):
                two.control("authenticate_user", "ada", "secret")
            assert two.node not in one.control("cluster_status")
        assert one.is_up()
        assert one.stop()
    assert ours(tmp_path) == []


def test_a_killed_parent_leaves_no_server_and_no_epmd(tmp_path):
    program = (
        "import os, signal, sys; from pathlib import Path\n"
        "from sparkonce_lab.rig.servers.rabbitmq import RabbitServer\n"
        "RabbitServer(Path(sys.argv[1])).start(); os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path / "data")], check=False, timeout=120)
    assert done.returncode == -9
    eventually(lambda: not ours(tmp_path / "data"), "its processes end")
