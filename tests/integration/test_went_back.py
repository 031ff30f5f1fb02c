"""A server or folder that went back to an older state under a query: its data are copied, and put back later.

What readers have seen is gone there, and neither Spark nor the log would say so. The query stops, and says what it is.
"""

from __future__ import annotations

import logging
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from conformance import test_files, test_mysql, test_postgres, test_redis
from mariadb_witness import need_mariadb
from small_job import SmallJob
from sparkonce.errors import ConfigurationError, StaleServerError
from sparkonce.guarantees import Guarantee
from sparkonce.protocol.state import Phase
from sparkonce.rig.servers.mariadb import MariaDBServer
from sparkonce.rig.servers.postgres import PostgresServer, find_postgres
from sparkonce.rig.servers.process import Server, find_program
from sparkonce.rig.servers.redis import RedisServer
from sparkonce.sinks.postgres.connection import close_all

SLOTS, ROWS = 2, 10


class OnServer:
    """A server of the test's own, whose data folder can be copied and put back."""

    server: Server

    def save(self, to: Path) -> None:
        self._replace(self.server.folder, to)

    def put_back(self, copy: Path) -> None:
        self._replace(copy, self.server.folder)

    def _replace(self, source: Path, target: Path) -> None:
        self.server.stop()
        copy(source, target)
        self.server.start()


class PostgresTwoPhase(OnServer, test_postgres.TestTwoPhase):
    def begin(self, _: Path, stack: ExitStack) -> None:
        if find_postgres() is None:
            pytest.skip("PostgreSQL is not installed (apt install postgresql)")
        self.settle(stack.enter_context(PostgresServer()))
        stack.callback(close_all)


class PostgresStaged(PostgresTwoPhase, test_postgres.TestStaged):
    settings = test_postgres.TestStaged.settings


class MariaDBTwoPhase(OnServer, test_mysql.TestMySQLTwoPhase):
    def begin(self, folder: Path, stack: ExitStack) -> None:
        need_mariadb()
        self.server = stack.enter_context(MariaDBServer(folder / "server"))
        self.settle(self.server)


class MariaDBStaged(MariaDBTwoPhase):
    commit = "staged"


class Redis(OnServer, test_redis.TestIncrements):
    def begin(self, folder: Path, stack: ExitStack) -> None:
        if find_program("redis-server") is None:
            pytest.skip("redis-server is not installed")
        self.server = stack.enter_context(RedisServer(folder / "server"))
        self.settle(self.server)
        stack.callback(self.everywhere.close)


class Files(test_files.TestJson):
    def begin(self, folder: Path, _: ExitStack) -> None:
        folder.mkdir()
        self.settle(folder)

    def save(self, to: Path) -> None:
        copy(self.root, to)

    def put_back(self, saved: Path) -> None:
        copy(saved, self.root)


def copy(source: Path, target: Path) -> None:
    """With owners and links, in place of what is there."""
    if target.exists():
        shutil.rmtree(target)
    subprocess.run(["cp", "-a", str(source), str(target)], check=True)


def of(*first_tier: type[Any], slow: Sequence[type[Any]] = ()) -> pytest.MarkDecorator:
    """Runs a test on these; on the slow ones in the second tier alone."""
    cases = [*first_tier, *(pytest.param(kind, marks=pytest.mark.slow) for kind in slow)]
    return pytest.mark.parametrize("place", cases, indirect=True, ids=lambda kind: kind.__name__)


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    made = request.param()
    with ExitStack() as stack:
        made.begin(tmp_path / "place", stack)
        yield made


def job_into(place: Any, folder: Path, **sink: Any) -> SmallJob:
    def rows(batch: int, slot: int) -> pa.RecordBatch:
        made: pa.RecordBatch = place.make_rows((batch * SLOTS + slot) * ROWS, ROWS)
        return made

    return SmallJob(folder / "checkpoint", lambda: [place.make(**sink)], rows, slots=SLOTS, deadline_s=60.0)


def numbers(*batches: int) -> Counter[int]:
    return Counter(number for batch in batches for number in range(batch * SLOTS * ROWS, (batch + 1) * SLOTS * ROWS))


def once_at(phase: Phase, batch: int, action: Callable[[], object]) -> Callable[[Phase, int], None]:
    left = [action]

    def listen(entered: Phase, of: int) -> None:
        if (entered, of) == (phase, batch) and left:
            left.pop()()

    return listen


