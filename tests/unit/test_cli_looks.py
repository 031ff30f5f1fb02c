"""The output of the command line, compared with ``cli_looks.txt`` for a terminal with 80 columns.

If a change is intended, regenerate the file and review its diff: ``python tests/unit/test_cli_looks.py``.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest
import typer
from typer.main import get_command

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

from sparkonce.cli.main import app
from sparkonce.cli.output import OutputFormat
from sparkonce.cli.transactions import show_done
from sparkonce.operate.resolve import Resolved
from sparkonce.operate.transactions import Listing, LogVerdict, OpenTransaction
from sparkonce.sinks._shared.orphans import Orphan
from unit.test_operate_checkpoint import checkpoint_of

SNAPSHOT = Path(__file__).with_name("cli_looks.txt")

WRONG = (
    *("nothing", "verfy", "checkpoint show", "checkpoint batch CHECKPOINT seven"),
    *("checkpoint history CHECKPOINT --last 0", "ui --checkpoint CHECKPOINT --port 99999", "doctor --format jsn"),
    *("checkpoint show CHECKPOINT --wide", "checkpoint show /nowhere/at/all"),
)

RIGHT = (
    *("checkpoint show CHECKPOINT --moved", "checkpoint show CHECKPOINT", "doctor CHECKPOINT --moved"),
    *("doctor CHECKPOINT", "checkpoint history CHECKPOINT --last 3"),
    *("checkpoint history CHECKPOINT --last 2 --format wide", "checkpoint batch CHECKPOINT 5"),
    "verify --list-faults",
)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(line: str, columns: int, checkpoint: Path) -> str:
    words = [str(checkpoint) if word == "CHECKPOINT" else word for word in line.split()]
    terminal = Terminal()
    with (
        mock.patch.dict(os.environ, {"COLUMNS": str(columns), "TERM": "xterm"}),
        contextlib.redirect_stdout(terminal),
        contextlib.redirect_stderr(terminal),
        contextlib.suppress(SystemExit),
    ):
        app(words, prog_name="sparkonce")
    return re.sub(r"\x1b\[[0-9;]*m", "", terminal.getvalue()).replace(str(checkpoint), "CHECKPOINT")


def commands() -> list[str]:
    found = [""]
    group = get_command(app)
    for name in group.list_commands(mock.Mock()):
        command = group.get_command(mock.Mock(), name)
        found += [name, *(f"{name} {inner}" for inner in getattr(command, "commands", {}))]
    return [one for one in found if one not in ("help", "version")]


def everything(columns: int) -> str:
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="") as folder:
        checkpoint = checkpoint_of(Path(folder) / "c", decided=6, begun=6, finished=6)
        lines = [*(f"{one} --help".strip() for one in commands()), *RIGHT, *WRONG]
        return "".join(f"$ sparkonce {line}\n{shown(line, columns, checkpoint)}\n" for line in lines)


@pytest.mark.parametrize("columns", [80, 120])
def test_help_results_and_errors_fit_the_terminal_and_look_as_they_were_reviewed(columns):
    found = everything(columns)
    wrong = [line for line in found.splitlines() if line != line.rstrip() or len(line) > columns]
    assert [line for line in wrong if not line.startswith(("$ ", "Error: "))] == []
    if columns == 80:
        assert found == SNAPSHOT.read_text("utf-8"), "see this file's docstring"


def test_resolve_says_what_it_did_and_what_comes_next(capsys):
    orphan = Orphan(
        kind="open", name="a", query="1", run="1-a", batch=3, slot=0, copy="c", age_s=40, holds=("orders-0",)
    )
    left = OpenTransaction(system="kafka", found=orphan, verdict=LogVerdict.ABORT, why="An older run has left it.")
    done = Resolved(run="2-f", batch=7, committed=4, swept=("kafka",))

    show_done(done, Listing(found=[left]), Listing(), OutputFormat.TABLE)
    assert capsys.readouterr().out.splitlines() == [
        "Claimed the log as run 2-f: a driver that still runs on this checkpoint stops.",
        "Committed batch 7: 4 transactions.",
        "Aborted what older runs had left open in kafka: 1 transaction.",
        "Next: Start the query when it can run. It checks the servers again, and continues after this.",
    ]
    with pytest.raises(typer.Exit):
        show_done(replace(done, lost=1, swept=()), Listing(found=[left]), Listing(found=[left]), OutputFormat.TABLE)
    assert capsys.readouterr().out.splitlines()[1:] == [
        "Committed batch 7: 4 transactions.",
        "Lost 1 transaction of it.",
        "Still open:",
        "SYSTEM  KIND  AGE  TO DO  NAME  WHY",
        "kafka   open  40s  abort  a     An older run has left it.",
        "Next: Start the query, which writes the lost rows again.",
    ]


if __name__ == "__main__":
    SNAPSHOT.write_text(everything(80), "utf-8")
