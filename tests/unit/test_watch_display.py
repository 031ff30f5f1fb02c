import io
import logging
import sys
from types import SimpleNamespace

import pytest

from sparkonce.watch import display as module
from sparkonce.watch.display import ProgressDisplay


def set_up(monkeypatch: pytest.MonkeyPatch, *, is_set_up: bool, level: int) -> None:
    logger = SimpleNamespace(hasHandlers=lambda: is_set_up, isEnabledFor=lambda asked: asked >= level)
    monkeypatch.setattr(module, "logger", logger)


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
def test_a_line_is_written_once(wanted, is_set_up, level, is_written, monkeypatch, capsys):
    set_up(monkeypatch, is_set_up=is_set_up, level=level)
    monkeypatch.setattr(module, "time", SimpleNamespace(strftime=lambda _: "2026-11-24 12:00:00"))
    ProgressDisplay(wanted).write("Resuming after batch 6.")
    line = "2026-11-24 12:00:00 INFO sparkonce: Resuming after batch 6.\n"
    assert capsys.readouterr() == ("", line if is_written else "")


def test_a_line_that_nobody_can_read_stops_nothing(monkeypatch):
    set_up(monkeypatch, is_set_up=False, level=logging.INFO)
    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr(sys, "stderr", closed)
    ProgressDisplay(True).write("line")
