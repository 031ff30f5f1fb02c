"""The files sink: on a local disk, on an S3 server, and in HDFS."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from crashes.target import OnSmallDisk, ServerOnSmallDisk, new_name
from s3_bucket import s3_client
from sparkonce.checkpoint.deadlines import within
from sparkonce.errors import SparkonceError
from sparkonce.rig.disk import SmallDisk
from sparkonce.rig.servers.hdfs import Hdfs
from sparkonce.rig.servers.process import HOST
from sparkonce.rig.servers.s3 import S3Server, find_versitygw
from sparkonce.sink import TwoPhaseCommitSink
from sparkonce.sinks.files.sink import FilesSink
from sparkonce.testing.systems.files import FilesWitness
from sparkonce.testing.systems.s3 import S3Witness

_MEGABYTES = 16
_S3_MEGABYTES = 64
_HDFS_MEGABYTES = 64
_ANSWERS_WITHIN_S = 10.0


def rows(start: int, count: int) -> pa.RecordBatch:
    """Two partitions, so that a slot's transaction is of more than one file."""
    numbers = range(start, start + count)
    return pa.record_batch({"number": list(numbers), "part": [f"p{number % 2}" for number in numbers]})


def _numbers(content: bytes) -> list[int]:
    return [json.loads(line)["number"] for line in content.splitlines()]


class FilesTarget(OnSmallDisk):
    name = "files"
    preload = ("sparkonce.sinks.files.writer", "sparkonce.sinks.files.committer", "sparkonce.sinks.files.local.store")
    shows_within_s = gone_within_s = 0.0
    rows = staticmethod(rows)

    def start(self, folder: Path) -> None:
        self.disk = SmallDisk(folder, _MEGABYTES)

    def new_place(self) -> None:
        self.root = self.disk.folder / new_name()
        self.root.mkdir()
        self.witness = FilesWitness(self.root)

    def make_sink(self) -> TwoPhaseCommitSink:
        return FilesSink(self.root, format="json", compression="none", partition_by="part")

    def visible(self) -> Sequence[int]:
        return [number for path in self.witness.published() for number in _numbers(path.read_bytes())]

    def lingering(self) -> Sequence[str]:
        return self.witness.left_open()


class S3Target(ServerOnSmallDisk):
    name = "files-s3"
    choice = "light"
    preload = (
        "boto3",
        "sparkonce.sinks.files.writer",
        "sparkonce.sinks.files.committer",
        "sparkonce.sinks.files.s3.store",
    )
    shows_within_s = 0.5
    rows = staticmethod(rows)
    server: S3Server
    requests = S3Witness.requests["held"]
    witness: S3Witness

    def missing(self) -> str:
        return "" if find_versitygw() else "versitygw is not installed"

    def make_server(self, folder: Path) -> S3Server:
        self.disk = SmallDisk(folder, _S3_MEGABYTES)
        return S3Server(folder)

    def new_place(self) -> None:
        self.bucket = f"bucket-{new_name()}"
        self.witness = S3Witness(s3_client(self.server), self.bucket)
        self.witness.client.create_bucket(Bucket=self.bucket)
        self._known: dict[str, list[int]] = {}

    def make_sink(self) -> TwoPhaseCommitSink:
        to = {**self.server.settings(), "endpoint_url": f"http://{HOST}:{self.proxy.port}"}
        where = f"s3://{self.bucket}/out"
        return FilesSink(where, format="json", compression="none", partition_by="part", store_options=to)

    def visible(self) -> Sequence[int]:
        listed = self.witness.published_keys("out/part=")
        for key in set(listed) - self._known.keys():
            self._known[key] = _numbers(self.witness.read(key))
        return [number for key in listed for number in self._known[key]]

    def lingering(self) -> Sequence[str]:
        return self.witness.left_open()


@functools.cache
def _no_hdfs() -> str:
    try:
        import hdfs_native  # noqa: F401

        Hdfs(Path())
    except (ImportError, SparkonceError) as error:
        return f"HDFS cannot be had here: {error}"
    return ""


class HdfsTarget(ServerOnSmallDisk):
    """The proxy stands before the name node, which knows what file there is; blocks go straight to the data node.

    It is the data node's disk that is filled: the name node's is its journal, without which it ends.
    """

    name = "files-hdfs"
    choice = "few"
    preload = ("sparkonce.sinks.files.writer", "sparkonce.sinks.files.committer", "sparkonce.sinks.files.hdfs.store")
    shows_within_s = 0.5
    rows = staticmethod(rows)
    server: Hdfs
    requests = {  # noqa: RUF012 - by method, and by the name of what is held back: others probe and put
        "prepare": re.compile(rb"\x08complete\x12.{1,200}\.held", re.DOTALL),
        "commit": re.compile(rb"\x07rename2\x12.{1,200}\.held", re.DOTALL),
        "abort": re.compile(rb"\x06delete\x12.{1,200}\.held", re.DOTALL),
    }

    def missing(self) -> str:
        return _no_hdfs()

    def make_server(self, folder: Path) -> Hdfs:
        self.disk = SmallDisk(folder / "disk", _HDFS_MEGABYTES)
        return Hdfs(folder / "hdfs", blocks=self.disk.folder / "blocks")

    def new_place(self) -> None:
        self.root = f"/{new_name()}"
        self._known: dict[str, list[int]] = {}

    def make_sink(self) -> TwoPhaseCommitSink:
        return FilesSink(
            f"hdfs://{self.proxy.address}{self.root}",
            format="json",
            compression="none",
            partition_by="part",
            store_options={"deadline_s": 5.0},
        )

    def visible(self) -> Sequence[int]:
        paths = [path for path in self._list() if path.startswith(f"{self.root}/part=")]
        for path in set(paths) - self._known.keys():
            self._known[path] = _numbers(self._ask(lambda client, path=path: bytes(client.read(path).read())))
        return [number for path in paths for number in self._known[path]]

    def lingering(self) -> Sequence[str]:
        return [path for path in self._list() if path.startswith(f"{self.root}/.sparkonce/held/")]

    def _list(self) -> list[str]:
        try:
            found = self._ask(lambda client: list(client.list_status(self.root, recursive=True)))
        except FileNotFoundError:  # no run has begun
            return []
        return [one.path for one in found if not one.isdir]

    def _ask(self, question: Callable[[Any], Any]) -> Any:
        """With a deadline, and a client of its own: a client asks a name node that is away for minutes."""
        from hdfs_native import Client

        (answer,) = within(_ANSWERS_WITHIN_S, [lambda: question(Client(self.server.url))])
        if isinstance(answer, BaseException):
            raise answer
        return answer
