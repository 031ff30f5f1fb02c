"""Complete queries into each sink, with its real server and the real driver, but without Spark.

If a server has lost part of a decided batch, that part is written again, or the query stops and reports exactly what is
missing. While a server is unreachable, a run waits. After a server was restored from an older state, a query stops and
names the batches. Below exactly-once, a killed run duplicates or loses rows only as its guarantee allows.
"""

from __future__ import annotations

import logging
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pymysql
import pytest

from conformance import test_files, test_kafka, test_mysql, test_postgres, test_rabbitmq, test_redis, test_write_ahead
from shared_servers import KILLS_BROKER, broker_to_kill
from small_job import Killed, SmallJob
from sparkonce.errors import ConfigurationError, LogError, PrepareError, StaleServerError, TransactionLostError
from sparkonce.guarantees import Guarantee
from sparkonce.protocol.state import Phase
from sparkonce.sink import TwoPhaseCommitSink
from sparkonce.sinks.sql.postgres.connection import close_all
from sparkonce_lab.rig.disk import SmallDisk, cannot_mount
from sparkonce_lab.rig.servers.mariadb import MariaDBServer
from sparkonce_lab.rig.servers.postgres import PostgresServer
from sparkonce_lab.rig.servers.rabbitmq import RabbitServer
from sparkonce_lab.rig.servers.redis import RedisServer
from sparkonce_lab.rig.servers.s3 import S3Server
from sparkonce_lab.systems.mysql import MySQLSystem
from sparkonce_lab.systems.postgres import PostgresSystem
from sparkonce_lab.systems.rabbitmq import RabbitSystem
from sparkonce_lab.systems.redis import RedisSystem
from sparkonce_lab.systems.s3 import S3System

SLOTS, ROWS = 2, 10
"""Slots of a batch, and rows of a slot."""

needs_disk = pytest.mark.skipif(bool(cannot_mount()), reason=cannot_mount())


class Kafka(test_kafka.KafkaSuite):
    """With a short ``message.timeout.ms``, since librdkafka itself would wait for the broker otherwise."""

    def new_system(self) -> Any:
        self.cluster = broker_to_kill()
        (self.server,) = self.cluster.brokers
        return super().new_system()

    def make(self, **more: Any) -> TwoPhaseCommitSink:
        settings = {**self.system.arguments()["settings"], "message.timeout.ms": 3_000}
        return super().make(settings=settings, **more)


SUITES: dict[str, tuple[Any, ...]] = {
    "postgres-two_phase": (test_postgres.TestTwoPhase, PostgresSystem, lambda _: PostgresServer()),
    "postgres-staged": (test_postgres.TestStaged, PostgresSystem, lambda _: PostgresServer()),
    "mariadb-two_phase": (test_mysql.TestMySQLTwoPhase, MySQLSystem, MariaDBServer),
    "mariadb-staged": (test_mysql.TestMySQLStaged, MySQLSystem, MariaDBServer),
    "files": (test_files.TestJson,),
    "s3": (test_files.TestS3, S3System, S3Server),
    "write-ahead": (test_write_ahead.TestNeither,),
    "redis": (test_redis.TestIncrements, RedisSystem, RedisServer),
    "redis-cluster": (test_redis.TestIncrementsInACluster,),
    "rabbitmq": (test_rabbitmq.TestStream, RabbitSystem, RabbitServer),
    "kafka": (Kafka,),
}
"""A conformance suite, its system, and a function that starts a separate server in a folder."""


@pytest.fixture
def suite(request, tmp_path) -> Iterator[Any]:
    """An empty table, topic, folder or bucket, with the rows and the sink of its conformance suite."""
    name, has_own_server = request.param
    kind, *own = SUITES[name]
    begun = kind()
    with ExitStack() as stack:
        if has_own_server and own:
            system, new_server = own
            if why := system.missing():
                pytest.skip(why)
            begun.server = stack.enter_context(new_server(tmp_path / "server"))
        begun.begin(tmp_path)
        stack.callback(begun.system.stop)
        stack.callback(close_all)
        if has_own_server and own:
            begun.system.close()  # its connection would not survive the server
        if isinstance(begun.server, RabbitServer):
            begun.server.settle()
        yield begun


