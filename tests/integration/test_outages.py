"""A server that stops while a batch is written or finished, and is started again: the same run goes on, and counts."""

from __future__ import annotations

import logging
import secrets
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pymysql
import pytest

from conformance import test_files, test_files_s3, test_kafka, test_write_ahead
from integration import test_went_back as own
from postgres_witness import prepared, staging_tables
from shared_servers import KILLS_BROKER, broker_to_kill
from small_job import SmallJob
from sparkonce.errors import LogError, PrepareError
from sparkonce.protocol.state import Phase
from sparkonce.rig.disk import SmallDisk, cannot_mount
from sparkonce.rig.servers.s3 import S3Server, find_versitygw
from sparkonce.sinks.kafka.sink import KafkaSink

SLOTS, ROWS = 2, 10
needs_disk = pytest.mark.skipif(bool(cannot_mount()), reason=cannot_mount())


class PostgresTwoPhase(own.PostgresTwoPhase):
    def left_open(self) -> Sequence[object]:
        return [*prepared(self.server), *staging_tables(self.server)]


class PostgresStaged(own.PostgresStaged):
    left_open = PostgresTwoPhase.left_open


class MariaDBTwoPhase(own.MariaDBTwoPhase):
    def left_open(self) -> Sequence[object]:
        return self.witness.xids()


class MariaDBStaged(own.MariaDBStaged):
    def left_open(self) -> Sequence[object]:
        committed = [copy.decode() for (copy,) in self.witness.rows("SELECT copy FROM sparkonce_commits")]
        return sorted(set(self.witness.stages()) - {f"sparkonce_stage_{copy}" for copy in committed})


class Redis(own.Redis):
    def left_open(self) -> Sequence[object]:
        return sorted(self.everywhere.own_keys("list"))


class S3(test_files_s3.TestParquet):
    def begin(self, folder: Path, stack: ExitStack) -> None:
        if find_versitygw() is None:
            pytest.skip("no versitygw: go install github.com/versity/versitygw/cmd/versitygw@v1.8.0")
        self.server = stack.enter_context(S3Server(folder / "server"))
        self.settle(self.server)

    def left_open(self) -> Sequence[object]:
        return self.bucket.uploads()


class Kafka(test_kafka.KafkaSuite):
    """Rows are given up soon, as by a user who sets ``message.timeout.ms``: else librdkafka itself waits."""

    def begin(self, _: Path, __: ExitStack) -> None:
        self.settle(broker_to_kill())
        (self.server,) = self.cluster.brokers

    def make(self) -> KafkaSink:
        settings = {**self.settings, "message.timeout.ms": 3_000}
        return KafkaSink(settings, topic=self.topic, prefix=f"outage-{secrets.token_hex(3)}")

    def left_open(self) -> Sequence[object]:
        return []


SERVERS: tuple[Any, ...] = (
    PostgresTwoPhase,
    PostgresStaged,
    MariaDBTwoPhase,
    MariaDBStaged,
    Redis,
    S3,
    pytest.param(Kafka, marks=[pytest.mark.kafka, KILLS_BROKER]),
)


@pytest.fixture(params=SERVERS, ids=lambda kind: kind.__name__)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    made = request.param()
    with ExitStack() as stack:
        made.begin(tmp_path / "place", stack)
        yield made


class Query:
    """A query into a place.

    Attributes:
        before: Called before the rows of batch 1's last slot are written: the other one is prepared then.
    """

    def __init__(self, place: Any, folder: Path, deadline_s: float = 60.0) -> None:
        self._place = place
        self.before: Callable[[], object] = lambda: None
        sink = place.make()
        self.job = SmallJob(folder / "checkpoint", lambda: [sink], self._rows, slots=SLOTS, deadline_s=deadline_s)

    def _rows(self, batch: int, slot: int) -> pa.RecordBatch:
        if (batch, slot) == (1, SLOTS - 1):
            before, self.before = self.before, lambda: None
            before()
        rows: pa.RecordBatch = self._place.make_rows((batch * SLOTS + slot) * ROWS, ROWS)
        return rows


def numbers(*batches: int) -> Counter[int]:
    return Counter(number for batch in batches for number in range(batch * SLOTS * ROWS, (batch + 1) * SLOTS * ROWS))


@contextmanager
def once_logged(words: str, action: Callable[[], object]) -> Iterator[list[str]]:
    """Does something when a line with these words is logged for the first time; gives all lines from WARNING on."""
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
def test_a_server_that_is_away_while_slots_are_prepared(place: Any, tmp_path: Path, crash: bool) -> None:
    """It is started once the run has found that what it has prepared cannot even be undone."""
    query = Query(place, tmp_path)
    query.before = place.server.kill if crash else place.server.stop
    with once_logged("is not undone yet", place.server.start) as lines:
        query.job.run(0, 1, 2)
    assert Counter(place.visible()) == numbers(0, 1, 2)
    assert list(place.left_open()) == []
    assert sum("Waiting for at most 60 s" in line for line in lines) == 1
    assert sum("Going on after" in line for line in lines) == 1


