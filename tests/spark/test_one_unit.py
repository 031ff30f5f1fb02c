"""Kafka, PostgreSQL and files in one query, killed between everything that it does: the three agree batch by batch.

The short form kills at six points that lie between the three. The long form kills thirty times::

    pytest -m slow -s tests/spark/test_one_unit.py
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from postgres_witness import fresh_database, needs_postgres, running
from spark.faults import BEGIN, CONCLUDING, HALFWAY, PREPARED, WRITTEN
from spark.kills import FIRST, PHASES
from spark.one_unit import FILES, KAFKA, POSTGRES, TABLE, UnitJob
from spark.pipeline import PHASE
from sparkonce.embedded import Cluster
from sparkonce.protocol.state import Phase
from sparkonce.testing.servers.postgres import PostgresServer

pytestmark = [pytest.mark.kafka, pytest.mark.spark, needs_postgres]

WITHIN = (BEGIN, WRITTEN, PREPARED, HALFWAY, CONCLUDING)
Point = tuple[str, str]
"""A phase and nothing, or a point and the sink that is at it."""

SHORT: tuple[Point, ...] = (
    (PREPARED, FILES),
    (Phase.DECIDING.name, ""),
    (HALFWAY, KAFKA),
    (Phase.REPLAYING.name, ""),
    (CONCLUDING, POSTGRES),
    (HALFWAY, POSTGRES),
)
LONG: tuple[Point, ...] = (
    *((phase.name, "") for phase in PHASES if phase is not Phase.REPLAYING),
    (Phase.FINISHING.name, ""),
    (Phase.REPLAYING.name, ""),
    *((point, sink) for point in WITHIN for sink in (KAFKA, POSTGRES, FILES)),
    (HALFWAY, KAFKA),
    (PREPARED, POSTGRES),
    (CONCLUDING, FILES),
)


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    with running() as server:
        yield server


def test_killed_between_the_three(
    kafka: Cluster, postgres: PostgresServer, tmp_path: Path, say: Callable[[str], None]
) -> None:
    carry_out(kafka, postgres, tmp_path, SHORT, say)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("commit", ["two_phase", "staged"])
def test_killed_thirty_times(
    kafka: Cluster, postgres: PostgresServer, tmp_path: Path, commit: str, say: Callable[[str], None]
) -> None:
    assert len(LONG) == 30
    carry_out(kafka, postgres, tmp_path, LONG, say, more={"commit": commit})


def carry_out(
    kafka: Cluster,
    server: PostgresServer,
    folder: Path,
    points: Sequence[Point],
    say: Callable[[str], None],
    more: dict[str, object] | None = None,
) -> None:
    fresh_database(server, f"create table {TABLE} (id text, batch bigint)")
    with UnitJob(
        kafka.bootstrap,
        folder / "job",
        server.conninfo(),
        more=more,
        rows=1_000 * (len(points) + 3),
        again=False,
        rows_per_batch=1_000,
        plan="spark.plans:stateless",
        points=WITHIN,
        keep_batches=3,
    ) as job:
        for number, (point, sink) in enumerate(points, 1):
            before = len(job.desk.visits)
            due = job.decided() + 1
            told = {"sink": sink} if sink else {"phase": point}
            new = point not in FIRST

            def is_due(_: object, job: UnitJob = job, due: int = due, new: bool = new) -> bool:
                now = job.phase()
                return not new or (now is not None and now.told["batch"] >= due)

            hold = job.desk.hold(point if sink else PHASE, when=is_due, **told)
            run = job.start()
            hold.wait(run.check)
            decided = job.decided()
            run.kill()
            phase = next(one for one in reversed(job.desk.visits[before:]) if one.point == PHASE)
            outputs = job.outputs()
            early = {name: sum(batch > decided for batch, _ in rows) for name, rows in outputs.items()}
            assert set(early.values()) == {0}, f"seen before the decision, after the kill at {point} {sink}: {early}"
            say(
                f"kill {number:>2}: {point} {sink}, batch {phase.told['batch']}, decided {decided}, rows visible "
                f"{ {name: rows.total() for name, rows in outputs.items()} }, open {job.open()}"
            )
        job.start().finish()
        outputs = job.outputs()
        say(verdict(job, outputs, len(points)))
        assert outputs[KAFKA] == outputs[POSTGRES] == outputs[FILES], "the three do not agree batch by batch"
        assert sorted(key for _, key in outputs[KAFKA].elements()) == job.ids
        assert job.open() == dict.fromkeys(outputs, 0)


def verdict(job: UnitJob, outputs: dict[str, object], kills: int) -> str:
    batches = {name: len({batch for batch, _ in rows}) for name, rows in outputs.items()}  # type: ignore[attr-defined]
    totals = {name: rows.total() for name, rows in outputs.items()}  # type: ignore[attr-defined]
    return f"{kills} kills; rows {totals} of {len(job.ids)}, batches {batches}, left open {job.open()}"
