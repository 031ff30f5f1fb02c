"""Kafka, and a Delta table into which each batch is merged, in queries that are killed again and again.

Each row of the table tells which batches were added to it: the two agree batch by batch. The long form is five
queries in one Spark, each of which is killed six times::

    pytest -m slow -s tests/spark/test_merge_unit.py
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from spark.conftest import table_libraries
from spark.harness import Job, start_together
from spark.kills import Cell, strike
from spark.pipeline import KAFKA
from spark.targets import DeltaTotals, Rows
from sparkonce.protocol.state import Phase
from sparkonce.rig.kafka import Cluster
from sparkonce.rig.kafka.jars import artifact_name, resolve, spark_jars_folder, spark_kafka_jars
from striking.points import BEFORE_CONCLUDE, BEGIN, HALFWAY, PHASES, PREPARED, WRITTEN

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

ROWS_PER_BATCH, QUERIES = 400, 5
WITHIN = (BEGIN, WRITTEN, PREPARED, HALFWAY, BEFORE_CONCLUDE)
PHASE_CELLS: list[Cell] = [
    *((phase.name, {}) for phase in PHASES if phase is not Phase.REPLAYING),
    (Phase.FINISHING.name, {}),
    (Phase.REPLAYING.name, {}),
]
SINK_CELLS: list[Cell] = [
    *((point, {"sink": "delta"}) for point in WITHIN if point != HALFWAY),
    *((point, {"sink": "kafka"}) for point in WITHIN),
]
LONG = [*PHASE_CELLS, *SINK_CELLS, *SINK_CELLS]
SHORT: list[Cell] = [(PREPARED, {"sink": "delta"}), (HALFWAY, {"sink": "kafka"}), (BEFORE_CONCLUDE, {"sink": "delta"})]
SETTINGS = {
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.databricks.delta.snapshotPartitions": "1",
}


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    "rounds",
    [
        pytest.param([SHORT], id="short", marks=pytest.mark.drawn(6, "merge")),
        pytest.param([LONG[first : first + QUERIES] for first in range(0, len(LONG), QUERIES)], marks=pytest.mark.slow),
    ],
)
def test_killed_and_killed(
    kafka: Cluster, tmp_path: Path, rounds: Sequence[Sequence[Cell]], say: Callable[[str], None]
) -> None:
    in_spark = sorted({artifact_name(jar.name) for jar in spark_jars_folder().glob("*.jar")})
    delta = [jar for library in table_libraries() if "delta" in library for jar in resolve([library], exclude=in_spark)]
    jars = tuple(str(jar) for jar in [*spark_kafka_jars(), *delta])
    with ExitStack() as stack:
        jobs = [
            stack.enter_context(new_job(kafka, tmp_path / str(each), jars, len(rounds)))
            for each in range(len(rounds[0]))
        ]
        for number, cells in enumerate(rounds, 1):
            log = tmp_path / f"{number}.log"
            for job, sight in strike(dict(zip(jobs, cells, strict=True)), log).items():
                early = {kind: [row for row in rows if row[1] > sight.decided] for kind, rows in sight.after.items()}
                assert not any(early.values()), f"seen before the decision, after the kill at {sight.point}: {early}"
                rows = {kind: found.total() for kind, found in sight.after.items()}
                where = f"batch {sight.batch}, decided {sight.decided}"
                say(f"query {jobs.index(job)} killed at {sight.point}: {where}, visible {rows}")
        start_together(jobs, tmp_path / "last.log").finish()
        for job in jobs:
            check(job, say)


def new_job(kafka: Cluster, folder: Path, jars: tuple[str, ...], kills: int) -> Job:
    return Job(
        kafka.bootstrap,
        folder / "job",
        targets=[DeltaTotals(folder / "delta")],
        rows=ROWS_PER_BATCH * (kills + 2),
        again=False,
        rows_per_batch=ROWS_PER_BATCH,
        plan="spark.plans:stateless",
        points=WITHIN,
        keep_batches=3,
        jars=jars,
        spark=SETTINGS,
    )


def check(job: Job, say: Callable[[str], None]) -> None:
    """Sees that both have the same rows of every batch, once."""
    (target,) = job.targets.values()
    assert isinstance(target, DeltaTotals)
    found, left, labels = job.visible(), job.open(), target.labels()
    by_ending: Rows = Counter()
    for (key, batch), count in found[KAFKA].items():
        by_ending[target.row(key), batch] += count
    batches = len({batch for _, batch in by_ending})
    say(f"rows { {kind: rows.total() for kind, rows in found.items()} }, {batches} batches, {len(labels)} merges")
    assert found["DeltaSink"] == by_ending, "the two do not agree batch by batch"
    assert sorted(key for key, _ in found[KAFKA].elements()) == job.ids
    assert len(labels) == len(set(labels)) >= batches
    assert not any(left.values()), left
    verdict = job.judge()
    assert verdict.is_exactly_once, verdict