def on(*names: str, slow: Sequence[str] = (), own: bool = True) -> pytest.MarkDecorator:
    """Runs a test on these of `SUITES`, with separate servers if the test changes them."""
    cases = []
    for name in (*names, *slow):
        marks = [pytest.mark.kafka, KILLS_BROKER] if name == "kafka" else []
        cases.append(pytest.param((name, own), marks=[*marks, pytest.mark.slow] if name in slow else marks, id=name))
    return pytest.mark.parametrize("suite", cases, indirect=True)


on_each = on(*(name for name in SUITES if name not in ("rabbitmq", "kafka")), own=False)
"""Kafka's queries are in test_kafka_jobs.py."""


class Query(SmallJob):
    """A query into a suite's sink.

    Attributes:
        sink: The sink's arguments, which the test may change between two runs.
        shift: Added to the numbers of a slot from now on.
        before: What happens, once, before the rows of a batch's slot are written.
    """

    def __init__(self, suite: Any, folder: Path | None = None, deadline_s: float = 60.0, **sink: Any) -> None:
        self._suite, self.sink = suite, sink
        self.shift: dict[int, int] = {}
        self.before: dict[tuple[int, int], Callable[[], object]] = {}
        checkpoint = (folder or suite.folder) / "checkpoint"
        super().__init__(
            checkpoint, lambda: [suite.make(**self.sink)], self._numbers, slots=SLOTS, deadline_s=deadline_s
        )

    def _numbers(self, batch: int, slot: int) -> pa.RecordBatch:
        self.before.pop((batch, slot), lambda: None)()
        rows: pa.RecordBatch = self._suite.make_rows(self.shift.get(slot, 0) + (batch * SLOTS + slot) * ROWS, ROWS)
        return rows


def numbers(*batches: int, slots: Sequence[int] = range(SLOTS)) -> Counter[int]:
    return Counter(
        (batch * SLOTS + slot) * ROWS + number for batch in batches for slot in slots for number in range(ROWS)
    )


def once_at(phase: Phase, batch: int, action: Callable[[], object]) -> Callable[[Phase, int], None]:
    left = [action]

    def listen(entered: Phase, of: int) -> None:
        if (entered, of) == (phase, batch) and left:
            left.pop()()

    return listen


# --- lost after the decision ------------------------------------------------------------------------------------------


def decided_and_lost(suite: Any, *lost: int) -> Query:
    """Decides batch 1, kills the driver before it has committed anything, and then loses these slots."""
    query = Query(suite)
    query.run(0)
    query.kill(1, Phase.FINISHING)
    assert Counter(suite.visible()) == numbers(0)
    for handle in query.decision(1).handles:
        assert handle.slot not in lost or suite.expire(handle), "the system would not give it up"
    return query


@on_each
@pytest.mark.parametrize(
    "lost", [pytest.param((0, 1), id="whole"), pytest.param((1,), id="part", marks=pytest.mark.slow)]
)
def test_what_is_lost_of_a_decided_batch_is_written_again(suite, lost):
    query = decided_and_lost(suite, *lost)
    before = {handle.slot: handle for handle in query.decision(1).handles}
    healed, following = query.run(1, 2)
    assert (healed.recovered, healed.healed, following.healed) == (True, len(lost), 0)
    assert Counter(suite.visible()) == numbers(0, 1, 2)
    assert not suite.system.left_open()
    for handle in query.decision(1).handles:
        assert (handle == before[handle.slot]) == (handle.slot not in lost)
        assert handle.evidence == before[handle.slot].evidence


