"""Runs ten thousand batches of a query. At the end, it must hold no more than after the first thousand.

::

    pytest -m slow -s tests/spark/test_soak.py
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import pyarrow.dataset as ds
import pytest

from eventually import eventually
from shared_servers import needs_postgres
from spark.harness import AnyJob
from spark.processes import path_of_tests
from spark.soak_job import ROWS, SLOTS, Soak
from sparkonce.files import read_manifests
from sparkonce.protocol.horizon import KEEP_BATCHES, TIDY_EVERY_BATCHES
from sparkonce_lab.rig.child import Child
from sparkonce_lab.rig.kafka import Cluster
from sparkonce_lab.rig.process import last_lines
from sparkonce_lab.systems.postgres import PostgresSystem

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.slow, needs_postgres]

MANY, WARM = 10_000, 1_000
LIMIT_S = 4 * 3600.0


Figures = Mapping[str, int]


class Soaked(AnyJob):
    """A query with little to do that keeps running."""

    def __init__(self, kafka: Cluster, postgres: PostgresSystem, folder: Path) -> None:
        super().__init__(kafka.bootstrap, folder, sources=0)
        self._postgres = postgres
        self._files = folder / "files"
        postgres.ask("CREATE TABLE soaked (key text, value text)")

    def run(self, measure: Sequence[int]) -> Iterator[Figures]:
        """Starts the query, and yields the figures of it and its servers after each of these batches."""
        log = self.folder / "soak.log"
        soak = Soak(
            spark=asdict(self.config),
            topic=self.config.target,
            conninfo=self._postgres.server.conninfo(),
            files=str(self._files),
            measure=measure,
        )
        child = Child(
            [soak.to_json()],
            log=log,
            temporary=Path(self.config.temporary),
            module="spark.soak_job",
            env=path_of_tests(),
        )
        try:
            for batch in measure:
                (told,) = eventually(lambda: child.events() or self._check(child, log), f"{batch}", limit_s=LIMIT_S)
                assert told["batch"] == batch
                yield {name: told[name] for name in told if name != "event"} | self._held_by_servers()
            child.wait(LIMIT_S)
            assert child.exit_code() == 0, last_lines(log, 40)
        finally:
            child.kill()

    @staticmethod
    def _check(child: Child, log: Path) -> None:
        assert child.exit_code() in (None, 0), last_lines(log, 40)

    def _held_by_servers(self) -> Figures:
        counts = {
            "markers": "SELECT count(*) FROM sparkonce_commits",
            "sessions": "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'",
        }
        return {
            "transactional_ids": len(self.transactions()),
            "staging_tables": len(self._postgres.stages()),
            "held_files": sum(path.is_file() for path in (self._files / ".sparkonce").rglob("*")),
            "manifests": sum(1 for _ in (self._files / "_manifest").iterdir()),
            **{name: self._postgres.column(query)[0] for name, query in counts.items()},
        }

    def check_rows(self) -> None:
        """Checks that each reader finds every row of every decided batch once."""
        expected = Counter(str(number) for number in range((self.decided() + 1) * ROWS))
        assert Counter((record.key or b"").decode() for record in self.records()) == expected
        assert Counter(self._postgres.column("SELECT key FROM soaked")) == expected
        paths = [self._files / file.path for one in read_manifests(self._files) for file in one.files]
        assert Counter(ds.dataset(paths, format="parquet").to_table()["key"].to_pylist()) == expected
        assert not self._postgres.prepared()
        assert not self.transactions("Ongoing")


def told(say: Callable[[str], None], found: Sequence[Figures]) -> None:
    for name in found[0]:
        say(f"{name:20}" + "".join(f"{one[name]:>12,}" for one in found))


@pytest.mark.timeout(LIMIT_S)
def test_after_ten_thousand_batches_a_query_holds_what_it_held_after_one(
    kafka: Cluster, postgres: PostgresSystem, tmp_path: Path, say: Callable[[str], None]
) -> None:
    mib = 1 << 20
    # The allowed growth from the first figures to the last. It is less than if each batch in between had left anything
    # behind.
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

    def grown(first: Figures, last: Figures) -> list[str]:
        """Lists what has grown by more than it may."""
        return [name for name, more in may_grow.items() if last[name] - first[name] > more]

    # The number of log records that a start may read: all of them before Spark starts, and again in its first batch.
    left_by_a_start = 3 * (KEEP_BATCHES + TIDY_EVERY_BATCHES)
    found = []
    with Soaked(kafka, postgres, tmp_path / "job") as job:
        for figures in job.run(range(WARM, MANY + 1, WARM)):
            say(str(figures))
            found.append(figures)
        told(say, [found[0], found[len(found) // 2], found[-1]])
        (again,) = job.run([job.decided() + 2])
        say(f"a start then reads {again['records_read']} records")
        job.check_rows()
    assert grown(found[0], found[-1]) == []
    assert 0 < again["records_read"] <= left_by_a_start
