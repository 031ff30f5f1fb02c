from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from typer.testing import CliRunner

from sparkonce.cli.main import app
from sparkonce.errors import PreflightError
from sparkonce_lab.history import EventKind
from sparkonce_lab.run import Options
from unit.verify_world import Run, good_run

EXACTLY, NOT_EXACTLY, UNFINISHED = "exactly once", "NOT exactly once", "nothing proved: not finished"


def lost(run: Run) -> None:
    run.observed["kafka"].pop()


def broken_off(run: Run) -> None:
    run.drop(EventKind.FINISHED)
    lost(run)


def doubled_and_broken_off(run: Run) -> None:
    broken_off(run)
    run.observed["postgres"].append(run.observed["postgres"][0])


@pytest.mark.parametrize(
    ("spoil", "words", "code"),
    [
        (None, EXACTLY, 0),
        (lost, NOT_EXACTLY, 1),
        (doubled_and_broken_off, NOT_EXACTLY, 1),
        (broken_off, UNFINISHED, 2),
        (lambda run: run.drop(EventKind.OPEN), "nothing proved", 2),
    ],
)
def test_command_line_page_and_exit_code_say_the_same(spoil, words, code, tmp_path):
    run = good_run()
    if spoil is not None:
        spoil(run)
    run.record(tmp_path)
    done = CliRunner().invoke(app, ["verify", "--judge", str(tmp_path)])
    assert done.exit_code == code
    assert f"sparkonce: {words}. " in done.output
    (lingering, *_) = (line for line in done.output.splitlines() if "lingering" in line)
    assert ("—" in lingering) == (spoil not in (None, lost))
    assert f"{words[0].upper()}{words[1:]}</b>" in (tmp_path / "report.html").read_text()
    assert json.loads((tmp_path / "report.json").read_text())["verdict"]["words"] == words
    done = CliRunner().invoke(app, ["verify", "--judge", str(tmp_path), "--format=json"])
    assert done.exit_code == code


def failing(error: BaseException, *, after: Run | None) -> Any:
    def run(options: Options, _: Callable[[str], None]) -> None:
        if after is not None:
            after.record(options.folder)
        raise error

    return run


@pytest.mark.parametrize("error", [PreflightError("no server", next_step="start it."), ValueError("no server")])
def test_what_cannot_be_told_is_no_violation(error, tmp_path, monkeypatch):
    monkeypatch.setattr("sparkonce_lab.run.run", failing(error, after=None))
    done = CliRunner().invoke(app, ["verify", "--out", str(tmp_path / "run")])
    assert done.exit_code == 2
    assert "no server" in done.output.lower()
    assert ("Traceback" in done.output) == isinstance(error, ValueError)


@pytest.mark.parametrize("error", [PreflightError("no server"), OSError("no server")])
def test_what_was_recorded_until_it_failed_is_judged(error, tmp_path, monkeypatch):
    run = good_run()
    doubled_and_broken_off(run)
    monkeypatch.setattr("sparkonce_lab.run.run", failing(error, after=run))
    done = CliRunner().invoke(app, ["verify", "--out", str(tmp_path / "run")])
    assert done.exit_code == 1
    assert "o server. Everything recorded until then is judged" in done.output
    assert NOT_EXACTLY in done.output


def test_what_ends_it_early_is_no_violation(tmp_path, monkeypatch):
    monkeypatch.setattr("sparkonce_lab.run.run", failing(KeyboardInterrupt(), after=None))
    done = CliRunner().invoke(app, ["verify", "--out", str(tmp_path / "run")])
    assert done.exit_code == 130
    assert "--judge" in done.output

    done = CliRunner().invoke(app, ["verify", "--kafka-config", str(tmp_path / "none.json")])
    assert done.exit_code == 2
    assert "--kafka-config" in done.output
