from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from eventually import eventually
from sparkonce_lab.demo.result import CrashPoint

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

# A shell without job control starts background processes, such as these tests, with SIGINT ignored.
MAIN = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
from sparkonce.cli.main import app
app()
"""
COMMAND = [sys.executable, "-c", MAIN, "demo", "--json"]
WAIT_S = 60.0


def start(folder: Path, *options: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*COMMAND, *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(folder)},
    )


def processes_of(folder: Path) -> list[str]:
    """Returns everything that runs with a path in this folder: query, Spark's JVM, broker, watchdog."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        command = " ".join(process.info["cmdline"] or ())
        if str(folder) in command:
            found.append(f"{process.pid}: {command[:200]}")
    return found


def run(folder: Path, *options: str) -> dict[str, Any]:
    demo = start(folder, *options)
    out, errors = demo.communicate(timeout=500)
    assert demo.returncode == 0, errors
    assert processes_of(folder) == []
    assert [entry.name for entry in folder.iterdir()] == []
    result: dict[str, Any] = json.loads(out)
    return result


def check_with_sparkonce(result: dict[str, Any]) -> None:
    found = result["with_sparkonce"]
    assert result["ok"]
    assert [(kill["point"], kill["proved"]) for kill in found["kills"]] == [(point.words, True) for point in CrashPoint]
    count = found["count"]
    assert count["expected"] == count["seen"] > 0
    assert count["amount_expected"] == count["amount_seen"]
    assert (count["missing"], count["doubled"], count["wrong"]) == (0, 0, 0)
    assert (found["seen_uncommitted"], found["left_open"]) == (0, 0)
    # Rows that were prepared but not decided are on the topic, and only read_uncommitted readers see them.
    assert found["aborted_rows"] > 0


def test_a_query_killed_at_each_point_of_its_commit_gives_every_row_once(tmp_path: Path) -> None:
    result = run(tmp_path, "--no-compare", "--rows-per-second", "500")
    check_with_sparkonce(result)
    assert result["without"] is None


def test_settings_of_a_store_need_a_place_there(tmp_path: Path) -> None:
    demo = start(tmp_path, "--conf", "spark.hadoop.fs.s3a.secret.key=very-secret")
    _, errors = demo.communicate(timeout=WAIT_S)
    assert demo.returncode == 1
    assert "--conf spark.hadoop.fs.s3a.secret.key: the checkpoints are in a temporary folder" in errors
    assert "very-secret" not in errors


@pytest.mark.slow
def test_sparks_own_sink_doubles_rows_under_the_same_kills(tmp_path: Path) -> None:
    result = run(tmp_path)
    check_with_sparkonce(result)
    without = result["without"]
    assert [kill["proved"] for kill in without["kills"]] == [True] * len(CrashPoint)
    assert without["count"]["missing"] == 0
    assert without["count"]["doubled"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_demo_that_is_ended_leaves_no_process(tmp_path: Path, number: signal.Signals) -> None:
    demo = start(tmp_path, "--no-compare")
    assert demo.stderr is not None
    for line in demo.stderr:
        if "start " in line:
            break
    eventually(lambda: "org.apache.spark.deploy" in str(processes_of(tmp_path)), "Spark starts", limit_s=WAIT_S)
    demo.send_signal(number)
    demo.communicate(timeout=WAIT_S)
    assert demo.returncode != 0
    eventually(lambda: not processes_of(tmp_path), "all processes are gone", limit_s=WAIT_S)
    if number is not signal.SIGKILL:
        assert [entry.name for entry in tmp_path.iterdir()] == []


def test_a_folder_to_keep_must_be_empty(tmp_path: Path) -> None:
    (tmp_path / "something").touch()
    demo = start(tmp_path, "--keep", str(tmp_path))
    _, errors = demo.communicate(timeout=WAIT_S)
    assert demo.returncode == 1
    assert f"--keep {tmp_path} is not an empty folder" in errors