@on_each
def test_a_replay_that_gives_other_rows_stops_the_query_and_says_what_is_missing(suite):
    query = decided_and_lost(suite, 1)
    query.shift[1] = 1_000_000
    name = suite.make().name
    for _ in range(2):  # a second start fails in the same way, with the same message
        with pytest.raises(TransactionLostError) as caught:
            query.run(1)
        assert caught.value.details["lost"] == ((name, 1, ROWS),)
        assert caught.value.details["differing"] == ((name, 1),)
        assert caught.value.details["same_rows"] is False
        assert caught.value.details["offsets"] == query.decision(1).offsets
        assert Counter(suite.visible()) == numbers(0) + numbers(1, slots=[0])
        # MariaDB drops the staging table of the committed slot when the batch is concluded.
        committed = str(dict(query.decision(1).handles[0].transaction).get("transaction", "")).rpartition(".")[2]
        assert [one for one in suite.system.left_open() if not committed or committed not in one] == []
    query.shift.clear()  # the batch is healed as soon as its input is back
    query.run(1, 2)
    assert Counter(suite.visible()) == numbers(0, 1, 2)


# --- below exactly-once -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("guarantee", [Guarantee.AT_LEAST_ONCE, Guarantee.AT_MOST_ONCE])
@on(*("postgres-two_phase", "mariadb-two_phase", "files", "s3", "write-ahead", "redis", "redis-cluster"), own=False)
def test_a_run_that_is_killed_between_two_slots_doubles_or_misses_rows(suite, guarantee):
    def die() -> None:
        raise Killed

    query = Query(suite, guarantee=guarantee)
    query.run(0)
    query.before[1, 1] = die
    with pytest.raises(Killed):
        query.run(1)
    query.run(1, 2)
    again = numbers(1) if guarantee is Guarantee.AT_LEAST_ONCE else numbers()
    assert Counter(suite.visible()) == numbers(0, 2) + numbers(1, slots=[0]) + again


# --- a server stops while a batch is being written or finished, and starts again --------------------------------------


@contextmanager
def once_logged(words: str, action: Callable[[], object]) -> Iterator[list[str]]:
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
def test_a_server_that_is_away_while_slots_are_prepared(suite, crash):
    """The server is restarted once the run has found that it cannot even undo what it has prepared."""
    query = Query(suite)
    query.before[1, 1] = suite.server.kill if crash else suite.server.stop
    with once_logged("is not undone yet", suite.server.start) as lines:
        query.run(0, 1, 2)
    assert Counter(suite.visible()) == numbers(0, 1, 2)
    assert list(suite.system.left_open()) == []
    assert sum("Waiting for up to 60 s" in line for line in lines) == 1
    assert sum("Continuing after" in line for line in lines) == 1


@on(
    "postgres-two_phase",
    slow=["kafka", "postgres-staged", "mariadb-two_phase", "mariadb-staged", "redis", "s3", "rabbitmq"],
)
def test_a_server_that_is_away_while_a_batch_is_finished(suite):
    with once_logged("Waiting for up to 60 s: batch 1 is decided", suite.server.start):
        Query(suite).run(0, 1, 2, listener=once_at(Phase.FINISHING, 1, suite.server.kill))
    assert Counter(suite.visible()) == numbers(0, 1, 2)
    assert list(suite.system.left_open()) == []


@on("postgres-two_phase", slow=["mariadb-staged"])
def test_a_server_that_stays_away(suite):
    query = Query(suite, deadline_s=1.0)
    query.before[1, 1] = suite.server.kill
    with pytest.raises(PrepareError, match=r"tried \d+ times in [0-9]+ s") as caught:
        query.run(0, 1)
    assert "check whether the server is up" in caught.value.next_step.lower()
    suite.server.start()
    assert Counter(suite.visible()) == numbers(0)
    query.run(1, 2)
    assert Counter(suite.visible()) == numbers(0, 1, 2)
    assert list(suite.system.left_open()) == []


