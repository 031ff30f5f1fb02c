"""Whole queries into each sink but Kafka's, on its real server, with the real driver and without Spark.

What a server has lost of a decided batch is written again, or the query stops and says exactly what is missing. Below
exactly-once a killed run doubles or loses rows as its guarantee says, and no others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from conformance import test_files, test_files_s3, test_mysql, test_postgres, test_redis, test_write_ahead
from mariadb_witness import shared_server
from postgres_witness import prepared, staging_tables
from shared_servers import postgres_server, redis_cluster, redis_server, s3_server
from small_job import Killed, SmallJob
from sparkonce.errors import TransactionLostError
from sparkonce.guarantees import Guarantee
from sparkonce.protocol.state import Phase

SLOTS, ROWS = 2, 10
"""Slots of a batch, and rows of a slot."""


# --- each system -----------------------------------------------------------------------------------------------------


class PostgresTwoPhase(test_postgres.TestTwoPhase):
    def begin(self, _: Path) -> None:
        self.settle(postgres_server())

    def left_open(self) -> Sequence[object]:
        return [*prepared(self.server), *staging_tables(self.server)]


class PostgresStaged(test_postgres.TestStaged):
    begin, left_open = PostgresTwoPhase.begin, PostgresTwoPhase.left_open


class MariaDBTwoPhase(test_mysql.TestMySQLTwoPhase):
    def begin(self, _: Path) -> None:
        self.settle(shared_server())
        self.of_others = set(self.witness.xids())

    def left_open(self) -> Sequence[object]:
        return sorted(set(self.witness.xids()) - self.of_others)


class MariaDBStaged(test_mysql.TestMySQLStaged):
    def begin(self, _: Path) -> None:
        self.settle(shared_server())

    def left_open(self) -> Sequence[object]:
        copies = [copy.decode() for (copy,) in self.witness.rows("SELECT copy FROM sparkonce_commits")]
        return sorted(set(self.witness.stages()) - {f"sparkonce_stage_{copy}" for copy in copies})


class Files(test_files.TestJson):
    def begin(self, folder: Path) -> None:
        self.settle(folder)

    def left_open(self) -> Sequence[object]:
        return list((self.root / ".sparkonce" / "held").iterdir())


class FilesOnS3(test_files_s3.TestParquet):
    def begin(self, _: Path) -> None:
        self.settle(s3_server())

    def left_open(self) -> Sequence[object]:
        return self.bucket.uploads()


class WriteAhead(test_write_ahead.TestNeither):
    def begin(self, folder: Path) -> None:
        self.settle(folder)

    def left_open(self) -> Sequence[object]:
        folder = self.root / "checkpoint" / "sparkonce-write-ahead" / "write-ahead"
        return [*folder.glob("prepared/*"), *folder.glob("started/*")]


class Redis(test_redis.TestIncrements):
    def begin(self, _: Path) -> None:
        self.settle(redis_server())

    def left_open(self) -> Sequence[object]:
        return sorted(self.everywhere.own_keys("list"))


class RedisInACluster(test_redis.TestIncrementsInACluster):
    left_open = Redis.left_open

    def begin(self, _: Path) -> None:
        self.cluster = redis_cluster()
        self.settle(*self.cluster.nodes)


KINDS: tuple[type[Any], ...] = (
    PostgresTwoPhase,
    PostgresStaged,
    MariaDBTwoPhase,
    MariaDBStaged,
    Files,
    FilesOnS3,
    WriteAhead,
    Redis,
    RedisInACluster,
)


@pytest.fixture(params=KINDS, ids=lambda kind: kind.__name__)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """An empty table, folder, bucket: ``make`` gives a sink for it, and the others ask the system itself."""
    made = request.param()
    made.begin(tmp_path)
    return made


class Query:
    """A query into a place.

    Attributes:
        shift: Added to the numbers of a slot when the plan is run from now on.
        die_before: The batch and slot before whose rows the driver dies.
    """

    def __init__(self, place: Any, folder: Path, guarantee: Guarantee = Guarantee.EXACTLY_ONCE) -> None:
        self._place = place
        self.shift: dict[int, int] = {}
        self.die_before: tuple[int, int] | None = None
        self.job = SmallJob(
            folder / "checkpoint", lambda: [place.make(guarantee=guarantee)], self._rows, slots=SLOTS, deadline_s=60.0
        )

    def _rows(self, batch: int, slot: int) -> pa.RecordBatch:
        if (batch, slot) == self.die_before:
            raise Killed
        rows: pa.RecordBatch = self._place.make_rows(self.shift.get(slot, 0) + (batch * SLOTS + slot) * ROWS, ROWS)
        return rows


def numbers(*batches: int, slots: Sequence[int] = range(SLOTS)) -> Counter[int]:
    return Counter(
        (batch * SLOTS + slot) * ROWS + number for batch in batches for slot in slots for number in range(ROWS)
    )


# --- lost after the decision -----------------------------------------------------------------------------------------


def decided_and_lost(place: Any, query: Query, *lost: int) -> None:
    """Batch 1 is decided, its driver dies before it has committed anything, and then these slots are lost."""
    query.job.run(0)
    query.job.kill(1, Phase.FINISHING)
    assert Counter(place.visible()) == numbers(0)
    for handle in query.job.decision(1).handles:
        assert handle.slot not in lost or place.expire(handle), "the system would not give it up"


@pytest.mark.parametrize(
    "lost", [pytest.param((0, 1), id="whole"), pytest.param((1,), id="part", marks=pytest.mark.drawn(3))]
)
def test_what_is_lost_of_a_decided_batch_is_written_again(place: Any, tmp_path: Path, lost: tuple[int, ...]) -> None:
    query = Query(place, tmp_path)
    decided_and_lost(place, query, *lost)
    before = {handle.slot: handle for handle in query.job.decision(1).handles}
    healed, following = query.job.run(1, 2)
    assert (healed.recovered, healed.healed, following.healed) == (True, len(lost), 0)
    assert Counter(place.visible()) == numbers(0, 1, 2)
    assert place.left_open() == []
    for handle in query.job.decision(1).handles:
        assert (handle == before[handle.slot]) == (handle.slot not in lost)
        assert handle.evidence == before[handle.slot].evidence


def test_a_replay_that_gives_other_rows_stops_the_query_and_says_what_is_missing(place: Any, tmp_path: Path) -> None:
    query = Query(place, tmp_path)
    decided_and_lost(place, query, 1)
    query.shift[1] = 1_000_000
    name = place.make().name
    for _ in range(2):  # a second start finds the same, and says the same
        with pytest.raises(TransactionLostError) as caught:
            query.job.run(1)
        assert caught.value.details["lost"] == ((name, 1, ROWS),)
        assert caught.value.details["differing"] == ((name, 1),)
        assert caught.value.details["same_rows"] is False
        assert caught.value.details["offsets"] == query.job.decision(1).offsets
        assert Counter(place.visible()) == numbers(0) + numbers(1, slots=[0])
        assert place.left_open() == []
    query.shift.clear()  # with its input back it heals, and nothing stood there that was in the way
    query.job.run(1, 2)
    assert Counter(place.visible()) == numbers(0, 1, 2)


# --- below exactly-once ----------------------------------------------------------------------------------------------

WEAKER = pytest.mark.parametrize(
    "place",
    [kind for kind in KINDS if kind not in (PostgresStaged, MariaDBStaged)],  # nothing is staged there
    indirect=True,
    ids=lambda kind: kind.__name__,
)


def killed_between_two_slots(place: Any, folder: Path, guarantee: Guarantee) -> Counter[int]:
    """What a reader finds of three batches, whose driver dies when one slot of the second is written."""
    query = Query(place, folder, guarantee)
    query.job.run(0)
    query.die_before = 1, 1
    with pytest.raises(Killed):
        query.job.run(1)
    query.die_before = None
    query.job.run(1, 2)
    return Counter(place.visible())


@WEAKER
def test_at_least_once_doubles_what_a_killed_run_had_written(place: Any, tmp_path: Path) -> None:
    found = killed_between_two_slots(place, tmp_path, Guarantee.AT_LEAST_ONCE)
    assert found == numbers(0, 1, 2) + numbers(1, slots=[0])


@WEAKER
def test_at_most_once_misses_what_a_killed_run_had_not_written(place: Any, tmp_path: Path) -> None:
    found = killed_between_two_slots(place, tmp_path, Guarantee.AT_MOST_ONCE)
    assert found == numbers(0, 2) + numbers(1, slots=[0])
