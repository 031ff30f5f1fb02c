"""Kafka, and a Delta table into which each batch is merged, in one query that is killed again and again.

Each row of the table tells which batches were added to it: the two agree batch by batch. The long forms are two
queries that are killed fifteen times each::

    pytest -m slow -s tests/spark/test_merge_unit.py
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from spark.conftest import table_libraries
from spark.harness import Job
from spark.kills import Cell, strike
from spark.pipeline import KAFKA
from spark.targets import DeltaTotals
from sparkonce.protocol.state import Phase
from sparkonce.rig.kafka import Cluster
from sparkonce.rig.kafka.jars import artifact_name, resolve, spark_jars_folder, spark_kafka_jars
from striking.points import BEFORE_CONCLUDE, BEGIN, HALFWAY, PHASES, PREPARED, WRITTEN

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

ROWS_PER_BATCH = 1_000
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
    "cells",
    [
        pytest.param(SHORT, id="short", marks=pytest.mark.drawn(5, "merge")),
        pytest.param(LONG[:15], id="long", marks=pytest.mark.slow),
        pytest.param(LONG[15:], id="longer", marks=pytest.mark.slow),
    ],
)
def test_killed_and_killed(kafka: Cluster, tmp_path: Path, cells: Sequence[Cell], say: Callable[[str], None]) -> None:
    target = DeltaTotals(tmp_path / "delta")
    in_spark = sorted({artifact_name(jar.name) for jar in spark_jars_folder().glob("*.jar")})
    delta = [
        jar for library in table_libraries() for jar in resolve([library], exclude=in_spark) if "iceberg" not in library
    ]
    with Job(
        kafka.bootstrap,
        tmp_path / "job",
        targets=[target],
        rows=ROWS_PER_BATCH * (len(cells) + 3),
        again=False,
        rows_per_batch=ROWS_PER_BATCH,
        plan="spark.plans:stateless",
        points=WITHIN,
        keep_batches=3,
        jars=tuple(str(jar) for jar in [*spark_kafka_jars(), *delta]),
        spark=SETTINGS,
    ) as job:
        for number, cell in enumerate(cells, 1):
            (sight,) = strike({job: cell}, tmp_path / f"{number}.log").values()
            early = {kind: [row for row in rows if row[1] > sight.decided] for kind, rows in sight.after.items()}
            assert not any(early.values()), f"seen before the decision, after the kill at {cell}: {early}"
            rows = {kind: found.total() for kind, found in sight.after.items()}
            say(f"kill {number:>2}: {cell}, batch {sight.batch}, decided {sight.decided}, visible {rows}")
        job.start().finish()
        found, left = job.visible(), job.open()
        by_ending = Counter({(target.row(key), batch): 0 for key, batch in found[KAFKA]})
        for (key, batch), count in found[KAFKA].items():
            by_ending[target.row(key), batch] += count
        batches = len({batch for _, batch in by_ending})
        say(
            f"{len(cells)} kills; rows { {kind: rows.total() for kind, rows in found.items()} } in {batches} batches, "
            f"{len(target.labels())} merges"
        )
        assert found["DeltaSink"] == by_ending, "the two do not agree batch by batch"
        assert sorted(key for key, _ in found[KAFKA].elements()) == job.ids
        labels = target.labels()
        assert len(labels) == len(set(labels)) >= batches
        assert not any(left.values()), left
        verdict = job.judge()
        assert verdict.is_exactly_once, verdict
