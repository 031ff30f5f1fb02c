"""Parquet files in S3."""

from __future__ import annotations

import io
import secrets
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from sparkonce.errors import PreflightError
from sparkonce.lab.systems.injections import ServerSystem
from sparkonce.rig.servers.process import HOST
from sparkonce.rig.servers.s3 import S3Server
from sparkonce.sinks.files.s3.settings import client, read_location, read_settings
from sparkonce.testing.systems.s3 import S3Witness

if TYPE_CHECKING:
    import pyarrow as pa

    from sparkonce.sink import TwoPhaseCommitSink

MEGABYTES = 1024

_TIMEOUTS = {"connect_timeout_s": 3.0, "read_timeout_s": 5.0}
_THREADS = 8


class S3System(ServerSystem):
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
    witness: S3Witness

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
        self._batches: dict[str, int] = {}
        self.injections = {}

    def start(self, folder: Path) -> None:
        """See `System.start`."""
        from botocore.exceptions import BotoCoreError, ClientError

        if self._users is None:
            server = S3Server(folder)
            self.start_own(server, self._megabytes)
            self._direct = dict(server.settings())
        self._direct = {**_TIMEOUTS, **self._direct}
        try:
            s3 = client(read_settings(self._direct), attempts=1)
            if self._users is None:
                s3.create_bucket(Bucket=self._bucket)
            s3.head_bucket(Bucket=self._bucket)
        except (BotoCoreError, ClientError) as error:
            raise PreflightError(
                f"The bucket {self._bucket!r} cannot be used: {error}", next_step="Check its name and the credentials."
            ) from None
        self.witness = S3Witness(s3, self._bucket, self._prefix)
        self._made = True
        self._through = self._direct
        endpoint = urlsplit(s3.meta.endpoint_url)
        if endpoint.scheme == "http":
            upstream = (endpoint.hostname or "localhost", endpoint.port or 80)
            proxy = self.start_proxy(upstream, S3Witness.requests["held"])
            # A name of the bucket before the host would be one that nobody knows.
            to = {"endpoint_url": f"http://{HOST}:{proxy.port}", "addressing_style": "path"}
            self._through = {**self._direct, **to}

    def drop_place(self) -> None:
        """See `ServerSystem.drop_place`."""
        self.witness.drop_place()

    def sink_settings(self) -> Mapping[str, Any]:
        """See `System.sink_settings`. With the credentials, if they are in the options."""
        return {"path": f"s3://{self._bucket}/{self._prefix.rstrip('/')}", "store_options": self._through}

    @staticmethod
    def build(settings: Mapping[str, Any]) -> TwoPhaseCommitSink:
        """See `System.build`."""
        from sparkonce.sinks.files.sink import FilesSink

        return FilesSink(settings["path"], name=S3System.name, store_options=settings["store_options"])

    def read(self) -> pa.Table:
        """See `System.read`. An object that is not one of Parquet's, or has other columns, gives one unreadable row."""
        import pyarrow as pa

        from sparkonce.lab.systems.observed import of_parquet, of_texts

        with ThreadPoolExecutor(_THREADS) as threads:
            found = threads.map(
                lambda key: of_parquet(io.BytesIO(self.witness.read(key))), self.witness.published_keys()
            )
            return pa.concat_tables([of_texts([]), *found])

    def newest(self) -> int:
        """See `System.newest`. Reads each object's batch once."""
        from sparkonce.lab.systems.observed import newest_in

        for key in self.witness.published_keys():
            if key not in self._batches:
                self._batches[key] = newest_in(io.BytesIO(self.witness.read(key)))
        return max(self._batches.values(), default=-1)

    def left_open(self) -> Sequence[str]:
        """See `System.left_open`: uploads that are neither completed nor aborted."""
        return self.witness.left_open()
