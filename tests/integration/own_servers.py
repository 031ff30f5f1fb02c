"""Conformance suites on servers that no other test uses, so that a test may kill them and restore older data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from conformance import test_files, test_kafka, test_mysql, test_postgres, test_rabbitmq, test_redis
from shared_servers import KILLS_BROKER, broker_to_kill
from sparkonce.protocol.state import Phase
from sparkonce.sink import TwoPhaseCommitSink
from sparkonce.sinks.sql.postgres.connection import close_all
from sparkonce_lab.rig.process import Server
from sparkonce_lab.rig.servers.mariadb import MariaDBServer
from sparkonce_lab.rig.servers.postgres import PostgresServer
from sparkonce_lab.rig.servers.rabbitmq import RabbitServer
from sparkonce_lab.rig.servers.redis import RedisServer
from sparkonce_lab.rig.servers.s3 import S3Server
from sparkonce_lab.systems.base import System
from sparkonce_lab.systems.mysql import MySQLSystem
from sparkonce_lab.systems.postgres import PostgresSystem
from sparkonce_lab.systems.rabbitmq import RabbitSystem
from sparkonce_lab.systems.redis import RedisSystem
from sparkonce_lab.systems.s3 import S3System

SLOTS, ROWS = 2, 10


class Kafka(test_kafka.KafkaSuite):
    """With a short ``message.timeout.ms``, since librdkafka itself would wait for the broker otherwise."""

    def new_system(self) -> Any:
        self.cluster = broker_to_kill()
        (self.server,) = self.cluster.brokers
        return super().new_system()

    def make(self, **more: Any) -> TwoPhaseCommitSink:
        settings = {**self.system.arguments()["settings"], "message.timeout.ms": 3_000}
        return super().make(settings=settings, **more)


SUITES: dict[str, tuple[type[Any], type[System] | None, Callable[[Path], Server] | None]] = {
    "postgres-two_phase": (test_postgres.TestTwoPhase, PostgresSystem, lambda _: PostgresServer()),
    "postgres-staged": (test_postgres.TestStaged, PostgresSystem, lambda _: PostgresServer()),
    "mariadb-two_phase": (test_mysql.TestMySQLTwoPhase, MySQLSystem, MariaDBServer),
    "mariadb-staged": (test_mysql.TestMySQLStaged, MySQLSystem, MariaDBServer),
    "redis": (test_redis.TestIncrements, RedisSystem, RedisServer),
    "s3": (test_files.TestS3, S3System, S3Server),
    "rabbitmq": (test_rabbitmq.TestStream, RabbitSystem, RabbitServer),
    "files": (test_files.TestJson, None, None),
    "kafka": (Kafka, None, None),
}
"""A suite, its system, and what starts the server in a folder."""


@contextmanager
def on_own_server(name: str, folder: Path) -> Iterator[Any]:
    """Begins one of `SUITES` in this folder."""
    kind, system, new_server = SUITES[name]
    suite = kind()
    with ExitStack() as stack:
        if system is not None and new_server is not None:
            if why := system.missing():
                pytest.skip(why)
            suite.server = stack.enter_context(new_server(folder / "server"))
        suite.begin(folder)
        stack.callback(suite.system.stop)
        stack.callback(close_all)
        if new_server is not None:
            suite.system.close()  # its connection would not survive the server
        if isinstance(suite.server, RabbitServer):
            suite.server.settle()
        yield suite


@pytest.fixture
def suite(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    with on_own_server(request.param, tmp_path) as begun:
        yield begun


def on(*first_tier: str, slow: Sequence[str] = ()) -> pytest.MarkDecorator:
    """Runs a test on these of `SUITES`, and on the slow ones only in the second tier."""
    marks = {"kafka": [pytest.mark.kafka, KILLS_BROKER]}
    cases = [
        *(pytest.param(name, marks=marks.get(name, ())) for name in first_tier),
        *(pytest.param(name, marks=[*marks.get(name, ()), pytest.mark.slow]) for name in slow),
    ]
    return pytest.mark.parametrize("suite", cases, indirect=True)


def numbers(*batches: int) -> Counter[int]:
    """Returns the rows of these batches, once each."""
    return Counter(number for batch in batches for number in range(batch * SLOTS * ROWS, (batch + 1) * SLOTS * ROWS))


def once_at(phase: Phase, batch: int, action: Callable[[], object]) -> Callable[[Phase, int], None]:
    """Listens to a run, and calls the action the first time that this batch enters the phase."""
    left = [action]

    def listen(entered: Phase, of: int) -> None:
        if (entered, of) == (phase, batch) and left:
            left.pop()()

    return listen
