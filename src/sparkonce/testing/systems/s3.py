"""A bucket of S3, asked by a client of boto3's."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from sparkonce.testing.matchers import after
from sparkonce.testing.systems.base import Witness

if TYPE_CHECKING:
    from sparkonce.rig.proxy import Request


class S3Witness(Witness):
    """A part of a bucket that the files sink writes to.

    Args:
        client: boto3's.
        bucket: The bucket.
        prefix: The keys that are looked at.
    """

    requests: ClassVar[Mapping[str, Mapping[str, Request]]] = {
        # Of files with rows: a run that starts tries the place out with a file of its own.
        "held": {
            # The body: a client asks first whether it may send it.
            "prepare": after(re.compile(rb"PUT [^ ]*/part-[^ ]*[?&]partNumber="), b""),
            "commit": re.compile(rb"POST [^ ]*/part-[^ ]*[?&]uploadId="),
            "abort": re.compile(rb"DELETE [^ ]*/part-[^ ]*[?&]uploadId="),
        }
    }

    def __init__(self, client: Any, bucket: str, prefix: str = "") -> None:
        self.client = client
        self.bucket = bucket
        self.prefix = prefix

    def keys(self, prefix: str = "") -> list[str]:
        """Lists the objects."""
        pages = self.client.get_paginator("list_objects_v2")
        found = pages.paginate(Bucket=self.bucket, Prefix=self.prefix + prefix)
        return [one["Key"] for page in found for one in page.get("Contents", ())]

    def published_keys(self, prefix: str = "") -> list[str]:
        """Lists the objects that a reader of such folders takes: no part of their path begins with ``.`` or ``_``."""
        skip = len(self.prefix)
        return [key for key in self.keys(prefix) if not any(part[:1] in "._" for part in key[skip:].split("/"))]

    def read(self, key: str) -> bytes:
        """Returns an object's content."""
        content: bytes = self.client.get_object(Bucket=self.bucket, Key=key)["Body"].read()
        return content

    def uploads(self) -> list[dict[str, Any]]:
        """Lists the uploads that are neither completed nor aborted."""
        pages = self.client.get_paginator("list_multipart_uploads").paginate(Bucket=self.bucket, Prefix=self.prefix)
        found = [one for page in pages for one in page.get("Uploads", ())]
        return [one for one in found if one["Key"].startswith(self.prefix)]

    def abort_upload(self, upload: Mapping[str, Any]) -> None:
        """Aborts an upload, as a lifecycle rule does."""
        self.client.abort_multipart_upload(Bucket=self.bucket, Key=upload["Key"], UploadId=upload["UploadId"])

    def drop_place(self) -> None:
        """Aborts every upload and deletes every object."""
        for upload in self.uploads():
            self.abort_upload(upload)
        for key in self.keys():
            self.client.delete_object(Bucket=self.bucket, Key=key)

    def left_open(self) -> Sequence[str]:
        """See `Witness.left_open`: uploads."""
        return [f"{upload['Key']} {upload['UploadId']}" for upload in self.uploads()]

    def close(self) -> None:
        """See `Witness.close`. The client is the caller's."""
