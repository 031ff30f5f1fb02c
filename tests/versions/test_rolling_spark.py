"""Queries are killed on an older Spark, each with a batch under way, and go on with the version installed here.

``python3 dev.py versions 4.1.1`` runs this, and makes the environments of the older ones, too.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pyspark
import pytest

from spark.harness import start_together
from spark.kills import hold_at, start_held
from sparkonce.protocol.state import Phase
from sparkonce.rig.kafka import Cluster
from versions.__main__ import environment
from versions.table import ENGINES
from versions.test_spark import NEWEST, ROWS, ROWS_PER_BATCH, FilesJob


def number(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


OLDER = {
    engine.spark: engine
    for engine in ENGINES
    if engine.connector and number(engine.spark) < number(pyspark.__version__)
}
"""Those of which everything is tried, before the one installed here."""

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.spark,
    pytest.mark.versions,
    pytest.mark.slow,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(not OLDER, reason="queries go on from this version, not to it"),
]

BATCH = 1
POINTS = (Phase.DECIDING.name, Phase.FINISHING.name)
"""Batch 1 is prepared and not decided, or decided and not committed."""

PLANS = {
    "stateless": ("files", {}),
    "state": ("distinct", {}),
    "state in RocksDB": (
        "distinct",
        {name: NEWEST[name] for name in NEWEST if "rocksdb" in f"{name} {NEWEST[name]}".lower()},
    ),
}


def new_job(broker: Cluster, folder: Path, plan: str, sql: dict[str, str]) -> FilesJob:
    return FilesJob(
        broker.bootstrap,
        folder,
        rows=ROWS,
        rows_per_batch=ROWS_PER_BATCH,
        slots=2,
        files=str(folder / "input"),
        plan=f"versions.plans:{plan}",
        sql=sql,
        jvm_flags="",
    )


@pytest.mark.parametrize("before", OLDER)
def test_a_query_that_was_killed_on_an_older_version_goes_on(
    broker: Cluster, tmp_path: Path, say: Callable[[str], None], monkeypatch: pytest.MonkeyPatch, before: str
) -> None:
    with ExitStack() as stack:
        jobs = {
            (name, point): stack.enter_context(new_job(broker, tmp_path / f"{count}-{point}", *plan))
            for count, (name, plan) in enumerate(PLANS.items())
            for point in POINTS
        }
        with monkeypatch.context() as patch:
            patch.setattr(sys, "executable", str(environment(OLDER[before])))
            holds = {job: hold_at(point, job, lambda batch: batch == BATCH) for (_, point), job in jobs.items()}
            start_held(holds, [point for _, point in jobs], tmp_path / "older.log").kill()
        decided = {key: job.decided() for key, job in jobs.items()}
        assert decided == {(name, point): BATCH if point == POINTS[1] else BATCH - 1 for name, point in jobs}
        start_together(list(jobs.values()), tmp_path / "newer.log").finish()
        verdicts = {key: job.judge() for key, job in jobs.items()}
        say(f"Spark {before} to {pyspark.__version__}: {'; '.join(map(str, verdicts.values()))}")
        assert {key: str(verdict) for key, verdict in verdicts.items() if not verdict.is_exactly_once} == {}
