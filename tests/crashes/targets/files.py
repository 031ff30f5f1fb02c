"""The files sink: on a local disk, and on an S3 server."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import boto3
import pyarrow as pa
from botocore.config import Config

from crashes.disk import SmallDisk, cannot_mount
from crashes.target import ServerTarget, Target, new_name
from sparkonce.sinks.base import TwoPhaseCommitSink
from sparkonce.sinks.files.sink import FilesSink
from sparkonce.testing.servers.process import HOST
from sparkonce.testing.servers.s3 import ACCESS_KEY, SECRET_KEY, S3Server, find_versitygw

_MEGABYTES = 16


def rows(start: int, count: int) -> pa.RecordBatch:
    """Two partitions, so that a slot's transaction is of more than one file."""
    numbers = range(start, start + count)
    return pa.record_batch({"number": list(numbers), "part": [f"p{number % 2}" for number in numbers]})


class FilesTarget(Target):
    name = "files"
    preload = ("sparkonce.sinks.files.writer", "sparkonce.sinks.files.committer", "sparkonce.sinks.files.local")
    shows_within_s = gone_within_s = 0.0
    rows = staticmethod(rows)

    def start(self, folder: Path) -> None:
        self._disk = SmallDisk(folder, _MEGABYTES)

    def stop(self) -> None:
        self._disk.close()

    def new_place(self) -> None:
        self.root = self._disk.folder / new_name()
        self.root.mkdir()

    def make_sink(self) -> TwoPhaseCommitSink:
        return FilesSink(self.root, format="json", compression="none", partition_by="part")

    def visible(self) -> Sequence[int]:
        return [
            int(line.split(b'"number":')[1].split(b"}")[0].split(b",")[0])
            for path in self.root.glob("part=*/*")
            if not path.name.startswith((".", "_"))
            for line in path.read_bytes().splitlines()
        ]

    def lingering(self) -> Sequence[str]:
        return [str(path) for path in (self.root / ".sparkonce" / "held").rglob("*") if path.is_file()]

    @property
    def can_fill(self) -> bool:  # type: ignore[override]
        return not cannot_mount()

    def fill_disk(self) -> None:
        self._disk.fill()

    def free_disk(self) -> None:
        self._disk.free()


class S3Target(ServerTarget):
    name = "files-s3"
    is_heavy = True
    preload = (
        "boto3",
        "sparkonce.sinks.files.writer",
        "sparkonce.sinks.files.committer",
        "sparkonce.sinks.files.s3",
    )
    shows_within_s = 0.5
    rows = staticmethod(rows)
    server: S3Server
    requests = {  # noqa: RUF012
        "prepare": re.compile(rb"PUT [^ ]*[?&]partNumber="),
        "commit": re.compile(rb"POST [^ ]*[?&]uploadId="),
        "abort": re.compile(rb"DELETE [^ ]*[?&]uploadId="),
    }

    def missing(self) -> str:
        return "" if find_versitygw() else "versitygw is not installed"

    def make_server(self, folder: Path) -> S3Server:
        return S3Server(folder)

    def new_place(self) -> None:
        self.bucket = f"bucket-{new_name()}"
        self._client = boto3.client(
            "s3",
            endpoint_url=self.server.url,
            aws_access_key_id=ACCESS_KEY,
            aws_secret_access_key=SECRET_KEY,
            region_name="us-east-1",
            config=Config(s3={"addressing_style": "path"}, connect_timeout=5, read_timeout=10),
        )
        self._client.create_bucket(Bucket=self.bucket)
        self._known: dict[str, list[int]] = {}

    def make_sink(self) -> TwoPhaseCommitSink:
        to = {**self.server.settings(), "endpoint_url": f"http://{HOST}:{self.proxy.port}"}
        where = f"s3://{self.bucket}/out"
        return FilesSink(where, format="json", compression="none", partition_by="part", store_options=to)

    def visible(self) -> Sequence[int]:
        listed: list[str] = []
        for page in self._client.get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix="out/part="):
            listed += [one["Key"] for one in page.get("Contents", ())]
        for key in set(listed) - self._known.keys():
            lines = self._client.get_object(Bucket=self.bucket, Key=key)["Body"].read().splitlines()
            self._known[key] = [int(line.split(b'"number":')[1].split(b"}")[0].split(b",")[0]) for line in lines]
        return [number for key in listed for number in self._known[key]]

    def lingering(self) -> Sequence[str]:
        found = self._client.list_multipart_uploads(Bucket=self.bucket).get("Uploads", ())
        return [f"{one['Key']} {one['UploadId']}" for one in found]
