"""Kafka, PostgreSQL and files in one query, killed thirty times: the three agree batch by batch.

The short form, which kills at six points that lie between the three, is in `test_streams`::

    pytest -m slow -s tests/spark/test_one_unit.py
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from postgres_witness import needs_postgres, running
from spark.harness import Job
from spark.kills import Cell, strike
from spark.pipeline import KAFKA
from spark.targets import Files, Postgres
from sparkonce.protocol.state import Phase
from sparkonce.rig.kafka import Cluster
from striking.points import BEFORE_CONCLUDE, BEGIN, HALFWAY, PHASES, PREPARED, WRITTEN

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.slow, needs_postgres]

ROWS_PER_BATCH = 1_000
WITHIN = (BEGIN, WRITTEN, PREPARED, HALFWAY, BEFORE_CONCLUDE)
SINKS = ("kafka", "postgres", "files")
CELLS: tuple[Cell, ...] = (
    *((phase.name, {}) for phase in PHASES if phase is not Phase.REPLAYING),
    (Phase.FINISHING.name, {}),
    (Phase.REPLAYING.name, {}),
    *((point, {"sink": sink}) for point in WITHIN for sink in SINKS),
    (HALFWAY, {"sink": "kafka"}),
    (PREPARED, {"sink": "postgres"}),
    (BEFORE_CONCLUDE, {"sink": "files"}),
)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("commit", ["two_phase", "staged"])
def test_killed_thirty_times(kafka: Cluster, tmp_path: Path, commit: str, say: Callable[[str], None]) -> None:
    assert len(CELLS) == 30
    with (
        running() as server,
        Job(
            kafka.bootstrap,
            tmp_path / "job",
            targets=[Postgres(server, "output", commit=commit), Files(tmp_path / "files", slots=2)],
            rows=ROWS_PER_BATCH * (len(CELLS) + 3),
            again=False,
            rows_per_batch=ROWS_PER_BATCH,
            plan="spark.plans:stateless",
            points=WITHIN,
            keep_batches=3,
        ) as job,
    ):
        for number, cell in enumerate(CELLS, 1):
            (sight,) = strike({job: cell}, tmp_path / f"{number}.log").values()
            early = {kind: [row for row in rows if row[1] > sight.decided] for kind, rows in sight.after.items()}
            assert not any(early.values()), f"seen before the decision, after the kill at {cell}: {early}"
            rows = {kind: found.total() for kind, found in sight.after.items()}
            opened = {kind: len(names) for kind, names in sight.open.items()}
            say(
                f"kill {number:>2}: {cell}, batch {sight.batch}, decided {sight.decided}, visible {rows}, open {opened}"
            )
        job.start().finish()
        found, left = job.visible(), job.open()
        batches = {kind: len({batch for _, batch in rows}) for kind, rows in found.items()}
        say(f"{len(CELLS)} kills; rows { {kind: rows.total() for kind, rows in found.items()} }, batches {batches}")
        assert found[KAFKA] == found["PostgresSink"] == found["FilesSink"], "the three do not agree batch by batch"
        assert sorted(key for key, _ in found[KAFKA].elements()) == job.ids
        assert not any(left.values()), left
        verdict = job.judge()
        assert verdict.is_exactly_once, verdict
