"""``sparkonce transactions`` over one unit of several real systems, with its log on a disk or in a store."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from typer.testing import CliRunner

from redis_servers import Everywhere
from redis_servers import witness as redis_client
from shared_servers import needs_postgres, needs_redis
from small_job import SmallJob
from sparkonce.cli.main import app
from sparkonce.protocol.state import Phase
from sparkonce.sink import TwoPhaseCommitSink
from sparkonce.sinks.files.sink import FilesSink
from sparkonce.sinks.redis.sink import RedisSink
from sparkonce.sinks.sql.mysql.sink import MySQLSink
from sparkonce.sinks.sql.postgres.sink import PostgresSink
from sparkonce_lab.rig.servers.redis import RedisServer
from sparkonce_lab.rig.servers.s3 import ACCESS_KEY, SECRET_KEY
from sparkonce_lab.systems.mysql import MySQLSystem
from sparkonce_lab.systems.postgres import PostgresSystem

pytestmark = [needs_postgres, needs_redis]

SINKS = ("pg.staged", "pg.two_phase", "my.staged", "my.two_phase", "cache", "out")
SLOTS = 2
READ = {"staged": "SELECT id FROM staged", "two_phase": "SELECT id FROM two_phase"}


def rows(batch: int, slot: int) -> pa.RecordBatch:
    number = 10 * batch + slot
    return pa.record_batch({"id": pa.array([number], pa.int64()), "key": [str(number)], "value": ["a"]})


def wanted(batches: int) -> list[int]:
    return [10 * batch + slot for batch in range(batches) for slot in range(SLOTS)]


def command(config: Path, *words: str) -> Any:
    done = CliRunner().invoke(app, ["transactions", *words, "--config", str(config), "--format", "json"])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


class Unit:
    def __init__(self, folder: Path, postgres: PostgresSystem, mariadb: MySQLSystem, redis: RedisServer) -> None:
        self.postgres, self.mariadb, self.redis, self.out = postgres, mariadb, redis, folder / "out"
        for table in ("staged", "two_phase"):
            postgres.ask(f"CREATE TABLE {table} (id bigint PRIMARY KEY, key text, value text)")
            mariadb.ask(
                f"CREATE TABLE {table} (id bigint PRIMARY KEY, `key` varchar(9), value varchar(9)) ENGINE=InnoDB"
            )
        with redis_client(redis) as client:
            client.flushall()
        self.job = SmallJob(folder / "checkpoint", self.sinks, rows, slots=SLOTS)
        self.config = folder / "systems.yaml"
        self.config.write_text(yaml.safe_dump(self.file()))
        self.command = partial(command, self.config)

    def sinks(self) -> Sequence[TwoPhaseCommitSink]:
        to, settings = self.postgres.server.conninfo(), self.mariadb.settings
        return [
            PostgresSink(to, table="staged", name="pg.staged"),
            PostgresSink(to, table="two_phase", commit="two_phase", name="pg.two_phase"),
            MySQLSink(settings, table="staged", name="my.staged"),
            MySQLSink(settings, table="two_phase", commit="two_phase", name="my.two_phase"),
            RedisSink(self.redis.url, name="cache"),
            FilesSink(self.out, name="out"),
        ]

    def file(self) -> dict[str, Any]:
        return {
            "systems": {
                "pg": {"system": "postgres", "conninfo": self.postgres.server.conninfo()},
                "my": {"system": "mysql", **self.mariadb.settings},
                "cache": {"system": "redis", "url": self.redis.url},
                "out": {"system": "files", "path": str(self.out)},
            },
            "sinks": {
                f"{system}.{table}": {"system": system, "table": table, "commit": table}
                for system in ("pg", "my")
                for table in ("staged", "two_phase")
            },
        }

    def die_at(self, phase: Phase, batch: int) -> None:
        self.job.kill(batch, phase)
        self.job.put_sparks_files(batch)

    def verdicts(self) -> set[tuple[str, str]]:
        found = self.command("list", "--checkpoint", str(self.job.checkpoint), "--query", self.job.query)
        return {(one["system"], one["verdict"]) for one in found}

    def visible(self) -> dict[str, list[int]]:
        found = {f"pg.{table}": [int(one) for (one,) in self.postgres.ask(read)] for table, read in READ.items()}
        found |= {f"my.{table}": [int(one) for (one,) in self.mariadb.ask(read)] for table, read in READ.items()}
        with redis_client(self.redis) as client:
            found["cache"] = [int(key) for key in client.keys("*") if not key.startswith(b"sparkonce:")]
        files = [path for path in self.out.rglob("*.parquet") if ".sparkonce" not in path.parts]
        found["out"] = [number for path in files for number in pq.read_table(path)["id"].to_pylist()]
        return {name: sorted(numbers) for name, numbers in found.items()}

    def left(self) -> list[Any]:
        ours = [one for one in self.mariadb.prepared() if self.job.short_query in str(one)]
        return [*self.postgres.prepared(), *self.postgres.stages(), *self.mariadb.stages(), *ours]


@pytest.fixture
def unit(postgres, mariadb, tmp_path) -> Iterator[Unit]:
    with RedisServer(tmp_path / "redis") as redis:
        yield Unit(tmp_path, postgres, mariadb, redis)


def everywhere(numbers: list[int]) -> dict[str, list[int]]:
    return dict.fromkeys(SINKS, numbers)


@pytest.mark.parametrize(
    ("phase", "verdict", "batches"),
    [(Phase.FINISHING, "commit", 2), pytest.param(Phase.DECIDING, "under way", 1, marks=pytest.mark.slow)],
)
def test_all_systems_end_as_the_log_says(unit, phase, verdict, batches):
    unit.job.run(0)
    unit.die_at(phase, 1)
    assert unit.verdicts() == {(system, verdict) for system in ("pg", "my", "cache", "out")}
    assert unit.visible() == everywhere(wanted(1))
    listed = unit.command("list", "--checkpoint", str(unit.job.checkpoint))
    (told,) = [one for one in listed if one["name"] == unit.postgres.prepared()[0]]
    assert (told["system"], told["kind"], told["verdict"]) == ("pg", "prepared", verdict)
    assert any("RowExclusiveLock" in one for one in told["holds"])
    done = unit.command("resolve", str(unit.job.checkpoint), "--yes")
    assert (done["lost"], done["left"], done["open"]) == (0, [], [])
    assert (done["batch"], done["committed"]) == ((1, len(SINKS) * SLOTS) if batches == 2 else (None, 0))
    assert unit.visible() == everywhere(wanted(batches))
    assert unit.left() == []
    unit.job.run(1, 2)
    assert unit.visible() == everywhere(wanted(3))


def test_without_a_log_all_that_is_listed_is_aborted(unit):
    unit.job.run(0)
    unit.die_at(Phase.FINISHING, 1)
    file = unit.file()
    file["sinks"] |= {"cache": {}, "out": {}}
    unit.config.write_text(yaml.safe_dump(file))
    found = unit.command("sweep", "--query", unit.job.query, "--execute", "--yes", "--accept-loss", "the disk is gone")
    assert found["ended"] == {name: {"aborted": SLOTS} for name in SINKS}
    assert found["open"] == []
    assert unit.visible() == everywhere(wanted(1))
    assert unit.left() == []


def test_rows_whose_keys_came_after_the_decision_are_left_out_if_an_operator_says_so(unit):
    unit.die_at(Phase.FINISHING, 0)
    theirs = "INSERT INTO staged VALUES (0, 'theirs', 'b')"
    unit.postgres.ask(theirs)
    unit.mariadb.ask(theirs)
    resolve = ["transactions", "resolve", str(unit.job.checkpoint), "--yes", "--config", str(unit.config)]
    refused = CliRunner().invoke(app, [*resolve, "--patience-s", "0"])
    assert refused.exit_code == 1
    assert "--on-conflict nothing" in refused.stderr
    done = unit.command(*resolve[1:4], "--on-conflict", "nothing")
    assert (done["batch"], done["committed"], done["lost"], done["open"]) == (0, len(SINKS) * SLOTS, 0, [])
    assert unit.visible() == everywhere(wanted(1))
    read = "SELECT id, value FROM staged ORDER BY id"
    assert unit.postgres.ask(read) == list(unit.mariadb.ask(read)) == [(0, "b"), (1, "a")]


# --- the checkpoint and the files are in a bucket, and Redis is a cluster ---------------------------------------------


def test_both_end_as_the_log_in_the_store_says(cluster, bucket, tmp_path, monkeypatch):
    checkpoint = bucket.files("checkpoints/totals")
    path, options = f"s3://{bucket.name}/out", dict(bucket.server.settings())
    monkeypatch.setenv("AWS_ENDPOINT_URL", bucket.server.url)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    redis = Everywhere(*cluster.nodes)
    redis.clear()
    config = tmp_path / "systems.yaml"
    systems = {"out": {"system": "files", "path": path, **options}, "cache": {"system": "redis", "url": cluster.url}}
    config.write_text(yaml.safe_dump({"systems": systems}))

    def sinks() -> Sequence[TwoPhaseCommitSink]:
        return [FilesSink(path, name="out", store_options=options), RedisSink(cluster.url, cluster=True, name="cache")]

    def verdicts() -> set[tuple[str, str]]:
        told = command(config, "list", "--checkpoint", checkpoint.location, "--query", job.query)
        return {(one["system"], one["verdict"]) for one in told}

    def check_visible(batches: int) -> None:
        assert sorted(bucket.numbers("id")) == wanted(batches)
        assert sorted(int(key) for key in redis.data()) == wanted(batches)

    job = SmallJob(tmp_path / "none", sinks, rows, slots=SLOTS)
    job.files_of_checkpoint = checkpoint
    job.run(0)
    job.kill(1, Phase.FINISHING)
    job.put_sparks_files(1)
    assert verdicts() == {("out", "commit"), ("cache", "commit")}
    check_visible(1)
    done = command(config, "resolve", checkpoint.location, "--yes")
    assert (done["lost"], done["left"], done["open"]) == (0, [], [])
    assert (done["batch"], done["committed"]) == (1, 2 * SLOTS)
    check_visible(2)
    assert verdicts() == set()
    job.run(1, 2)
    check_visible(3)
