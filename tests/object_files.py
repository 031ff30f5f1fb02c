"""A folder in a test's bucket, as our own client sees it."""

from __future__ import annotations

from s3_bucket import Bucket
from sparkonce.storage.objects import ObjectAccess, ObjectFiles
from sparkonce_lab.rig.servers.s3 import ACCESS_KEY, SECRET_KEY


def object_files(bucket: Bucket, prefix: str, url: str = "", name: str = "", **keys: str) -> ObjectFiles:
    """Returns the files of a folder.

    Args:
        bucket: The bucket.
        prefix: The folder's key.
        url: The address of a proxy in front of the store.
        name: The name of another bucket.
        keys: Other keys than the administrator's.
    """
    options = {"endpoint": url or bucket.server.url, "region": "us-east-1", "conditional_put": "etag"}
    known = {"access_key_id": ACCESS_KEY, "secret_access_key": SECRET_KEY}
    access = ObjectAccess(
        kind="s3", bucket=name or bucket.name, options=options, keys={**known, **keys}, allow_http=True
    )
    return ObjectFiles(f"s3a://{access.bucket}/{prefix}", prefix, access)
