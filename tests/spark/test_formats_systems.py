"""Each format on its real server: a job that is killed after its decision, counted by another connection."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from psycopg.conninfo import conninfo_to_dict
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from shared_servers import mariadb_server, postgres_server, redis_server, s3_server
from spark.formats_struck import AFTER, register
from spark.in_process import SPARK
from sparkonce_lab.systems.base import System
from sparkonce_lab.systems.files import FilesSystem
from sparkonce_lab.systems.mysql import MySQLSystem
from sparkonce_lab.systems.postgres import PostgresSystem
from sparkonce_lab.systems.redis import RedisSystem
from sparkonce_lab.systems.s3 import S3System

pytestmark = SPARK

SYSTEMS: Mapping[str, Callable[[Path], System]] = {
    "postgres, two_phase": lambda _: PostgresSystem(server=postgres_server()),
    "postgres, staged": lambda _: PostgresSystem(commit="staged", server=postgres_server()),
    "mysql, two_phase": lambda _: MySQLSystem(server=mariadb_server()),
    "mysql, staged": lambda _: MySQLSystem(commit="staged", server=mariadb_server()),
    "redis": lambda _: RedisSystem(server=redis_server()),
    "files": FilesSystem,
    "files, s3": lambda _: S3System(server=s3_server()),
}
SLOW = ("postgres, staged", "mysql, two_phase", "files, s3")


@pytest.mark.parametrize(
    "case", [pytest.param(each, marks=pytest.mark.slow) if each in SLOW else each for each in SYSTEMS]
)
def test_a_job_that_is_killed_after_its_decision_writes_each_row_once(
    spark: SparkSession, tmp_path: Path, case: str
) -> None:
    def options_of(arguments: dict[str, Any]) -> dict[str, str]:
        """Returns a sink's arguments as the options of its format."""
        if "conninfo" in arguments:
            to = conninfo_to_dict(arguments.pop("conninfo"))
            arguments["url"] = f"jdbc:postgresql://{to['host']}:{to['port']}/{to['dbname']}?connect_timeout=10"
            arguments |= {"user": to["user"], "dbtable": f"{arguments.pop('schema')}.{arguments.pop('table')}"}
        elif "settings" in arguments:
            to = arguments.pop("settings")
            arguments["url"] = f"jdbc:mariadb://{to['host']}:{to['port']}/{to['database']}?ssl_disabled=true"
            arguments |= {"user": to["user"], "password": to["password"], "dbtable": arguments.pop("table")}
        return {name: value if isinstance(value, str) else json.dumps(value) for name, value in arguments.items()}

    register(spark)
    rows = spark.range(90, numPartitions=2).selectExpr("id number", "1 amount")
    with SYSTEMS[case](tmp_path / "out").placed(tmp_path, "number bigint", "amount int") as system:
        name, options = case.partition(",")[0], options_of(system.arguments())

        def write(job: str, name: str = f"sparkonce-{name}", **more: str) -> None:
            writer = rows.write.format(name).mode("append").options(**options, **more)
            writer.options(job=job, log=str(tmp_path / "log")).save()

        with pytest.raises(Py4JJavaError):
            write("one", f"struck-{name}", strike=f"{AFTER} 0 {tmp_path / 'struck'}")
        assert (tmp_path / "struck").exists(), "it failed before the decision"
        assert sorted(system.visible()) == list(range(90))
        for _ in range(2):
            write("one")
            assert sorted(system.visible()) == list(range(90))
        write("two")
        assert sorted(system.visible()) == sorted([*range(90)] * 2)
        assert system.left_open() == []