@on("postgres-staged", "mariadb-staged")
def test_a_server_has_no_connection_left(suite):
    query, taken = Query(suite), list[Any]()
    if isinstance(suite.server, PostgresServer):
        suite.server.settings["max_connections"] = "12"
        suite.server.restart()
        words = "too many clients"
    else:
        suite.system.ask("SET GLOBAL max_connections = 12")
        words = "1040"

    def take_all() -> None:
        close_all()  # otherwise, the sink would reuse the first slot's connection
        with suppress(psycopg.OperationalError, pymysql.err.OperationalError):
            while True:
                postgres = isinstance(suite.server, PostgresServer)
                taken.append(psycopg.connect(suite.server.conninfo()) if postgres else suite.system.connect())

    query.before[1, 1] = take_all
    with once_logged("Waiting for up to", lambda: [one.close() for one in taken]) as lines:
        query.run(0, 1, 2)
    assert words in "".join(lines)
    assert Counter(suite.visible()) == numbers(0, 1, 2)


@needs_disk
@pytest.mark.parametrize("kind", [test_files.TestJson, test_write_ahead.TestNeither])
def test_a_full_disk_under_the_rows(kind, tmp_path):
    suite, disk = kind(), SmallDisk(tmp_path / "disk", 1)
    try:
        suite.begin(disk.folder)
        query = Query(suite, tmp_path if kind is test_files.TestJson else disk.folder)
        query.before[1, 1] = disk.fill
        with once_logged("Waiting for up to 60 s", disk.free) as lines:
            query.run(0, 1, 2)
        assert "record" not in lines[0], "it was the rows that had no room"
        assert Counter(suite.visible()) == numbers(0, 1, 2)
        assert suite.system.left_open() == []
    finally:
        disk.close()


@needs_disk
@on("files")
@pytest.mark.parametrize("phase", [Phase.DECIDING, Phase.CLAIMING])
def test_a_full_disk_under_the_log(suite, tmp_path, phase):
    disk = SmallDisk(tmp_path / "disk", 1)
    try:
        query = Query(suite, disk.folder)
        query.run(0)
        with once_logged("of the decision log could not be written", disk.free):
            query.run(1, 2, listener=once_at(phase, 1, disk.fill))
        assert Counter(suite.visible()) == numbers(0, 1, 2)
        short = Query(suite, disk.folder, deadline_s=1.0)
        short.query = query.query
        with pytest.raises(LogError, match="No space left"):
            short.run(3, listener=once_at(phase, 3, disk.fill))
        assert Counter(suite.visible()) == numbers(0, 1, 2)
        disk.free()
        query.run(3)
        assert Counter(suite.visible()) == numbers(0, 1, 2, 3)
    finally:
        disk.close()


# --- a server or folder was restored from an older state: rows that readers saw are gone ------------------------------


def copy(source: Path, target: Path) -> None:
    target.mkdir(exist_ok=True)
    subprocess.run(["find", str(target), "-mindepth", "1", "-delete"], check=True)
    subprocess.run(["cp", "-a", f"{source}/.", str(target)], check=True)


@contextmanager
def data_at_rest(suite: Any) -> Iterator[Path]:
    if suite.server is None:
        yield suite.system.folder
        return
    suite.system.close()
    suite.server.stop()
    yield suite.server.folder
    suite.server.start()


def save(suite: Any) -> None:
    with data_at_rest(suite) as data:
        copy(data, suite.folder / "saved")


def put_back(suite: Any) -> None:
    with data_at_rest(suite) as data:
        copy(suite.folder / "saved", data)


