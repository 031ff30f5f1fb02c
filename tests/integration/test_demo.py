from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from eventually import LIMIT_S, eventually
from sparkonce_lab.demo.result import CrashPoint
from startup import jvm_flags

pytestmark = [pytest.mark.kafka, pytest.mark.spark]


@pytest.fixture
def start(tmp_path):
    """Starts the command. What still runs at the end of the test is killed, and its watchdogs end the rest."""
    # A shell without job control starts background processes, such as these tests, with SIGINT ignored.
    main = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
from sparkonce.cli.main import app
app()
"""
    # Archived classes halve the time in which its four drivers start.
    env = {**os.environ, "TMPDIR": str(tmp_path), "JDK_JAVA_OPTIONS": jvm_flags()}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with ExitStack() as stack:

        def start(*options: str) -> subprocess.Popen[str]:
            command = [sys.executable, "-c", main, "demo", "--format=json", *options]
            demo = stack.enter_context(subprocess.Popen(command, env=env, **pipes))
            stack.callback(demo.kill)
            return demo

        yield start


def processes_of(folder: Path) -> list[str]:
    """Returns everything that runs with a path in this folder: query, Spark's JVM, broker, watchdog."""
    found = {process.pid: " ".join(process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"])}
    return [f"{pid}: {command[:200]}" for pid, command in found.items() if str(folder) in command]


@pytest.mark.parametrize("compare", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_query_killed_at_each_point_of_its_commit_gives_every_row_once(start, tmp_path, compare):
    """Spark's own sink duplicates rows under the same kills."""
    demo = start(*([] if compare else ["--no-compare", "--rows-per-second", "500"]))
    out, errors = demo.communicate(timeout=500)
    assert demo.returncode == 0, errors
    assert processes_of(tmp_path) == []
    assert [entry.name for entry in tmp_path.iterdir()] == []
    result = json.loads(out)
    assert result["ok"]
    found = result["with_sparkonce"]
    assert [(kill["point"], kill["proved"]) for kill in found["kills"]] == [(point.words, True) for point in CrashPoint]
    count = found["count"]
    assert count["expected"] == count["seen"] > 0
    assert count["amount_expected"] == count["amount_seen"]
    assert (count["missing"], count["doubled"], count["wrong"]) == (0, 0, 0)
    assert (found["seen_uncommitted"], found["left_open"]) == (0, 0)
    # Rows that were prepared but not decided are on the topic, and only read_uncommitted readers see them.
    assert found["aborted_rows"] > 0
    without = result["without"]
    assert (without is not None) == compare
    if compare:
        assert [kill["proved"] for kill in without["kills"]] == [True] * len(CrashPoint)
        assert without["count"]["missing"] == 0
        assert without["count"]["doubled"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_demo_that_is_ended_leaves_no_process(start, tmp_path, number):
    demo = start("--no-compare")
    for line in demo.stderr:
        if "start " in line:
            break
    eventually(lambda: "org.apache.spark.deploy" in str(processes_of(tmp_path)), "Spark starts")
    demo.send_signal(number)
    demo.communicate(timeout=LIMIT_S)
    assert demo.returncode != 0
    eventually(lambda: not processes_of(tmp_path), "all processes are gone")
    if number is not signal.SIGKILL:
        assert [entry.name for entry in tmp_path.iterdir()] == []


def test_what_the_demo_cannot_do_is_refused_at_once(start, tmp_path):
    (tmp_path / "something").touch()
    for options, words in (
        (["--keep", str(tmp_path)], f"--keep {tmp_path} is not an empty folder"),
        (
            ["--conf", "spark.hadoop.fs.s3a.secret.key=very-secret"],
            "--conf spark.hadoop.fs.s3a.secret.key: the checkpoints are in a temporary folder",
        ),
    ):
        demo = start(*options)
        _, errors = demo.communicate(timeout=LIMIT_S)
        assert demo.returncode == 1
        assert words in errors
        assert "very-secret" not in errors
