"""Runs ten thousand batches of a query. At the end, it must hold no more than after the first thousand.

::

    pytest -m slow -s tests/spark/test_soak.py
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import pyarrow.dataset as ds
import pytest

from eventually import eventually
from shared_servers import needs_postgres
from spark.harness import AnyJob, path_of_tests
from spark.soak_job import ROWS, SLOTS
from sparkonce.files import read_manifests
from sparkonce.protocol.horizon import KEEP_BATCHES, TIDY_EVERY_BATCHES
from sparkonce_lab.rig.child import Child
from sparkonce_lab.rig.process import last_lines

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.slow, needs_postgres]

MANY, WARM = 10_000, 1_000
LIMIT_S = 4 * 3600.0


Figures = Mapping[str, int]


@pytest.mark.timeout(LIMIT_S)
def test_after_ten_thousand_batches_a_query_holds_what_it_held_after_one(kafka, postgres, tmp_path, say):
    mib, files = 1 << 20, tmp_path / "job" / "files"
    # The growth that is allowed between the first and the last measurement. If every batch left something behind, the
    # growth would be larger.
    may_grow = {
        "python_bytes": mib,
        "python_objects": 2_000,
        "driver_rss_bytes": 20 * mib,
        "heap_bytes": 20 * mib,
        "workers_rss_bytes": 60 * mib,
        "workers_processes": 1,
        **{f"{role}_{name}": 20 for role in ("driver", "jvm", "workers") for name in ("threads", "handles")},
        "log_files": TIDY_EVERY_BATCHES,
        "log_bytes": 64 << 10,
        "checkpoint_files": TIDY_EVERY_BATCHES + 10,
        "checkpoint_bytes": 128 << 10,
        "transactional_ids": 20,
        "markers": 2 * SLOTS * TIDY_EVERY_BATCHES,
        "staging_tables": 2 * SLOTS,
        "held_files": 2 * SLOTS,
        "sessions": 4,
    }
    postgres.ask("CREATE TABLE soaked (key text, value text)")
    with AnyJob(kafka.bootstrap, tmp_path / "job", sources=0) as job:

        def held_by_servers() -> Figures:
            backends = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'"
            return {
                "transactional_ids": len(job.transactions()),
                "staging_tables": len(postgres.stages()),
                "held_files": sum(path.is_file() for path in (files / ".sparkonce").rglob("*")),
                "manifests": sum(1 for _ in (files / "_manifest").iterdir()),
                "markers": postgres.column("SELECT count(*) FROM sparkonce_commits")[0],
                "sessions": postgres.column(backends)[0],
            }

        def run(measure: Sequence[int]) -> Iterator[Figures]:
            """Starts the query, and yields its figures and its servers' figures after each of these batches."""
            log = job.folder / "soak.log"
            soak = {
                "spark": asdict(job.config),
                "topic": job.config.target,
                "conninfo": postgres.server.conninfo(),
                "files": str(files),
                "measure": list(measure),
            }
            where = {"log": log, "temporary": Path(job.config.temporary)}
            child = Child([json.dumps(soak)], module="spark.soak_job", env=path_of_tests(), **where)

            def check() -> None:
                assert child.exit_code() in (None, 0), last_lines(log, 40)

            try:
                for batch in measure:
                    (told,) = eventually(lambda: child.events() or check(), f"{batch}", limit_s=LIMIT_S)
                    assert told["batch"] == batch
                    yield {name: told[name] for name in told if name != "event"} | held_by_servers()
                child.wait(LIMIT_S)
                check()
            finally:
                child.kill()

        found = []
        for figures in run(range(WARM, MANY + 1, WARM)):
            say(str(figures))
            found.append(figures)
        (again,) = run([job.decided() + 2])
        say(f"a start then reads {again['records_read']} records")

        # Each reader must find every row of every decided batch exactly once.
        expected = Counter(str(number) for number in range((job.decided() + 1) * ROWS))
        assert Counter((record.key or b"").decode() for record in job.records()) == expected
        assert Counter(postgres.column("SELECT key FROM soaked")) == expected
        paths = [files / file.path for one in read_manifests(files) for file in one.files]
        assert Counter(ds.dataset(paths, format="parquet").to_table()["key"].to_pylist()) == expected
        assert not postgres.prepared()
        assert not job.transactions("Ongoing")
    assert [name for name, more in may_grow.items() if found[-1][name] - found[0][name] > more] == []
    # A starting query may read all records of the log twice: before Spark starts, and in its first batch.
    assert 0 < again["records_read"] <= 3 * (KEEP_BATCHES + TIDY_EVERY_BATCHES)
