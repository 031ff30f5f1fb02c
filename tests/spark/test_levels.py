"""The weaker guarantees, under a kill: each is what its name says, and no more."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.dataset as ds
import pytest

from mariadb_witness import Witness, shared_server
from postgres_witness import ask, needs_postgres, running
from redis_servers import needs_redis, witness
from spark.faults import WRITTEN, Watched
from spark.harness import Job
from sparkonce.embedded import Cluster
from sparkonce.testing.servers.redis import RedisServer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from spark.pipeline import Config
    from sparkonce import KafkaSink
    from sparkonce.spark.views import Sinks

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

ROWS = 20_000


def killed_while_writing(kafka: Cluster, folder: Path, guarantee: str) -> Job:
    with Job(kafka.bootstrap, folder, rows=ROWS, sink={"guarantee": guarantee}, points=(WRITTEN,)) as job:
        hold = job.desk.hold(WRITTEN, batch=1)
        run = job.start()
        hold.wait(run.check)
        run.kill()
        job.start(points=()).finish()
    return job


def test_at_least_once_doubles_rows_and_misses_none(kafka: Cluster, tmp_path: Path) -> None:
    values = killed_while_writing(kafka, tmp_path / "job", "AT_LEAST_ONCE").values()
    assert sorted(values) == [f"{number:08d}" for number in range(ROWS)]
    doubled = {key: found for key, found in values.items() if len(found) > 1}
    assert doubled, "the kill came before anything was written"
    assert all(set(found) == {"1"} for found in doubled.values()), "only rows of the killed batch come twice"


def test_at_most_once_misses_rows_and_doubles_none(kafka: Cluster, tmp_path: Path) -> None:
    values = killed_while_writing(kafka, tmp_path / "job", "AT_MOST_ONCE").values()
    assert all(len(found) == 1 for found in values.values())
    missing = {f"{number:08d}" for number in range(ROWS)} - values.keys()
    assert missing, "the kill came when all was written"
    assert 0 < len(missing) < 5_000, "only rows of the killed batch are missing"
    assert "1" in {batch for found in values.values() for batch in found}, "half of the batch was written"


def others(config: Config, _: KafkaSink) -> Sinks:
    """Every other system at once; all take the same rows in the same tasks."""
    from sparkonce import FilesSink, Guarantee, MySQLSink, PostgresSink, RedisSink

    most, to = Guarantee.AT_MOST_ONCE, config.beside
    redis = RedisSink(to["redis"], structure="increment", key_template="row:{key}", guarantee=most)
    sinks = [
        FilesSink(to["files"], format="json", compression="none", guarantee=most),
        redis,
        PostgresSink(to["postgres"], table="output", guarantee=most),
        MySQLSink(to["mysql"], table="output", guarantee=most),
    ]
    return {Watched(sink, desk=config.desk, points=config.points): with_amount for sink in sinks}


def with_amount(df: DataFrame) -> DataFrame:
    return df.selectExpr("key", "value", "1 as amount")


@pytest.mark.slow
@needs_postgres
@needs_redis
def test_at_most_once_misses_rows_and_doubles_none_in_every_other_sink(kafka: Cluster, tmp_path: Path) -> None:
    mariadb = Witness(shared_server())
    mariadb.run("CREATE TABLE output (`key` VARCHAR(20), value VARCHAR(20), amount INT) ENGINE=InnoDB")
    with running() as postgres, RedisServer(tmp_path / "redis" / "data") as redis:
        ask(postgres, "CREATE TABLE output (key text, value text, amount int)")
        files = tmp_path / "files"
        beside = {"files": str(files), "redis": redis.url, "postgres": postgres.conninfo(), "mysql": mariadb.settings}
        with Job(
            kafka.bootstrap,
            tmp_path / "job",
            rows=ROWS,
            again=False,
            plan="spark.plans:stateless",
            points=(WRITTEN,),
            unit=f"{__name__}:{others.__name__}",
            beside=beside,
        ) as job:
            # In the first sink of four, in the last slot on two cores: others have written theirs.
            hold = job.desk.hold(WRITTEN, sink="files", batch=1, slot=3)
            run = job.start()
            hold.wait(run.check)
            run.kill()
            assert job.decided() == 1, "it was not decided before it was written"
            job.start(points=()).finish()
        with witness(redis) as client:
            in_redis = Counter(
                {key[4:].decode(): int(client.get(key)) for key in client.scan_iter("row:*", count=1_000)}
            )
        found = {
            "files": Counter(ds.dataset(files, format="json").to_table()["key"].to_pylist()),
            "redis": in_redis,
            "postgres": Counter(key for (key,) in ask(postgres, "SELECT key FROM output")),
            "mysql": Counter(key for (key,) in mariadb.rows("SELECT `key` FROM output")),
        }
    for name, rows in found.items():
        missing, doubled = len(set(job.ids) - rows.keys()), rows.total() - len(rows)
        assert (name, doubled) == (name, 0)
        assert 0 < missing < 5_000, f"{name}: only rows of the killed batch are missing, {missing}"
        assert rows.keys() <= set(job.ids)
