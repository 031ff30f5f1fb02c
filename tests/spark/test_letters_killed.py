"""Rows that Kafka and PostgreSQL refuse, in queries that are killed (SIGKILL of driver, JVM and workers)::

    pytest -m slow -s tests/spark/test_letters_killed.py

Three queries in one Spark, each of which is killed three times. Batch by batch, what a system holds and what it has
refused are all rows, once.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pyarrow.dataset as ds
import pytest

from postgres_witness import ask, needs_postgres, server_fixture
from spark.harness import PARTITIONS, Job, new_name, start_together
from spark.kills import Cell, strike
from spark.pipeline import KAFKA
from spark.plans import LARGE_EVERY
from spark.targets import Postgres, Rows
from sparkonce.files import whole_batches
from sparkonce.protocol.state import Phase
from sparkonce.rig.kafka import Cluster
from sparkonce.rig.servers.postgres import PostgresServer
from sparkonce.testing.kafka import create_topic
from striking.points import BEFORE_CONCLUDE, BEGIN, HALFWAY, PREPARED, WRITTEN

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(3600), needs_postgres]

server = server_fixture()

ROWS_PER_BATCH = 400
NAMES = {KAFKA: "kafka", "PostgresSink": "postgres"}
"""The sinks, by their kinds."""
ROUNDS: list[list[Cell]] = [
    [(PREPARED, {"sink": "refused-kafka"}), (Phase.FINISHING.name, {}), (WRITTEN, {"sink": "postgres"})],
    [(Phase.DECIDING.name, {}), (HALFWAY, {"sink": "kafka"}), (BEFORE_CONCLUDE, {"sink": "refused-postgres"})],
    [(Phase.CLAIMING.name, {}), (BEGIN, {"sink": "refused-kafka"}), (PREPARED, {"sink": "postgres"})],
]


def is_large(id_: int) -> bool:
    """Tells if a row is too large for the topic."""
    return id_ % LARGE_EVERY == 0


def is_forbidden(id_: int) -> bool:
    """Tells if the table's constraint forbids a row."""
    return id_ % 70 == 3


def refused(job: Job, name: str) -> Rows:
    """Reads a sink's dead letters: ids and batches."""
    folder = Path(job.config.letters, f"refused-{name}")
    rows = [row for path in whole_batches(folder) for row in ds.dataset(path).to_table().to_pylist()]
    assert {row["sink"] for row in rows} <= {name}
    told = [(json.loads(row["row"]), row["batch"]) for row in rows]
    return Counter((row.get("key") or row["id"], batch) for row, batch in told)


def new_job(kafka: Cluster, server: PostgresServer, folder: Path) -> Job:
    target, table = new_name("target"), new_name("t").replace("-", "_")
    create_topic(kafka.bootstrap, target, PARTITIONS, {"max.message.bytes": "2000"})
    into = Postgres(server, table)
    ask(server, f"ALTER TABLE {table} ADD CHECK (id::int % 70 <> 3)")
    return Job(
        kafka.bootstrap,
        folder,
        targets=[into],
        rows=ROWS_PER_BATCH * (len(ROUNDS) + 2),
        again=False,
        target=target,
        rows_per_batch=ROWS_PER_BATCH,
        plan="spark.plans:some_large",
        letters=str(folder / "letters"),
        points=(BEGIN, WRITTEN, PREPARED, HALFWAY, BEFORE_CONCLUDE),
    )


def test_accepted_and_refused_rows_are_the_input_of_each_batch(
    kafka: Cluster, server: PostgresServer, tmp_path: Path, say: Callable[[str], None]
) -> None:
    with ExitStack() as stack:
        jobs = [stack.enter_context(new_job(kafka, server, tmp_path / str(each))) for each in range(len(ROUNDS[0]))]
        for number, cells in enumerate(ROUNDS, 1):
            sights = strike(dict(zip(jobs, cells, strict=True)), tmp_path / f"{number}.log")
            for job, sight in sights.items():
                letters = {name: refused(job, name) for name in NAMES.values()}
                seen = [*sight.after.values(), *letters.values()]
                assert all(batch <= sight.decided for rows in seen for _, batch in rows), sight.point
                counts = {name: rows.total() for name, rows in letters.items()}
                say(f"query {jobs.index(job)} killed at {sight.point}, decided {sight.decided}: {counts} letters")
        start_together(jobs, tmp_path / "last.log").finish()
        for job in jobs:
            check(job, say)


def check(job: Job, say: Callable[[str], None]) -> None:
    accepted, left = job.visible(), job.open()
    rows: dict[str, Rows] = {}
    for kind, name in NAMES.items():
        letters = refused(job, name)
        rows[name] = accepted[kind] + letters
        is_refused = is_large if kind == KAFKA else is_forbidden
        assert sorted(int(id_) for id_, _ in letters.elements()) == list(filter(is_refused, map(int, job.ids)))
        say(f"{name}: {accepted[kind].total()} rows accepted, {letters.total()} refused")
    assert rows["kafka"] == rows["postgres"], "the two do not agree batch by batch"
    assert sorted(id_ for id_, _ in rows["kafka"].elements()) == job.ids
    assert not any(left.values()), left