@on("postgres-two_phase", "mariadb-staged", "redis", "files", slow=["postgres-staged", "mariadb-two_phase", "rabbitmq"])
def test_a_start_finds_what_is_missing_and_goes_on_when_it_is_told_to(suite):
    query, name = Query(suite), suite.make().name
    query.run(0)
    save(suite)
    query.run(1, 2)
    put_back(suite)
    for accepted in ({}, {name: 1}):  # the batch up to which a sink's losses are accepted
        query.accept_lost = accepted
        with pytest.raises(StaleServerError) as caught:
            query.run(3)
        missing = [batch for batch in (1, 2) if batch > accepted.get(name, -1)]
        assert caught.value.details["missing"] == {name: missing}
        assert f"accept_lost_batches={ {name: 2} }" in caught.value.next_step
        assert Counter(suite.visible()) == numbers(0)
    query.accept_lost = {name: 3}
    with pytest.raises(ConfigurationError, match="batch 3 is next"):
        query.run(3)
    query.accept_lost = {name: 2}
    query.run(3, 4)
    query.accept_lost = {}
    query.run(5)
    assert Counter(suite.visible()) == numbers(0, 3, 4, 5)


@on("postgres-two_phase", "files", slow=["mariadb-staged", "redis"])
def test_a_commit_alone_that_is_missing_is_made_again(suite, caplog):
    query = Query(suite)
    query.run(0)
    query.run(1, listener=once_at(Phase.FINISHING, 1, lambda: save(suite)))
    put_back(suite)
    assert Counter(suite.visible()) == numbers(0)
    with caplog.at_level(logging.WARNING, "sparkonce"):
        query.run(2)
    assert "has committed it again" in caplog.text
    assert Counter(suite.visible()) == numbers(0, 1, 2)


@on("postgres-staged", slow=["mariadb-two_phase"])
def test_a_server_that_goes_back_under_a_run_stops_it(suite):
    query, name = Query(suite), suite.make().name
    query.run(0)
    save(suite)
    with pytest.raises(StaleServerError) as caught:
        query.run(1, 2, 3, listener=once_at(Phase.WRITING, 3, lambda: put_back(suite)))
    assert caught.value.details["missing"] == {name: [2]}
    with pytest.raises(StaleServerError) as caught:
        query.run(3)
    assert caught.value.details["missing"] == {name: [1, 2]}
    query.accept_lost = {name: 2}
    query.run(3, 4)
    assert Counter(suite.visible()) == numbers(0, 3, 4)


@on("files", slow=["postgres-two_phase"])
def test_what_changed_with_the_sink_itself_stops_nothing(suite, tmp_path):
    """For example a lower guarantee for a while, or restoring the log and the server together."""
    query = Query(suite)
    query.run(0, 1)
    save(suite)
    copy(query.checkpoint, tmp_path / "log")
    query.run(2)
    query.sink = {"guarantee": Guarantee.AT_LEAST_ONCE}
    query.run(3)
    query.sink = {}
    query.run(4)
    query.run(5)
    assert Counter(suite.visible()) == numbers(0, 1, 2, 3, 4, 5)
    put_back(suite)
    copy(tmp_path / "log", query.checkpoint)
    query.run(2, 3)
    assert Counter(suite.visible()) == numbers(0, 1, 2, 3)


@on("files")
def test_manifests_that_were_not_written_are_not_missed(suite):
    query = Query(suite, manifest=False)
    query.run(0, 1)
    query.sink = {}
    query.run(2)
    query.run(3)
    assert Counter(suite.visible()) == numbers(0, 1, 2, 3)


@on("redis")
def test_a_ledger_that_may_have_expired_is_not_missed(suite):
    """A ledger may have expired after half of its time to live, or sooner if an earlier run set a shorter time."""
    query = Query(suite, staging_ttl_s=1, ledger_ttl_s=2)
    query.run(0, 1)
    (client,) = suite.system.clients
    (ledger,) = client.scan_iter("sparkonce:*", _type="hash")
    client.delete(ledger)  # as its expiry would
    query.sink = {}
    query.run(2)
    client.delete(ledger)
    with pytest.raises(StaleServerError):
        query.run(3)
