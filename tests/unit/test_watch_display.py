from __future__ import annotations

import errno
import io
import logging
import os
import re
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from sparkonce.driver.progress import BatchProgress
from sparkonce.protocol.state import Phase
from sparkonce.watch import display as module
from sparkonce.watch.display import ProgressDisplay, Screen
from sparkonce.watch.terminal import Line

CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def batch(number: int = 7, rows: dict[str, int] | None = None, **more: Any) -> BatchProgress:
    marks = {"recovered": False, "healed": 0, **more}
    of = {"kafka": 20} if rows is None else rows
    return BatchProgress(batch=number, rows=of, transactions=4, seconds={"writing": 0.25}, finished_at_ms=0, **marks)


class Terminal:
    def __init__(self) -> None:
        self.file = io.StringIO()
        self.screen = Screen(Console(file=self.file, force_terminal=True, width=120))
        self.now_s = 1_000.0

    @property
    def text(self) -> str:
        return CONTROL.sub("", self.file.getvalue())


@pytest.fixture
def terminal(monkeypatch) -> Iterator[Terminal]:
    made = Terminal()
    clock = SimpleNamespace(monotonic=lambda: made.now_s, strftime=lambda _: "2026-11-24 12:00:00")
    monkeypatch.setattr(module, "time", clock)
    yield made
    made.screen.end()


@pytest.fixture
def shown(terminal) -> ProgressDisplay:
    display = ProgressDisplay(None, terminal.screen)
    with display.starting("totals"):
        pass
    return display


def test_a_start_is_seen_at_once(shown, terminal):
    assert shown.line() == "totals starting: checking the servers"
    shown.show_query("Getting offsets from KafkaV2[Subscribe[orders]]", None)
    assert shown.line() == "totals getting offsets from KafkaV2[Subscribe[orders]]"

    shown.enter(Phase.FINISHING, 7)
    shown.show_query("Processing new data", None)
    assert shown.line() == "totals batch 7: finishing"

    shown.say("Resuming after batch 6.")
    assert "sparkonce: totals: Resuming after batch 6.\n" in terminal.text


def test_a_batch_and_what_its_source_gave_are_seen(shown, terminal):
    shown.enter(Phase.WRITING, 7)
    assert shown.line() == "totals batch 7: preparing every slot"
    shown.show(batch(7, {"kafka": 305, "files": 305}, recovered=True, healed=2), "")
    shown.enter(Phase.IDLE, 7)
    sources = [{"metrics": None}, *({"metrics": {"maxOffsetsBehindLatest": behind}} for behind in ("40", "3"))]
    progress = {"numInputRows": 305, "processedRowsPerSecond": 380.6, "sources": sources}
    shown.show_query("Waiting for data to arrive", progress)
    terminal.now_s += 3
    assert shown.line() == (
        "totals waiting for data to arrive  ·  305 rows read, 381 rows/s, 40 behind  ·  1 committed, the last 3 s ago"
        "  ·  1 recovered  ·  2 healed"
    )


def test_the_line_goes_when_the_query_ends(shown, terminal):
    assert isinstance(terminal.screen._live, Line)
    terminal.screen.refresh()
    shown.end()
    assert terminal.screen._live is None
    assert terminal.file.getvalue().endswith("\x1b[?25h\r\x1b[1A\x1b[2K"), "the cursor is back, the line is erased"
    before = terminal.file.getvalue()
    terminal.screen.refresh()
    assert terminal.file.getvalue() == before


def test_what_the_jvm_writes_begins_where_the_line_does(shown, terminal):
    terminal.screen.refresh()
    before = terminal.file.getvalue()
    assert CONTROL.sub("", before).endswith("totals starting: checking the servers\r")
    terminal.file.write("26/11/24 WARN of Spark's\n")
    terminal.screen.refresh()
    after = terminal.file.getvalue()[len(before) :]
    assert "\x1b[1A" not in after, "nothing above the line is erased"
    assert CONTROL.sub("", after).replace("\r", "") == "26/11/24 WARN of Spark's\ntotals starting: checking the servers"


