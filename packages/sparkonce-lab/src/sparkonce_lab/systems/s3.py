"""An S3 bucket that the files sink writes to."""

from __future__ import annotations

import io
import re
import secrets
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import urlsplit

from sparkonce.errors import PreflightError
from sparkonce.sinks.files.s3.settings import client, read_location, read_settings
from sparkonce_lab.rig.process import HOST
from sparkonce_lab.rig.proxy import after
from sparkonce_lab.rig.servers.s3 import S3Server, find_versitygw
from sparkonce_lab.systems.base import ServerSystem, VerifiedSystem
from sparkonce_lab.systems.files import FilesSystem, rows_in

if TYPE_CHECKING:
    import pyarrow as pa

    from sparkonce.protocol.handles import Handle
    from sparkonce.sink import TwoPhaseCommitSink
    from sparkonce_lab.rig.proxy import Request

MEGABYTES = 1024

_TIMEOUTS = {"connect_timeout_s": 3.0, "read_timeout_s": 5.0}
_THREADS = 8


class S3System(ServerSystem, VerifiedSystem):
    """A versitygw that is started here, on a disk that can be filled if mounting is allowed, or a prefix of the user's.

    Connections to the user's server can be struck if they are not encrypted (an ``endpoint_url`` with ``http:``). The
    objects and uploads below the prefix are deleted at the end.

    Args:
        location: The user's location, ``s3://bucket/prefix``; None to start a server.
        store_options: The options for connecting to the user's server; see `sparkonce.FilesSink`. Boto3's defaults
            apply to all others.

    Attributes:
        client: The boto3 client.
        bucket: The bucket that the sink writes to. It is a new one, except on the user's server.
        prefix: The prefix that the sink writes to. `place` creates it.
    """

    name = "s3"
    # Match only files with rows, because a starting run also writes a test file.
    REQUESTS: ClassVar[Mapping[str, Mapping[str, Request]]] = {
        "held": {
            # Match the body: the client sends the header first, and then waits for permission to send the body.
            "prepare": after(re.compile(rb"PUT [^ ]*/part-[^ ]*[?&]partNumber="), b""),
            "commit": re.compile(rb"POST [^ ]*/part-[^ ]*[?&]uploadId="),
            "abort": re.compile(rb"DELETE [^ ]*/part-[^ ]*[?&]uploadId="),
        }
    }

    def __init__(
        self,
        location: str | None = None,
        megabytes: int = MEGABYTES,
        store_options: Mapping[str, Any] | None = None,
        *,
        server: S3Server | None = None,
    ) -> None:
        self._users = location
        self._borrowed = server
        self.bucket, self._parent = ("", "") if location is None else read_location(location)
        self.prefix = self._parent
        self._direct: dict[str, Any] = dict(store_options or {})
        read_settings(self._direct)
        self._through = self._direct
        self._megabytes = megabytes
        self._batches: dict[str, int] = {}
        self._rows: dict[str, bytes] = {}
        self.client: Any = None

    @classmethod
    def missing(cls) -> str:
        return "" if find_versitygw() else "versitygw is not installed."

    def start(self, folder: Path) -> None:
        if self._borrowed is not None:
            self.borrow(self._borrowed)
            self._direct = dict(self._borrowed.settings())
        elif self._users is None:
            server = S3Server(folder)
            self.start_own(server, self._megabytes)
            self._direct = dict(server.settings())
        self._direct = self._through = {**_TIMEOUTS, **self._direct}
        self.client = client(read_settings(self._direct), attempts=1)
        endpoint = urlsplit(self.client.meta.endpoint_url)
        if endpoint.scheme == "http" and self._borrowed is None:
            upstream = (endpoint.hostname or "localhost", endpoint.port or 80)
            proxy = self.start_proxy(upstream, self.REQUESTS["held"])
            # Use path-style addresses, since a host name that begins with the bucket's name could not be resolved.
            to = {"endpoint_url": f"http://{HOST}:{proxy.port}", "addressing_style": "path"}
            self._through = {**self._direct, **to}

    def close(self) -> None:
        if self.client is not None:
            self.client.close()

    # --- the bucket ---------------------------------------------------------------------------------------------------

    def place(self, *columns: str) -> None:  # noqa: ARG002 - files need none
        from botocore.exceptions import BotoCoreError, ClientError

        new = f"sparkonce-verify-{secrets.token_hex(5)}"
        if self._users is None:
            self.bucket, self.prefix = new, "out/"
        else:
            self.prefix = f"{self._parent}{new}/"
        try:
            if self._users is None:
                self.client.create_bucket(Bucket=self.bucket)
            self.client.head_bucket(Bucket=self.bucket)
        except (BotoCoreError, ClientError) as error:
            raise PreflightError(
                f"The bucket {self.bucket!r} cannot be used: {error}", next_step="Check its name and the credentials."
            ) from None
        self._made = True

    def drop_place(self) -> None:
        for upload in self.uploads():
            self.abort_upload(upload)
        for key in self.keys():
            self.client.delete_object(Bucket=self.bucket, Key=key)

    def arguments(self, **options: Any) -> dict[str, Any]:
        """Includes the credentials if the options contain them."""
        return {"path": f"s3://{self.bucket}/{self.prefix.rstrip('/')}", "store_options": self._through, **options}

    @staticmethod
    def build(arguments: Mapping[str, Any]) -> TwoPhaseCommitSink:
        return FilesSystem.build(arguments)

    def expire(self, handle: Handle) -> bool:
        """Aborts the uploads of a transaction, as a lifecycle rule would."""
        from sparkonce.sinks.files.store import read_handle

        wanted = {str(one["upload_id"]) for one in read_handle(handle).files or ()}
        for upload in self.uploads():
            if upload["UploadId"] in wanted:
                self.abort_upload(upload)
        return True

    # --- what a reader sees -------------------------------------------------------------------------------------------

    def keys(self, prefix: str = "") -> list[str]:
        """Lists the objects whose keys begin with `self.prefix` followed by this prefix."""
        pages = self.client.get_paginator("list_objects_v2")
        found = pages.paginate(Bucket=self.bucket, Prefix=self.prefix + prefix)
        return [one["Key"] for page in found for one in page.get("Contents", ())]

    def published(self) -> list[str]:
        """Lists the objects that readers read: no part of their relative path begins with ``.`` or ``_``."""
        skip = len(self.prefix)
        return [key for key in self.keys() if not any(part[:1] in "._" for part in key[skip:].split("/"))]

    def content(self, key: str) -> bytes:
        content: bytes = self.client.get_object(Bucket=self.bucket, Key=key)["Body"].read()
        return content

    def visible(self, *columns: str) -> list[Any]:
        """Fetches each object once, because published objects do not change."""
        listed = self.published()
        self._rows |= {key: self.content(key) for key in listed if key not in self._rows}
        return [row for key in listed for row in rows_in(key, self._rows[key], columns)]

    def read(self) -> pa.Table:
        """Reads the rows. An object that is not Parquet, or has different columns, counts as one unreadable row."""
        import pyarrow as pa

        from sparkonce_lab.systems.observed import of_parquet, of_texts

        with ThreadPoolExecutor(_THREADS) as threads:
            found = threads.map(lambda key: of_parquet(io.BytesIO(self.content(key))), self.published())
            return pa.concat_tables([of_texts([]), *found])

    def newest(self) -> int:
        """Reads each object's batch once."""
        from sparkonce_lab.systems.observed import newest_in

        for key in self.published():
            if key not in self._batches:
                self._batches[key] = newest_in(io.BytesIO(self.content(key)))
        return max(self._batches.values(), default=-1)

    # --- what is open -------------------------------------------------------------------------------------------------

    def uploads(self) -> list[dict[str, Any]]:
        """Lists the uploads that are neither completed nor aborted."""
        # Do not pass the prefix, because MinIO supports only whole keys.
        pages = self.client.get_paginator("list_multipart_uploads").paginate(Bucket=self.bucket)
        found = [one for page in pages for one in page.get("Uploads", ())]
        return [one for one in found if one["Key"].startswith(self.prefix)]

    def abort_upload(self, upload: Mapping[str, Any]) -> None:
        self.client.abort_multipart_upload(Bucket=self.bucket, Key=upload["Key"], UploadId=upload["UploadId"])

    def left_open(self) -> Sequence[str]:
        """Returns uploads that are neither completed nor aborted."""
        return [f"{upload['Key']} {upload['UploadId']}" for upload in self.uploads()]
