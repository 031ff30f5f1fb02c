"""Where a checkpoint can be: each store is a URL, Spark's settings for it, and a way to read a file there."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from sparkonce.rig.kafka.jars import spark_s3a_class_path
from sparkonce.rig.servers.hdfs import Hdfs
from sparkonce.rig.servers.s3 import ACCESS_KEY, SECRET_KEY, S3Server

OTHER_USER = "daemon"
"""Who starts a driver on another machine."""

_UP_WITHIN_S = 300.0
_SHARED = 0o2775
"""A folder that its group writes to, as do all that are made there."""


GROUP_WRITES = {"spark.hadoop.fs.permissions.umask-mode": "002"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Store:
    """A place for checkpoints.

    Attributes:
        kind: ``file``, ``s3`` or ``hdfs``.
        url: The folder in which a test's checkpoints are.
        read: Reads the file of a URL; None if there is none.
        names: Names the files of a folder's URL; none if it is missing.
        spark: Spark's settings.
    """

    kind: str
    url: str
    read: Callable[[str], bytes | None]
    names: Callable[[str], list[str]]
    spark: Mapping[str, str] = field(default_factory=dict)


@contextmanager
def open_folder(owner: str | None = None) -> Iterator[Path]:
    """A temporary folder that other users get to, below no folder of ours alone: the group of `OTHER_USER` writes."""
    with tempfile.TemporaryDirectory(prefix="sparkonce-shared-", ignore_cleanup_errors=True) as folder:
        shutil.chown(folder, owner, OTHER_USER)
        Path(folder).chmod(_SHARED)
        yield Path(folder)


@contextmanager
def file_store(_: Path) -> Iterator[Store]:
    """A folder on a disk that all machines share."""

    def read(url: str) -> bytes | None:
        path = Path(url.removeprefix("file://"))
        return path.read_bytes() if path.exists() else None

    def names(url: str) -> list[str]:
        return [path.name for path in Path(url.removeprefix("file://")).glob("*")]

    with open_folder() as folder:
        yield Store(kind="file", url=f"file://{folder}", read=read, names=names, spark=GROUP_WRITES)


@contextmanager
def s3_store(folder: Path) -> Iterator[Store]:
    """A bucket of a server that knows conditional puts, by Hadoop's S3A."""
    import boto3
    from botocore.config import Config

    with S3Server(folder / "s3") as server:
        given = server.settings()
        style = Config(s3={"addressing_style": given.pop("addressing_style")}, retries={"mode": "standard"})
        client = boto3.client("s3", config=style, **given)
        client.create_bucket(Bucket="cluster")

        def read(url: str) -> bytes | None:
            try:
                answer = client.get_object(Bucket="cluster", Key=url.removeprefix("s3a://cluster/"))
            except client.exceptions.NoSuchKey:
                return None
            return bytes(answer["Body"].read())

        def names(url: str) -> list[str]:
            prefix = f"{url.removeprefix('s3a://cluster/')}/"
            pages = client.get_paginator("list_objects_v2").paginate(Bucket="cluster", Prefix=prefix, Delimiter="/")
            return [one["Key"].rpartition("/")[2] for page in pages for one in page.get("Contents", ())]

        settings = {
            "endpoint": server.url,
            "endpoint.region": given["region_name"],
            "path.style.access": "true",
            "fast.upload.buffer": "bytebuffer",  # not in a folder, which users of one machine would share
            "access.key": ACCESS_KEY,
            "secret.key": SECRET_KEY,
        }
        spark = {f"spark.hadoop.fs.s3a.{name}": value for name, value in settings.items()}
        spark |= dict.fromkeys(("spark.driver.extraClassPath", "spark.executor.extraClassPath"), spark_s3a_class_path())
        yield Store(kind="s3", url="s3a://cluster/jobs", read=read, names=names, spark=spark)


@contextmanager
def hdfs_store(folder: Path) -> Iterator[Store]:
    """A name node and a data node, which ask no user for rights."""
    from hdfs_native import Client

    server = Hdfs(folder / "hdfs")
    server.up_within_s = _UP_WITHIN_S
    with server:
        client = Client(server.url)

        def read(url: str) -> bytes | None:
            try:
                with client.read(url.removeprefix(server.url)) as file:
                    return bytes(file.read())
            except FileNotFoundError:
                return None

        def names(url: str) -> list[str]:
            try:
                return [one.path.rpartition("/")[2] for one in client.list_status(url.removeprefix(server.url))]
            except FileNotFoundError:
                return []

        yield Store(kind="hdfs", url=f"{server.url}/jobs", read=read, names=names)


STORES: Mapping[str, Callable[[Path], AbstractContextManager[Store]]] = {
    "file": file_store,
    "s3": s3_store,
    "hdfs": hdfs_store,
}