@pytest.mark.parametrize(
    "place",
    [
        PostgresTwoPhase,
        pytest.param(Kafka, marks=[pytest.mark.kafka, KILLS_BROKER]),
        *(
            pytest.param(kind, marks=pytest.mark.slow)
            for kind in (PostgresStaged, MariaDBTwoPhase, MariaDBStaged, Redis, S3)
        ),
    ],
    indirect=True,
    ids=lambda kind: kind.__name__,
)
def test_a_server_that_is_away_while_a_batch_is_finished(place: Any, tmp_path: Path) -> None:
    query = Query(place, tmp_path)
    with once_logged("Waiting for at most 60 s: batch 1 is decided", place.server.start):
        query.job.run(0, 1, 2, listener=own.once_at(Phase.FINISHING, 1, place.server.kill))
    assert Counter(place.visible()) == numbers(0, 1, 2)
    assert list(place.left_open()) == []


@pytest.mark.parametrize("place", [PostgresTwoPhase, MariaDBStaged], indirect=True, ids=lambda kind: kind.__name__)
def test_a_server_that_stays_away(place: Any, tmp_path: Path) -> None:
    query = Query(place, tmp_path, deadline_s=1.0)
    query.before = place.server.kill
    with pytest.raises(PrepareError, match=r"tried \d+ times in [0-9]+ s") as caught:
        query.job.run(0, 1)
    assert "see whether the server is up" in caught.value.next_step.lower()
    place.server.start()
    assert Counter(place.visible()) == numbers(0)
    query.job.run(1, 2)
    assert Counter(place.visible()) == numbers(0, 1, 2)
    assert list(place.left_open()) == []


# --- too many connections --------------------------------------------------------------------------------------------


def take_all(connect: Callable[[], Any], refused: type[Exception]) -> list[Any]:
    """Opens connections until the server takes no more."""
    taken: list[Any] = []
    with suppress(refused):
        while True:
            taken.append(connect())
    return taken


def test_postgresql_has_no_connection_left(tmp_path: Path) -> None:
    with ExitStack() as stack:
        place, taken = PostgresStaged(), list[Any]()
        place.begin(tmp_path, stack)
        place.server.settings["max_connections"] = "12"
        place.server.restart()
        query = Query(place, tmp_path)

        def connect_again() -> None:
            """The other slot's connection would be used once more."""
            own.close_all()
            taken.extend(take_all(lambda: psycopg.connect(place.server.conninfo()), psycopg.OperationalError))

        query.before = connect_again
        with once_logged("Waiting for at most", lambda: [one.close() for one in taken]) as lines:
            query.job.run(0, 1, 2)
        assert "too many clients" in "".join(lines)
        assert Counter(place.visible()) == numbers(0, 1, 2)


def test_mariadb_has_no_connection_left(tmp_path: Path) -> None:
    with ExitStack() as stack:
        place, taken = MariaDBStaged(), list[Any]()
        place.begin(tmp_path / "place", stack)
        place.witness.run("SET GLOBAL max_connections = 12")
        query = Query(place, tmp_path)
        query.before = lambda: taken.extend(take_all(place.witness.connect, pymysql.err.OperationalError))
        with once_logged("Waiting for at most", lambda: [one.close() for one in taken]) as lines:
            query.job.run(0, 1, 2)
        assert "1040" in "".join(lines)
        assert Counter(place.visible()) == numbers(0, 1, 2)


# --- a full disk -----------------------------------------------------------------------------------------------------


class WriteAhead(test_write_ahead.TestNeither):
    def left_open(self) -> Sequence[object]:
        return [*self.root.rglob("prepared/*"), *self.root.rglob("open/*")]


class Files(test_files.TestJson):
    def left_open(self) -> Sequence[object]:
        return list((self.root / ".sparkonce" / "held").iterdir())


@needs_disk
@pytest.mark.parametrize("kind", [Files, WriteAhead])
def test_a_full_disk_under_the_rows(kind: type[Any], tmp_path: Path) -> None:
    place, disk = kind(), SmallDisk(tmp_path / "disk", 1)
    try:
        place.settle(disk.folder)
        query = Query(place, disk.folder if kind is WriteAhead else tmp_path)
        query.before = disk.fill
        with once_logged("Waiting for at most 60 s", disk.free) as lines:
            query.job.run(0, 1, 2)
        assert "record" not in lines[0], "it was the rows that had no room"
        assert Counter(place.visible()) == numbers(0, 1, 2)
        assert place.left_open() == []
    finally:
        disk.close()


@needs_disk
@pytest.mark.parametrize("phase", [Phase.DECIDING, Phase.CLAIMING])
def test_a_full_disk_under_the_log(tmp_path: Path, phase: Phase) -> None:
    place = Files()
    place.settle(tmp_path)
    disk = SmallDisk(tmp_path / "disk", 1)
    try:
        query = Query(place, disk.folder)
        query.job.run(0)
        with once_logged("of the decision log could not be written", disk.free):
            query.job.run(1, 2, listener=own.once_at(phase, 1, disk.fill))
        assert Counter(place.visible()) == numbers(0, 1, 2)
        short = Query(place, disk.folder, deadline_s=1.0)
        short.job.query = query.job.query
        with pytest.raises(LogError, match="No space left"):
            short.job.run(3, listener=own.once_at(phase, 3, disk.fill))
        assert Counter(place.visible()) == numbers(0, 1, 2)
        disk.free()
        query.job.run(3)
        assert Counter(place.visible()) == numbers(0, 1, 2, 3)
    finally:
        disk.close()
