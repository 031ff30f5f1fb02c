"""A view of an S3 bucket that is independent of the sink, through a separate boto3 client."""

from __future__ import annotations

import io
import secrets
from typing import Any

import boto3
import pyarrow.parquet as pq
from botocore.config import Config

from shared_servers import s3_server
from sparkonce.protocol.ownership import Token, TransactionName
from sparkonce.sinks.files.names import file_path
from sparkonce.sinks.files.s3.store import S3Store
from sparkonce.sinks.files.store import Fields, FileStore
from sparkonce.storage.objects import ObjectAccess, ObjectFiles
from sparkonce_lab.rig.servers.s3 import ACCESS_KEY, SECRET_KEY, S3Server
from sparkonce_lab.systems.s3 import S3System


def s3_client(server: S3Server) -> Any:
    return boto3.client(
        "s3",
        endpoint_url=server.url,
        aws_access_key_id=ACCESS_KEY,
        aws_secret_access_key=SECRET_KEY,
        region_name="us-east-1",
        config=Config(s3={"addressing_style": "path"}, connect_timeout=5, read_timeout=10),
    )


class Bucket(S3System):
    """A new bucket that only the test uses, by default on the server that all tests of the process share."""

    def __init__(self, server: S3Server | None = None) -> None:
        self.server = server or s3_server()
        super().__init__(server=self.server)
        self.client = s3_client(self.server)
        self.name = self.bucket = f"test-{secrets.token_hex(6)}"
        self.client.create_bucket(Bucket=self.name)

    def objects(self, prefix: str = "out/a=") -> dict[str, bytes]:
        return {key: self.content(key) for key in self.keys(prefix)}

    def published(self) -> dict[str, bytes]:
        """Returns the files of a sink that writes to ``out``, by key, without the sink's own bookkeeping."""
        found = self.objects("out/")
        return {key: content for key, content in found.items() if not key.startswith(("out/.sparkonce/", "out/_"))}

    def numbers(self, column: str) -> list[int]:
        """Returns the values of a column as a Parquet reader finds them."""
        tables = [pq.ParquetFile(io.BytesIO(content)).read() for content in self.published().values()]
        return [number for table in tables for number in table.column(column).to_pylist()]

    def abort(self, upload_id: str) -> None:
        """Ends an upload as a lifecycle rule does."""
        (found,) = [one for one in self.uploads() if one["UploadId"] == upload_id]
        self.abort_upload(found)

    def store(self, *, page: int = 1000, **settings: Any) -> S3Store:
        """A sink's store in this bucket, or through a proxy: ``endpoint_url=between.url``."""
        return S3Store(f"s3://{self.name}/out", {**self.server.settings(), **settings}, page=page)

    def files(self, prefix: str, url: str = "", name: str = "", **keys: str) -> ObjectFiles:
        """Checkpoint files below this key, through a proxy's URL, in another bucket or with other keys if given."""
        options = {"endpoint": url or self.server.url, "region": "us-east-1", "conditional_put": "etag"}
        keys = {"access_key_id": ACCESS_KEY, "secret_access_key": SECRET_KEY, **keys}
        access = ObjectAccess(kind="s3", bucket=name or self.name, options=options, keys=keys, allow_http=True)
        return ObjectFiles(f"s3a://{access.bucket}/{prefix}", prefix, access)


def seal(store: FileStore, content: bytes = b"rows", *, folder: str = "a=1") -> Fields:
    name = new_name()
    held = store.stage(name, file_path(folder, name, 0, ".txt"))
    held.stream.write(content)
    return held.seal()


def new_name(query: str = "0123456789ab", *, prefix: str = "files", position: int = 7) -> TransactionName:
    """A transaction of a run of one query."""
    return TransactionName(
        prefix=prefix,
        query=query,
        token=Token(position, "00112233"),
        batch=0,
        slot=0,
        copy=secrets.token_hex(6),
    )
