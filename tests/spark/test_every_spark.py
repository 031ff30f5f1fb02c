"""Queries that read files are killed twice each, on the installed version of Spark.

Half of them keep state, in the newest formats that the version supports: checksums, and version 2 of the offset log,
the commit log and the state store's checkpoint. To run them with another version of Spark::

    python3 dev.py test --spark 4.2.0 tests/spark/test_every_spark.py
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pyspark
import pytest

from spark.harness import Job, Observation, start_together, strike
from sparkonce.protocol.state import Phase
from sparkonce_lab.rig.kafka import Cluster
from striking.points import HALFWAY, PREPARED

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(3600)]

ROWS, ROWS_PER_BATCH = 1_600, 400

SPARK = tuple(map(int, pyspark.__version__.split(".")[:2]))


def test_queries_are_killed_and_go_on(broker, tmp_path, say):
    def check_formats(checkpoint: Path) -> None:
        """Checks that Spark has written the configured formats."""
        batch = max(int(one.name) for one in (checkpoint / "commits").iterdir() if one.name.isdigit())
        offsets, commits = ((checkpoint / log / str(batch)).read_text()[:3] for log in ("offsets", "commits"))
        assert commits == "v2\n"
        assert offsets == ("v2\n" if SPARK >= (4, 2) else "v1\n")
        state = {path.suffix for path in (checkpoint / "state").rglob("[0-9]*_*.changelog*")}
        assert ".changelog" in state
        assert (".crc" in state) == (SPARK >= (4, 1))

    # Formats that some versions do not write by default. Spark ignores settings that it does not know.
    newest = {
        "spark.sql.streaming.stateStore.providerClass": "org.apache.spark.sql.execution.streaming.state."
        "RocksDBStateStoreProvider",
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
        "spark.sql.streaming.stateStore.checkpointFormatVersion": "2",
        "spark.sql.streaming.stateStore.rowChecksum.enabled": "true",
        "spark.sql.streaming.checkpoint.fileChecksum.enabled": "true",
        "spark.sql.streaming.offsetLog.formatVersion": "2",
    }

    def new_job(broker: Cluster, folder: Path, *, stateful: bool) -> Job:
        return Job(
            broker.bootstrap,
            folder,
            rows=ROWS,
            again=stateful,
            rows_per_batch=ROWS_PER_BATCH,
            slots=2,
            files=str(folder / "input"),
            plan=f"spark.plans:{'distinct' if stateful else 'stateless'}",
            sql=newest if stateful else {},
            points=(PREPARED, HALFWAY),
        )

    rounds = (
        # The two kills of each query are in the same column.
        (Phase.WRITING.name, PREPARED, Phase.FINISHING.name, Phase.DECIDING.name),
        (Phase.IDLE.name, HALFWAY, Phase.REPLAYING.name, Phase.SWEEPING_OWN.name),
    )
    observations: list[Observation] = []
    with ExitStack() as stack:
        jobs = [
            stack.enter_context(new_job(broker, tmp_path / f"job-{number}", stateful=number % 2 == 0))
            for number in range(len(rounds[0]))
        ]
        for number, points in enumerate(rounds):
            cells = {job: (point, {}) for job, point in zip(jobs, points, strict=True)}
            observations += strike(cells, tmp_path / f"{number}.log", read=False).values()
        start_together(jobs, tmp_path / "last.log").finish()
        assert [job.judge() for job in jobs] == [""] * len(jobs)
        for one in observations:
            one.check()
        say(f"Spark {pyspark.__version__}: {len(observations)} kills")
        for job in jobs[::2]:
            check_formats(job.checkpoint)
