"""Each format on its real server: a job that is killed after its decision, counted by another connection."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from psycopg.conninfo import conninfo_to_dict
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from mariadb_witness import Witness, shared_server
from s3_bucket import Bucket
from shared_servers import postgres_server, redis_server, s3_server
from spark.formats_struck import AFTER, register
from spark.harness import new_name
from spark.in_process import SPARK
from spark.targets import S3, Files, MySQL, Postgres, Redis, Target

pytestmark = SPARK


def _postgres(commit: str) -> tuple[Target, dict[str, str]]:
    server, table = postgres_server(), new_name("format").replace("-", "_")
    where = {name: str(value) for name, value in conninfo_to_dict(server.conninfo()).items()}
    url = f"jdbc:postgresql://{where['host']}:{where['port']}/{where['dbname']}?connect_timeout=10"
    return Postgres(server, table), {"url": url, "user": where["user"], "dbtable": f"public.{table}", "commit": commit}


def _mysql(commit: str) -> tuple[Target, dict[str, str]]:
    witness = Witness(shared_server())
    to: dict[str, Any] = witness.settings
    url = f"jdbc:mariadb://{to['host']}:{to['port']}/{to['database']}?ssl_disabled=true&connect_timeout=10"
    given = {"url": url, "user": to["user"], "password": to["password"], "dbtable": "format", "commit": commit}
    return MySQL(witness, "format"), given


def _redis() -> tuple[Target, dict[str, str]]:
    target = Redis(redis_server(), by="id")
    target.prefix = new_name("format")
    key = f"{target.prefix}:{{batch}}:{{id}}"
    return target, {"url": target.server.url, "structure": "increment", "key_template": key, "prefix": target.prefix}


def _s3() -> tuple[Target, dict[str, str]]:
    target = S3(Bucket(s3_server()))
    return target, {"path": target.sink["path"], "store_options": json.dumps(target.sink["store_options"])}


SYSTEMS: dict[str, Callable[[Path], tuple[str, Target, dict[str, str]]]] = {
    "postgres, two_phase": lambda _: ("postgres", *_postgres("two_phase")),
    "postgres, staged": lambda _: ("postgres", *_postgres("staged")),
    "mysql, two_phase": lambda _: ("mysql", *_mysql("two_phase")),
    "mysql, staged": lambda _: ("mysql", *_mysql("staged")),
    "redis": lambda _: ("redis", *_redis()),
    "files": lambda folder: ("files", Files(folder / "out"), {"path": str(folder / "out")}),
    "s3": lambda _: ("files", *_s3()),
}
SLOW = ("postgres, staged", "mysql, two_phase", "s3")


@pytest.mark.parametrize(
    "system", [pytest.param(each, marks=pytest.mark.slow) if each in SLOW else each for each in SYSTEMS]
)
def test_a_job_that_is_killed_after_its_decision_writes_each_row_once(
    spark: SparkSession, tmp_path: Path, system: str
) -> None:
    register(spark)
    name, target, options = SYSTEMS[system](tmp_path)
    open_before = Counter(target.open(""))
    rows = spark.range(90, numPartitions=2).selectExpr("cast(id as string) id", "0L batch", "'x' ending", "1 amount")

    def write(job: str, name: str = f"sparkonce-{name}", **more: str) -> None:
        writer = rows.write.format(name).mode("append").options(**options, **more)
        writer.options(job=job, log=str(tmp_path / "log")).save()

    with pytest.raises(Py4JJavaError):
        write("one", f"struck-{name}", strike=f"{AFTER} 0 {tmp_path / 'struck'}")
    assert (len(target.visible()), set(target.visible().values())) == (90, {1})
    for _ in range(2):
        write("one")
        assert (len(target.visible()), set(target.visible().values())) == (90, {1})
    write("two")
    assert set(target.visible().values()) == {2}
    left = Counter(target.open("")) - open_before
    assert [one for one in left if not one.endswith(":ledger")] == []