def test_a_start_that_fails_leaves_no_line(terminal):
    display = ProgressDisplay(None, terminal.screen)
    with pytest.raises(ZeroDivisionError), display.starting("totals"):
        1 / 0  # noqa: B018 - the test is about the error
    assert terminal.screen._live is None


@pytest.mark.parametrize("of_a_terminal", [True, False])
def test_what_a_job_prints_into_a_file_stays_there(of_a_terminal, terminal, monkeypatch):
    """Rich also captures standard output that is printed next to its progress line, and writes it to stderr."""
    printed = io.StringIO()
    monkeypatch.setattr(printed, "isatty", lambda: of_a_terminal)
    monkeypatch.setattr(sys, "stdout", printed)
    with ProgressDisplay(None, terminal.screen).starting("totals"):
        sys.stdout.write("a row\n")
        sys.stdout.flush()
    terminal.screen.end()
    assert sys.stdout is printed
    assert (printed.getvalue() == "a row\n", "a row\n" in terminal.text) == (not of_a_terminal, of_a_terminal)


class Pipe:
    """Standard error that is not a terminal, with the logging setup of some program."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, is_set_up: bool, level: int = logging.INFO) -> None:
        self.screen = Screen(Console(file=io.StringIO(), force_terminal=False))
        logger = SimpleNamespace(hasHandlers=lambda: is_set_up, isEnabledFor=lambda asked: asked >= level)
        monkeypatch.setattr(module, "logger", logger)


@pytest.mark.usefixtures("terminal")
@pytest.mark.parametrize(
    ("wanted", "is_set_up", "level", "is_written"),
    [
        (None, False, logging.WARNING, True),
        (None, True, logging.WARNING, False),
        (True, True, logging.WARNING, True),
        (True, True, logging.INFO, False),
        (False, False, logging.WARNING, False),
    ],
)
def test_without_a_terminal_each_batch_has_a_line_that_is_written_once(
    wanted, is_set_up, level, is_written, monkeypatch, capsys
):
    display = ProgressDisplay(wanted, Pipe(monkeypatch, is_set_up=is_set_up, level=level).screen)
    with display.starting("totals"):
        display.say("Resuming after batch 6.")
    display.enter(Phase.WRITING, 7)
    display.show(batch(), batch().line())
    display.show_query("Waiting for data to arrive", None)
    display.end()
    at = "2026-11-24 12:00:00 INFO sparkonce: "
    lines = f"{at}Resuming after batch 6.\n{at}batch=7 committed rows=20 transactions=4 in 0.250 s\n"
    assert capsys.readouterr() == ("", lines if is_written else "")


def test_a_line_that_nobody_can_read_stops_nothing(monkeypatch, terminal):
    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr(sys, "stderr", closed)
    ProgressDisplay(True, Pipe(monkeypatch, is_set_up=False).screen).show(batch(), "line")


def test_a_terminal_that_goes_away_stops_nothing(monkeypatch, shown, terminal):
    def gone(_: str) -> int:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(terminal.file, "write", gone)
    shown.say("Resuming after batch 6.")
    terminal.screen.refresh()
    shown.end()
    with shown.starting("totals"):
        pass
    shown.end()


def test_a_process_that_ends_at_once_leaves_a_terminal_with_its_cursor(monkeypatch):
    ours, its = os.openpty()
    monkeypatch.setattr(module, "_STDERR", its)
    module.leave_terminal()
    assert os.read(ours, 100) == b"\r\x1b[2K\x1b[?25h"
    for end in (ours, its):
        os.close(end)
    module.leave_terminal()


@pytest.mark.parametrize(("variable", "value"), [("FORCE_COLOR", "1"), ("TTY_COMPATIBLE", "1"), ("TERM", "dumb")])
def test_where_no_line_can_be_written_again_there_is_none(variable, value, monkeypatch):
    file = io.StringIO()
    monkeypatch.setattr(sys, "stderr", file)
    monkeypatch.setenv(variable, value)
    if variable == "TERM":
        monkeypatch.setattr(file, "isatty", lambda: True)
    display = ProgressDisplay(None, Screen())
    with display.starting("totals"):
        assert not display.is_live
    assert file.getvalue() == ""
