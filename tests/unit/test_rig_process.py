import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sparkonce_lab.rig.process import ServerProcess, end_process, freeze, is_running, last_lines

SLEEP = "import sys, time; print('up', flush=True); time.sleep(600)"


def wait_until(holds):
    give_up_at = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < give_up_at
        time.sleep(0.02)


@pytest.fixture
def start(tmp_path):
    """Starts Python processes with a mark in their command line, and ends them after the test."""
    started = []

    def run(program=SLEEP, dies_with_parent=False):
        mark, log = str(tmp_path / f"mark-{len(started)}"), tmp_path / f"log-{len(started)}"
        command = [sys.executable, "-c", program, mark]
        process = ServerProcess(command, mark=mark, log=log, dies_with_parent=dies_with_parent)
        started.append(process)
        wait_until(lambda: "up" in last_lines(log, 1))
        return process

    yield run
    for process in started:
        process.kill()


def test_a_process_is_itself_only_with_its_mark(start):
    process = start()
    assert is_running(process.pid, process.mark)
    assert not is_running(process.pid, process.mark + "-other")
    process.kill()
    assert process.exit_code == -signal.SIGKILL
    assert not is_running(process.pid, process.mark)


def test_signals_reach_a_process_that_is_paused_and_none_that_has_ended(start) -> None:
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


def test_another_program_ends_it_by_its_number(start) -> None:
    def end_and_reap(process, timeout_s):
        """Ends it by its process id, as another program would. Its parent, which is this process, reaps it."""
        reaper = subprocess.Popen(
            [
                sys.executable,
                "-c",
                "import sys; from sparkonce_lab.rig.process import end_process;"
                "end_process(int(sys.argv[1]), sys.argv[2], float(sys.argv[3]))",
                *(str(process.pid), process.mark, str(timeout_s)),
            ]
        )
        assert process.wait(30)
        assert reaper.wait(30) == 0

    process = start()
    end_and_reap(process, 30)
    assert process.exit_code == -signal.SIGTERM

    ignore_sigterm = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + SLEEP
    process = start(ignore_sigterm)
    end_and_reap(process, 0.1)
    assert process.exit_code == -signal.SIGKILL

    process = start()
    end_process(process.pid, process.mark + "-other", 1)
    assert process.exit_code is None


def test_it_dies_with_a_parent_that_is_killed(tmp_path):
    mark = str(tmp_path / "mark")
    parent = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import os, pathlib, signal, sys\n"
            "from sparkonce_lab.rig.process import ServerProcess\n"
            f"command = [sys.executable, '-c', {SLEEP!r}, {mark!r}]\n"
            f"child = ServerProcess(command, mark={mark!r}, log=pathlib.Path({mark!r}), dies_with_parent=True)\n"
            "print(child.pid, flush=True)\n"
            "os.kill(os.getpid(), signal.SIGKILL)\n",
        ],
        stdout=subprocess.PIPE,
    )
    output, _ = parent.communicate(timeout=30)
    child = int(output)
    try:
        wait_until(lambda: not is_running(child, mark))
    finally:
        if is_running(child, mark):
            os.kill(child, signal.SIGKILL)


def test_the_last_lines_of_a_log(tmp_path):
    log = tmp_path / "log"
    assert last_lines(log, 2) == ""
    log.write_bytes(b"x" * 100_000 + b"\none\ntwo\xff\nthree\n")
    assert last_lines(log, 2) == "two�\nthree"