@of(PostgresTwoPhase, MariaDBStaged, Redis, Files, slow=[PostgresStaged, MariaDBTwoPhase])
def test_a_start_finds_what_is_missing_and_goes_on_when_it_is_told_to(place: Any, tmp_path: Path) -> None:
    job, saved, name = job_into(place, tmp_path), tmp_path / "saved", place.make().name
    job.run(0)
    place.save(saved)
    job.run(1, 2)
    place.put_back(saved)
    for accepted in ({}, {name: 1}):  # what is accepted says up to where
        job.accept_lost = accepted
        with pytest.raises(StaleServerError) as caught:
            job.run(3)
        missing = [batch for batch in (1, 2) if batch > accepted.get(name, -1)]
        assert caught.value.details["missing"] == {name: missing}
        assert f"accept_lost_batches={ {name: 2} }" in caught.value.next_step
        assert Counter(place.visible()) == numbers(0)
    job.accept_lost = {name: 3}
    with pytest.raises(ConfigurationError, match="batch 3 is next"):
        job.run(3)
    job.accept_lost = {name: 2}
    job.run(3, 4)
    job.accept_lost = {}
    job.run(5)
    assert Counter(place.visible()) == numbers(0, 3, 4, 5)


@of(PostgresTwoPhase, Files, slow=[MariaDBStaged, Redis])
def test_a_commit_alone_that_is_missing_is_made_again(
    place: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    job, saved = job_into(place, tmp_path), tmp_path / "saved"
    job.run(0)
    job.run(1, listener=once_at(Phase.FINISHING, 1, lambda: place.save(saved)))
    place.put_back(saved)
    assert Counter(place.visible()) == numbers(0)
    with caplog.at_level(logging.WARNING, "sparkonce"):
        job.run(2)
    assert "has committed it again" in caplog.text
    assert Counter(place.visible()) == numbers(0, 1, 2)


@of(PostgresStaged, slow=[MariaDBTwoPhase])
def test_a_server_that_goes_back_under_a_run_stops_it(place: Any, tmp_path: Path) -> None:
    job, saved, name = job_into(place, tmp_path), tmp_path / "saved", place.make().name
    job.run(0)
    place.save(saved)
    with pytest.raises(StaleServerError) as caught:
        job.run(1, 2, 3, listener=once_at(Phase.WRITING, 3, lambda: place.put_back(saved)))
    assert caught.value.details["missing"] == {name: [2]}
    with pytest.raises(StaleServerError) as caught:
        job.run(3)
    assert caught.value.details["missing"] == {name: [1, 2]}
    job.accept_lost = {name: 2}
    job.run(3, 4)
    assert Counter(place.visible()) == numbers(0, 3, 4)


@of(Files, slow=[PostgresTwoPhase])
def test_what_changed_with_the_sink_itself_stops_nothing(place: Any, tmp_path: Path) -> None:
    """A lower guarantee and back, and log and server restored together."""
    job, saved = job_into(place, tmp_path), tmp_path / "saved"
    job.run(0, 1)
    place.save(saved)
    copy(job.checkpoint, tmp_path / "log")

    def make(**sink: Any) -> None:
        job._make_sinks = lambda: [place.make(**sink)]

    job.run(2)
    make(guarantee=Guarantee.AT_LEAST_ONCE)
    job.run(3)
    make()
    job.run(4)
    job.run(5)
    assert Counter(place.visible()) == numbers(0, 1, 2, 3, 4, 5)
    place.put_back(saved)
    copy(tmp_path / "log", job.checkpoint)
    job.run(2, 3)
    assert Counter(place.visible()) == numbers(0, 1, 2, 3)


def test_manifests_that_were_not_written_are_not_missed(tmp_path: Path) -> None:
    place = Files()
    place.begin(tmp_path / "place", ExitStack())
    plain, listed = job_into(place, tmp_path, manifest=False), job_into(place, tmp_path)
    listed.query = plain.query
    plain.run(0, 1)
    listed.run(2)
    listed.run(3)
    assert Counter(place.visible()) == numbers(0, 1, 2, 3)


def test_a_ledger_that_may_have_expired_is_not_missed(tmp_path: Path) -> None:
    """Of half its time to live nobody is sure; and a run that gave it less lets it expire before that."""
    place = Redis()
    with ExitStack() as stack:
        place.begin(tmp_path / "place", stack)
        short, long = job_into(place, tmp_path, staging_ttl_s=1, ledger_ttl_s=2), job_into(place, tmp_path)
        long.query = short.query
        short.run(0, 1)
        (ledger,) = place.everywhere.clients[0].scan_iter("sparkonce:*", _type="hash")
        place.everywhere.clients[0].delete(ledger)  # as it would have done by itself
        long.run(2)
        place.everywhere.clients[0].delete(ledger)
        with pytest.raises(StaleServerError):
            long.run(3)
