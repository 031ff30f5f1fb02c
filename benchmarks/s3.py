"""Measures the files sink over S3 (versitygw on this machine), compared with Spark's file sink through hadoop-aws.

    python3 dev.py run python benchmarks/s3.py [--rounds 3] [--rows 1000000] [--without-spark]

Spark's sink needs hadoop-aws and AWS's SDK, half a gigabyte, which are downloaded once into sparkonce's cache. Both
sinks write Parquet with snappy. After each run, pyarrow counts the rows of the target.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import urllib.parse
from pathlib import Path
from typing import Any

import boto3
import pyarrow.dataset as ds
import pyarrow.fs
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery
from rich.console import Console

from sinks import Contender, Load, compare, machine
from sparkonce import ExactlyOnce, FilesSink, Guarantee
from sparkonce_lab.rig.kafka.jars import artifact_name, resolve, spark_jars_folder
from sparkonce_lab.rig.servers.s3 import ACCESS_KEY, SECRET_KEY, S3Server

BUCKET = "bench"
HADOOP = "3.4.1"
FILES = 4
FETCH_TIMEOUT_S = 1800.0

_progress = Console(stderr=True)


def main() -> int:
    given = _parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # raise SystemExit, so that the context managers clean up
    jars = [] if given.without_spark else hadoop_aws_jars()
    load = Load(file_rows=given.rows // FILES, files=FILES, warm=given.warm, measured=given.measured)
    with tempfile.TemporaryDirectory(prefix="sparkonce-bench-s3-") as folder, S3Server(Path(folder) / "s3") as server:
        store = Target(server)
        contenders = [
            Contender(name="FilesSink, exactly-once", start=store.ours(Guarantee.EXACTLY_ONCE), count=store.count),
            Contender(name="FilesSink, at-least-once", start=store.ours(Guarantee.AT_LEAST_ONCE), count=store.count),
        ]
        if jars:
            contenders.append(Contender(name="Spark's file sink, s3a", start=store.sparks, count=store.count))
        contenders = [
            Contender(name=one.name, start=one.start, count=one.count, clean=store.clean) for one in contenders
        ]
        with machine(load, jars=jars, conf=store.spark_conf(), server_pid=server.pid) as on:
            compare(on, contenders, rounds=given.rounds)
    return 0


def hadoop_aws_jars() -> list[Path]:
    """Downloads the jars that Spark needs for s3a, without those that it already has."""
    present = sorted({artifact_name(jar.name) for jar in spark_jars_folder().glob("*.jar")})
    return resolve([f"org.apache.hadoop:hadoop-aws:{HADOOP}"], exclude=present, timeout_s=FETCH_TIMEOUT_S)


class Target:
    """A bucket, which only one run uses at a time."""

    def __init__(self, server: S3Server) -> None:
        self._server = server
        self._client: Any = boto3.client(
            "s3",
            endpoint_url=server.url,
            region_name="us-east-1",
            aws_access_key_id=ACCESS_KEY,
            aws_secret_access_key=SECRET_KEY,
        )
        self._client.create_bucket(Bucket=BUCKET)

    def spark_conf(self) -> dict[str, str]:
        """Returns the settings for s3a that differ from Hadoop's defaults."""
        conf = {
            "endpoint": self._server.url,
            "endpoint.region": "us-east-1",
            "path.style.access": "true",
            "connection.ssl.enabled": "false",
            "access.key": ACCESS_KEY,
            "secret.key": SECRET_KEY,
        }
        return {f"spark.hadoop.fs.s3a.{name}": value for name, value in conf.items()}

    def ours(self, guarantee: Guarantee) -> Any:
        """Starts the files sink."""

        def start(rows: DataFrame, folder: Path) -> StreamingQuery:
            path = f"s3://{BUCKET}/{folder.name}"
            sink = FilesSink(path, guarantee=guarantee, store_options=self._server.settings())
            return ExactlyOnce(sink, checkpoint=str(folder / "checkpoint"), display=False).start(rows)

        return start

    def sparks(self, rows: DataFrame, folder: Path) -> StreamingQuery:
        """Starts Spark's own file sink."""
        written = rows.writeStream.format("parquet").option("checkpointLocation", str(folder / "checkpoint"))
        return written.start(f"s3a://{BUCKET}/{folder.name}")

    def count(self, folder: Path) -> int:
        """Counts rows with a reader that is independent of sparkonce and Spark. It skips hidden files."""
        files = pyarrow.fs.S3FileSystem(
            endpoint_override=urllib.parse.urlsplit(self._server.url).netloc,
            scheme="http",
            access_key=ACCESS_KEY,
            secret_key=SECRET_KEY,
        )
        return int(ds.dataset(f"{BUCKET}/{folder.name}", format="parquet", filesystem=files).count_rows())

    def clean(self) -> None:
        """Empties the bucket."""
        while found := self._client.list_objects_v2(Bucket=BUCKET).get("Contents"):
            self._client.delete_objects(Bucket=BUCKET, Delete={"Objects": [{"Key": one["Key"]} for one in found]})


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows per batch")
    parser.add_argument("--warm", type=int, default=2, help="warm-up batches")
    parser.add_argument("--measured", type=int, default=5, help="measured batches")
    parser.add_argument("--without-spark", action="store_true", help="download nothing, and skip Spark's sink")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
