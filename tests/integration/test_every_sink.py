"""Whole queries into each sink except Kafka's, with its real server and the real driver, without Spark.

If a server has lost part of a decided batch, that part is written again, or the query stops and reports exactly what is
missing. Below exactly-once, a killed run duplicates or loses rows only as its guarantee allows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from conformance import test_files, test_mysql, test_postgres, test_redis, test_write_ahead
from conformance.system_suite import SystemSuite
from small_job import Killed, SmallJob
from sparkonce.errors import TransactionLostError
from sparkonce.guarantees import Guarantee
from sparkonce.protocol.state import Phase

SLOTS, ROWS = 2, 10
"""Slots of a batch, and rows of a slot."""


# --- each system -----------------------------------------------------------------------------------------------------

KINDS: dict[str, type[SystemSuite]] = {
    "postgres two-phase": test_postgres.TestTwoPhase,
    "postgres staged": test_postgres.TestStaged,
    "mariadb two-phase": test_mysql.TestMySQLTwoPhase,
    "mariadb staged": test_mysql.TestMySQLStaged,
    "files": test_files.TestJson,
    "files on S3": test_files.TestS3,
    "write-ahead": test_write_ahead.TestNeither,
    "redis": test_redis.TestIncrements,
    "redis cluster": test_redis.TestIncrementsInACluster,
}


@pytest.fixture(params=KINDS)
def suite(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SystemSuite]:
    """An empty table, folder or bucket, with the rows and the sink of its conformance suite."""
    made = KINDS[request.param]()
    made.begin(tmp_path)
    yield made
    made.system.stop()


class Query:
    """A query into a table, folder or bucket.

    Attributes:
        shift: Added to the numbers of a slot when the plan is run from now on.
        die_before: The batch and slot before whose rows the driver dies.
    """

    def __init__(self, suite: SystemSuite, folder: Path, guarantee: Guarantee = Guarantee.EXACTLY_ONCE) -> None:
        self._suite = suite
        self.shift: dict[int, int] = {}
        self.die_before: tuple[int, int] | None = None
        self.job = SmallJob(
            folder / "checkpoint", lambda: [suite.make(guarantee=guarantee)], self._rows, slots=SLOTS, deadline_s=60.0
        )

    def _rows(self, batch: int, slot: int) -> pa.RecordBatch:
        if (batch, slot) == self.die_before:
            raise Killed
        rows: pa.RecordBatch = self._suite.make_rows(self.shift.get(slot, 0) + (batch * SLOTS + slot) * ROWS, ROWS)
        return rows


def numbers(*batches: int, slots: Sequence[int] = range(SLOTS)) -> Counter[int]:
    return Counter(
        (batch * SLOTS + slot) * ROWS + number for batch in batches for slot in slots for number in range(ROWS)
    )


# --- lost after the decision -----------------------------------------------------------------------------------------


def decided_and_lost(suite: SystemSuite, query: Query, *lost: int) -> None:
    """Decides batch 1, kills the driver before it has committed anything, and then loses these slots."""
    query.job.run(0)
    query.job.kill(1, Phase.FINISHING)
    assert Counter(suite.visible()) == numbers(0)
    for handle in query.job.decision(1).handles:
        assert handle.slot not in lost or suite.expire(handle), "the system would not give it up"


@pytest.mark.parametrize(
    "lost", [pytest.param((0, 1), id="whole"), pytest.param((1,), id="part", marks=pytest.mark.slow)]
)
def test_what_is_lost_of_a_decided_batch_is_written_again(
    suite: SystemSuite, tmp_path: Path, lost: tuple[int, ...]
) -> None:
    query = Query(suite, tmp_path)
    decided_and_lost(suite, query, *lost)
    before = {handle.slot: handle for handle in query.job.decision(1).handles}
    healed, following = query.job.run(1, 2)
    assert (healed.recovered, healed.healed, following.healed) == (True, len(lost), 0)
    assert Counter(suite.visible()) == numbers(0, 1, 2)
    assert not suite.system.left_open()
    for handle in query.job.decision(1).handles:
        assert (handle == before[handle.slot]) == (handle.slot not in lost)
        assert handle.evidence == before[handle.slot].evidence


def test_a_replay_that_gives_other_rows_stops_the_query_and_says_what_is_missing(
    suite: SystemSuite, tmp_path: Path
) -> None:
    query = Query(suite, tmp_path)
    decided_and_lost(suite, query, 1)
    query.shift[1] = 1_000_000
    name = suite.make().name
    for _ in range(2):  # a second start has the same result and the same message
        with pytest.raises(TransactionLostError) as caught:
            query.job.run(1)
        assert caught.value.details["lost"] == ((name, 1, ROWS),)
        assert caught.value.details["differing"] == ((name, 1),)
        assert caught.value.details["same_rows"] is False
        assert caught.value.details["offsets"] == query.job.decision(1).offsets
        assert Counter(suite.visible()) == numbers(0) + numbers(1, slots=[0])
        # MariaDB drops the staging table of the committed slot when the batch is concluded.
        committed = str(dict(query.job.decision(1).handles[0].transaction).get("transaction", "")).rpartition(".")[2]
        assert [one for one in suite.system.left_open() if not committed or committed not in one] == []
    query.shift.clear()  # the batch is healed as soon as its input is back
    query.job.run(1, 2)
    assert Counter(suite.visible()) == numbers(0, 1, 2)


# --- below exactly-once ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("guarantee", [Guarantee.AT_LEAST_ONCE, Guarantee.AT_MOST_ONCE])
@pytest.mark.parametrize(
    "suite",
    [kind for kind in KINDS if not kind.endswith("staged")],  # below exactly-once nothing is staged
    indirect=True,
)
def test_a_run_that_is_killed_between_two_slots_doubles_or_misses_rows(
    suite: SystemSuite, tmp_path: Path, guarantee: Guarantee
) -> None:
    query = Query(suite, tmp_path, guarantee)
    query.job.run(0)
    query.die_before = 1, 1
    with pytest.raises(Killed):
        query.job.run(1)
    query.die_before = None
    query.job.run(1, 2)
    again = numbers(1) if guarantee is Guarantee.AT_LEAST_ONCE else numbers()
    assert Counter(suite.visible()) == numbers(0, 2) + numbers(1, slots=[0]) + again
