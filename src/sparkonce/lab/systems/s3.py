"""Parquet files in S3."""

from __future__ import annotations

import io
import re
import secrets
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from sparkonce.errors import PreflightError
from sparkonce.lab.systems.injections import Injectable, of_connections, of_disk, of_server
from sparkonce.rig.disk import SmallDisk, affordable
from sparkonce.rig.proxy import FaultProxy, Request
from sparkonce.rig.servers.process import HOST
from sparkonce.rig.servers.s3 import S3Server
from sparkonce.sinks.files.s3.settings import client, read_location, read_settings
from sparkonce.testing.matchers import after

if TYPE_CHECKING:
    import pyarrow as pa

    from sparkonce.sink import TwoPhaseCommitSink

MEGABYTES = 1024

_REQUESTS: Mapping[str, Request] = {
    # The body: a client asks first whether it may send it.
    "prepare": after(re.compile(rb"PUT [^ ]*/part-[^ ]*[?&]partNumber="), b""),
    "commit": re.compile(rb"POST [^ ]*/part-[^ ]*[?&]uploadId="),
    "abort": re.compile(rb"DELETE [^ ]*/part-[^ ]*[?&]uploadId="),
}
_TIMEOUTS = {"connect_timeout_s": 3.0, "read_timeout_s": 5.0}
_THREADS = 8


class S3System(Injectable):
    """A versitygw of our own, on a disk that can be filled where mounting is allowed; or a new prefix in the user's.

    Connections to the user's own can be struck where they are not encrypted (an ``endpoint_url`` with ``http:``). Its
    objects and uploads are deleted in the end.

    Args:
        location: The user's, ``s3://bucket/prefix``; None for a server of our own.
        megabytes: The size of our own disk, which is in memory and takes as much of it as is written.
        store_options: How to reach the user's, see `sparkonce.FilesSink`; what is left out is boto3's to find.

    Raises:
        ConfigurationError: if the location or an option is none.
    """

    name = "s3"

    def __init__(
        self,
        location: str | None = None,
        megabytes: int = MEGABYTES,
        store_options: Mapping[str, Any] | None = None,
    ) -> None:
        self._users = location
        self._bucket, self._prefix = "verified", ""
        if location is not None:
            self._bucket, self._prefix = read_location(location)
        self._prefix += f"sparkonce-verify-{secrets.token_hex(5)}/"
        self._direct: dict[str, Any] = dict(store_options or {})
        read_settings(self._direct)
        self._through = self._direct
        self._megabytes = megabytes
        self._server: S3Server | None = None
        self._disk: SmallDisk | None = None
        self._batches: dict[str, int] = {}
        self._started = False
        self.injections = {}

    def start(self, folder: Path) -> None:
        """See `System.start`."""
        from botocore.exceptions import BotoCoreError, ClientError

        if self._users is None:
            self._disk = SmallDisk(folder, affordable(self._megabytes))
            self._server = server = S3Server(folder)
            server.start()
            self._direct = dict(server.settings())
            self.injections = {**of_server(server), **of_disk(self._disk, server)}
        self._direct = {**_TIMEOUTS, **self._direct}
        try:
            if self._users is None:
                self._client().create_bucket(Bucket=self._bucket)
            endpoint = urlsplit(self._client().meta.endpoint_url)
            self._client().head_bucket(Bucket=self._bucket)
        except (BotoCoreError, ClientError) as error:
            raise PreflightError(
                f"the bucket {self._bucket!r} cannot be used: {error}", next_step="check its name and the credentials."
            ) from None
        self._started = True
        self._through = self._direct
        if endpoint.scheme == "http":
            self.proxy = FaultProxy((endpoint.hostname or "localhost", endpoint.port or 80), _REQUESTS)
            self.proxy.start()
            self.requests = tuple(_REQUESTS)
            # A name of the bucket before the host would be one that nobody knows.
            to = {"endpoint_url": f"http://{HOST}:{self.proxy.port}", "addressing_style": "path"}
            self._through = {**self._direct, **to}
            self.injections = {**of_connections(self.proxy), **self.injections}

    def stop(self) -> None:
        """See `System.stop`."""
        if self.proxy is not None:
            self.proxy.close()
            self.proxy = None
        if self._server is not None:
            self._server.stop()
            self._server = None
        elif self._started and not self.keep_place:
            self._delete()
        if self._disk is not None:
            self._disk.close()
            self._disk = None

    def _delete(self) -> None:
        s3 = self._client()
        for upload in self._uploads():
            s3.abort_multipart_upload(Bucket=self._bucket, Key=upload["Key"], UploadId=upload["UploadId"])
        for key in self._keys():
            s3.delete_object(Bucket=self._bucket, Key=key)
        self._started = False

    def sink_settings(self) -> Mapping[str, Any]:
        """See `System.sink_settings`. With the credentials, if they are in the options."""
        return {"path": f"s3://{self._bucket}/{self._prefix.rstrip('/')}", "store_options": self._through}

    @staticmethod
    def build(settings: Mapping[str, Any]) -> TwoPhaseCommitSink:
        """See `System.build`."""
        from sparkonce.sinks.files.sink import FilesSink

        return FilesSink(settings["path"], name=S3System.name, store_options=settings["store_options"])

    def read(self) -> pa.Table:
        """See `System.read`. An object that is not one of Parquet's, or has other columns, gives one strange row."""
        import pyarrow as pa

        from sparkonce.lab.systems.observed import of_parquet, of_texts

        with ThreadPoolExecutor(_THREADS) as threads:
            return pa.concat_tables([of_texts([]), *threads.map(lambda key: of_parquet(self._get(key)), self._files())])

    def newest(self) -> int:
        """See `System.newest`. Reads each object's batch once."""
        from sparkonce.lab.systems.observed import newest_in

        for key in self._files():
            if key not in self._batches:
                self._batches[key] = newest_in(self._get(key))
        return max(self._batches.values(), default=-1)

    def left_open(self) -> Sequence[str]:
        """See `System.left_open`: uploads that are neither completed nor aborted."""
        return [f"{upload['Key']} {upload['UploadId']}" for upload in self._uploads()]

    def _files(self) -> list[str]:
        """The objects that a reader of such folders takes: none that begins with ``.`` or ``_``."""
        skip = len(self._prefix)
        return [key for key in self._keys() if key[skip] not in "._"]

    def _keys(self) -> list[str]:
        pages = self._client().get_paginator("list_objects_v2").paginate(Bucket=self._bucket, Prefix=self._prefix)
        return [one["Key"] for page in pages for one in page.get("Contents", ())]

    def _uploads(self) -> list[Mapping[str, Any]]:
        pages = self._client().get_paginator("list_multipart_uploads")
        found = [
            one for page in pages.paginate(Bucket=self._bucket, Prefix=self._prefix) for one in page.get("Uploads", ())
        ]
        return [one for one in found if one["Key"].startswith(self._prefix)]

    def _get(self, key: str) -> io.BytesIO:
        return io.BytesIO(self._client().get_object(Bucket=self._bucket, Key=key)["Body"].read())

    def _client(self) -> Any:
        return client(read_settings(self._direct), attempts=1)
