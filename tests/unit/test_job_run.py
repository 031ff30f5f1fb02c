from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.readwriter import DataStreamWriter
from typer.testing import CliRunner

from sparkonce.cli.main import app
from sparkonce.spark.job.run import run_job
from unit.queries import TOLD, Failed, FakeQuery, send

BEGIN = """
import sys
from pyspark.sql.streaming.readwriter import DataStreamWriter
from typer.testing import CliRunner
from sparkonce.errors import PreflightError
query = DataStreamWriter.start(None)
"""


@pytest.fixture
def started(monkeypatch) -> list[FakeQuery]:
    queries: list[FakeQuery] = []
    waiting = iter(queries)

    def start(_: Any) -> FakeQuery:
        return next(waiting)

    monkeypatch.setattr(DataStreamWriter, "start", start)
    return queries


def run(folder: Path, text: str, *arguments: str, **more: Any) -> int:
    (folder / "job.py").write_text(text)
    try:
        run_job(folder / "job.py", arguments, **more)
    except SystemExit as ended:
        return 0 if ended.code is None else int(str(ended.code))
    return 0


def test_a_file_is_run_as_python_would(tmp_path, capsys):
    before = (list(sys.argv), list(sys.path), sys.modules["__main__"])
    (tmp_path / "beside.py").write_text("there = 'beside'")
    text = "import sys, beside\nprint(__name__, sys.argv[1:], beside.there)\nsys.exit(7)"
    assert run(tmp_path, text, "--rows", "3") == 7
    assert capsys.readouterr().out == "__main__ ['--rows', '3'] beside\n"
    assert (sys.argv, sys.path, sys.modules["__main__"]) == before
    del sys.modules["beside"]

    assert run(tmp_path, "raise KeyboardInterrupt") == 130

    (tmp_path / "job.py").write_text("import sys\nsys.exit(7 if sys.argv[1:] == ['--traceback', '--help', 'x'] else 1)")
    arguments = ["run", "--traceback", str(tmp_path / "job.py"), "--traceback", "--help", "x"]
    assert CliRunner().invoke(app, arguments).exit_code == 7
    assert CliRunner().invoke(app, ["run", str(tmp_path / "nowhere.py")]).exit_code == 2


def test_what_it_leaves_running_is_waited_for_until_a_signal_comes(tmp_path, started, capsys):
    started.append(FakeQuery())
    send(signal.SIGTERM)
    assert run(tmp_path, BEGIN) == 0
    assert started[0].stops
    assert "SIGTERM: stopping 'totals'" in capsys.readouterr().err


def test_a_signal_while_the_file_itself_waits_lets_it_go_on(tmp_path, started, capsys):
    started.append(FakeQuery())
    send(signal.SIGINT)
    assert run(tmp_path, f"{BEGIN}query.awaitTermination()\nprint('goes on')\nsys.exit(3)") == 3
    assert capsys.readouterr().out == "goes on\n"


@pytest.mark.parametrize("waits", ["", "query.awaitTermination()"])
def test_a_query_that_failed_is_told_whoever_waited_for_it(waits, tmp_path, started, capsys):
    started.append(FakeQuery(error=Failed()))
    assert run(tmp_path, f"{BEGIN}{waits}") == 1
    assert capsys.readouterr().err == TOLD


def test_a_query_that_the_file_has_started_again_is_not_told(tmp_path, started):
    started += [FakeQuery(error=Failed()), FakeQuery()]
    started[1].id = started[0].id
    started[1].end()
    again = "try:\n    query.awaitTermination()\nexcept Exception:\n    DataStreamWriter.start(None)"
    assert run(tmp_path, f"{BEGIN}{again}") == 0


def test_an_error_of_ours_is_told_in_two_lines(tmp_path, started, capsys):
    started += [FakeQuery(), FakeQuery()]
    refused = f"{BEGIN}raise PreflightError('No such topic.', next_step='make it.')"
    assert run(tmp_path, refused) == 1
    assert capsys.readouterr().err == "No such topic.\nNext: Make it.\n"
    assert started[0].stops
    (tmp_path / "again").mkdir()
    started[1].end()
    assert run(tmp_path, refused, traceback=True) == 1
    assert "Traceback (most recent call last):" in capsys.readouterr().err


def test_any_other_error_is_told_as_python_does(tmp_path, started, capsys):
    started.append(FakeQuery())
    assert run(tmp_path, f"{BEGIN}1 / 0") == 1
    said = capsys.readouterr().err.splitlines()
    assert said[0] == "Traceback (most recent call last):"
    assert said[1].startswith(f'  File "{tmp_path / "job.py"}", line ')
    assert said[-1] == "ZeroDivisionError: division by zero"
    assert started[0].stops
