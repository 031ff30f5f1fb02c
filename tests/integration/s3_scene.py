"""Shared by tests of S3: a server, a new bucket, a proxy in front of it, and a store that writes to it.

The fixtures are for importing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from s3_between import Between
from s3_bucket import Bucket, new_name
from shared_servers import s3_server
from sparkonce.sinks.files.names import file_path
from sparkonce.sinks.files.s3.store import S3Store
from sparkonce.sinks.files.store import Fields, FileStore
from sparkonce_lab.rig.servers.s3 import S3Server


@pytest.fixture(scope="module")
def s3() -> S3Server:
    return s3_server()


@pytest.fixture
def bucket(s3: S3Server) -> Bucket:
    return Bucket(s3)


@pytest.fixture
def between(s3: S3Server) -> Iterator[Between]:
    with Between(s3.port).running() as proxy:
        yield proxy


def new_store(bucket: Bucket, *, page: int = 1000, **settings: Any) -> S3Store:
    """A store in a new bucket, or through a proxy: ``endpoint_url=between.url``."""
    return S3Store(f"s3://{bucket.name}/out", {**bucket.server.settings(), **settings}, page=page)


def seal(store: FileStore, content: bytes = b"rows", *, folder: str = "a=1") -> Fields:
    """A staged file."""
    name = new_name()
    held = store.stage(name, file_path(folder, name, 0, ".txt"))
    held.stream.write(content)
    return held.seal()
