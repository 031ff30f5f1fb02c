"""A server stops while a batch is being written or finished, and starts again. The run continues."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pymysql
import pytest

from conformance import test_files, test_write_ahead
from integration.own_servers import ROWS, SLOTS, numbers, on, once_at
from integration.own_servers import suite as suite
from small_job import SmallJob
from sparkonce.errors import LogError, PrepareError
from sparkonce.protocol.state import Phase
from sparkonce.sinks.sql.postgres.connection import close_all
from sparkonce_lab.rig.disk import SmallDisk, cannot_mount

needs_disk = pytest.mark.skipif(bool(cannot_mount()), reason=cannot_mount())


class Query:
    """A query into a suite's sink.

    Attributes:
        before: Called before the rows of batch 1's last slot are written, when the other slot is prepared.
    """

    def __init__(self, suite: Any, folder: Path, deadline_s: float = 60.0) -> None:
        self._suite = suite
        self.before: Callable[[], object] = lambda: None
        sink = suite.make()
        self.job = SmallJob(folder / "checkpoint", lambda: [sink], self._rows, slots=SLOTS, deadline_s=deadline_s)

    def _rows(self, batch: int, slot: int) -> pa.RecordBatch:
        if (batch, slot) == (1, SLOTS - 1):
            before, self.before = self.before, lambda: None
            before()
        rows: pa.RecordBatch = self._suite.make_rows((batch * SLOTS + slot) * ROWS, ROWS)
        return rows


@contextmanager
def once_logged(words: str, action: Callable[[], object]) -> Iterator[list[str]]:
    """Runs an action when a line with this text is first logged. Yields all lines from WARNING on."""
    lines: list[str] = []
    left = [action]

    class Watch(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said = record.getMessage()
            if record.levelno >= logging.WARNING:
                lines.append(said)
            if words in said and left:
                left.pop()()

    logger, watch = logging.getLogger("sparkonce"), Watch(logging.DEBUG)
    before = logger.level
    logger.addHandler(watch)
    logger.setLevel(logging.DEBUG)
    try:
        yield lines
    finally:
        logger.setLevel(before)
        logger.removeHandler(watch)
    assert not left, f"{words!r} was never logged"


@pytest.mark.parametrize("crash", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["killed", "stopped"])
@on("postgres-two_phase", slow=["kafka", "postgres-staged", "mariadb-two_phase", "mariadb-staged", "redis", "s3"])
def test_a_server_that_is_away_while_slots_are_prepared(suite: Any, tmp_path: Path, crash: bool) -> None:
    """The server is restarted once the run has found that it cannot even undo what it has prepared."""
    query = Query(suite, tmp_path)
    query.before = suite.server.kill if crash else suite.server.stop
    with once_logged("is not undone yet", suite.server.start) as lines:
        query.job.run(0, 1, 2)
    assert Counter(suite.visible()) == numbers(0, 1, 2)
    assert list(suite.system.left_open()) == []
    assert sum("Waiting for up to 60 s" in line for line in lines) == 1
    assert sum("Continuing after" in line for line in lines) == 1


@on(
    "postgres-two_phase",
    slow=["kafka", "postgres-staged", "mariadb-two_phase", "mariadb-staged", "redis", "s3", "rabbitmq"],
)
def test_a_server_that_is_away_while_a_batch_is_finished(suite: Any, tmp_path: Path) -> None:
    query = Query(suite, tmp_path)
    with once_logged("Waiting for up to 60 s: batch 1 is decided", suite.server.start):
        query.job.run(0, 1, 2, listener=once_at(Phase.FINISHING, 1, suite.server.kill))
    assert Counter(suite.visible()) == numbers(0, 1, 2)
    assert list(suite.system.left_open()) == []


@on("postgres-two_phase", slow=["mariadb-staged"])
def test_a_server_that_stays_away(suite: Any, tmp_path: Path) -> None:
    query = Query(suite, tmp_path, deadline_s=1.0)
    query.before = suite.server.kill
    with pytest.raises(PrepareError, match=r"tried \d+ times in [0-9]+ s") as caught:
        query.job.run(0, 1)
    assert "check whether the server is up" in caught.value.next_step.lower()
    suite.server.start()
    assert Counter(suite.visible()) == numbers(0)
    query.job.run(1, 2)
    assert Counter(suite.visible()) == numbers(0, 1, 2)
    assert list(suite.system.left_open()) == []


# --- too many connections --------------------------------------------------------------------------------------------


def take_all(connect: Callable[[], Any], refused: type[Exception]) -> list[Any]:
    """Opens connections until the server refuses more."""
    taken: list[Any] = []
    with suppress(refused):
        while True:
            taken.append(connect())
    return taken


@on("postgres-staged")
def test_postgresql_has_no_connection_left(suite: Any, tmp_path: Path) -> None:
    suite.server.settings["max_connections"] = "12"
    suite.server.restart()
    query, taken = Query(suite, tmp_path), list[Any]()

    def take_connections() -> None:
        close_all()  # otherwise the sink would reuse the first slot's connection
        taken.extend(take_all(lambda: psycopg.connect(suite.server.conninfo()), psycopg.OperationalError))

    query.before = take_connections
    with once_logged("Waiting for up to", lambda: [one.close() for one in taken]) as lines:
        query.job.run(0, 1, 2)
    assert "too many clients" in "".join(lines)
    assert Counter(suite.visible()) == numbers(0, 1, 2)


@on("mariadb-staged")
def test_mariadb_has_no_connection_left(suite: Any, tmp_path: Path) -> None:
    suite.system.ask("SET GLOBAL max_connections = 12")
    query, taken = Query(suite, tmp_path), list[Any]()
    query.before = lambda: taken.extend(take_all(suite.system.connect, pymysql.err.OperationalError))
    with once_logged("Waiting for up to", lambda: [one.close() for one in taken]) as lines:
        query.job.run(0, 1, 2)
    assert "1040" in "".join(lines)
    assert Counter(suite.visible()) == numbers(0, 1, 2)


# --- a full disk -----------------------------------------------------------------------------------------------------


@needs_disk
@pytest.mark.parametrize("kind", [test_files.TestJson, test_write_ahead.TestNeither])
def test_a_full_disk_under_the_rows(kind: type[Any], tmp_path: Path) -> None:
    suite, disk = kind(), SmallDisk(tmp_path / "disk", 1)
    try:
        suite.begin(disk.folder)
        query = Query(suite, tmp_path if kind is test_files.TestJson else disk.folder)
        query.before = disk.fill
        with once_logged("Waiting for up to 60 s", disk.free) as lines:
            query.job.run(0, 1, 2)
        assert "record" not in lines[0], "it was the rows that had no room"
        assert Counter(suite.visible()) == numbers(0, 1, 2)
        assert suite.system.left_open() == []
    finally:
        disk.close()


@needs_disk
@on("files")
@pytest.mark.parametrize("phase", [Phase.DECIDING, Phase.CLAIMING])
def test_a_full_disk_under_the_log(suite: Any, tmp_path: Path, phase: Phase) -> None:
    disk = SmallDisk(tmp_path / "disk", 1)
    try:
        query = Query(suite, disk.folder)
        query.job.run(0)
        with once_logged("of the decision log could not be written", disk.free):
            query.job.run(1, 2, listener=once_at(phase, 1, disk.fill))
        assert Counter(suite.visible()) == numbers(0, 1, 2)
        short = Query(suite, disk.folder, deadline_s=1.0)
        short.job.query = query.job.query
        with pytest.raises(LogError, match="No space left"):
            short.job.run(3, listener=once_at(phase, 3, disk.fill))
        assert Counter(suite.visible()) == numbers(0, 1, 2)
        disk.free()
        query.job.run(3)
        assert Counter(suite.visible()) == numbers(0, 1, 2, 3)
    finally:
        disk.close()
