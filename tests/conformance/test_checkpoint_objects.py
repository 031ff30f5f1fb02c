from __future__ import annotations

import secrets
from base64 import b64encode
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from pathlib import Path
from pickle import dumps

import pytest

from conformance.checkpoint_suite import CheckpointSuite
from conformance.network_suite import RefusalSuite, Refusing
from conformance.s3_suite import Behind, S3Suite, is_put
from object_files import object_files
from s3_between import GO_ON, Between, refusal
from s3_bucket import Bucket
from shared_servers import s3_server
from sparkonce.storage import objects
from sparkonce.storage.files import CheckpointFiles
from sparkonce.storage.objects import ObjectFiles


@cache
def bucket() -> Bucket:
    return Bucket(s3_server())


def new_prefix() -> str:
    return f"checkpoint-{secrets.token_hex(4)}"


class TestObjects(CheckpointSuite):
    @pytest.fixture
    def files(self) -> CheckpointFiles:
        return object_files(bucket(), new_prefix())

    def another(self, files: CheckpointFiles) -> CheckpointFiles:
        return files.inside("")

    def opening(self, files: CheckpointFiles) -> str:
        assert isinstance(files, ObjectFiles)
        return f"import base64, pickle\nfiles = pickle.loads(base64.b64decode({b64encode(dumps(files))!r}))"


@pytest.mark.slow
class TestObjectsBehindANetwork(S3Suite):
    @pytest.fixture
    def behind(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[Behind]:
        prefix = new_prefix()
        with Between(bucket().server.port).running() as between:

            def hurry() -> CheckpointFiles:
                monkeypatch.setattr(objects, "REQUEST_S", 1)
                monkeypatch.setattr(objects, "DEADLINE_S", 4.0)
                return object_files(bucket(), prefix, between.url)

            files, clean = object_files(bucket(), prefix, between.url), object_files(bucket(), prefix)
            yield Behind(between=between, files=files, clean=clean, hurry=hurry)


class TestObjectsThatAreRefused(RefusalSuite):
    @pytest.fixture(params=["read-only", "full"])
    def refusing(self, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Refusing]:
        prefix = new_prefix()
        answer = refusal(403, "AccessDenied") if request.param == "read-only" else refusal(507, "XMinioStorageFull")
        with Between(bucket().server.port).running() as between:

            @contextmanager
            def refused() -> Iterator[None]:
                between.act = lambda one: answer if is_put(one) else GO_ON
                yield
                between.act = lambda _: GO_ON

            during: AbstractContextManager[None] = refused()
            files, clean = object_files(bucket(), prefix, between.url), object_files(bucket(), prefix)
            yield Refusing(files=files, clean=clean, during=during, passes=request.param == "full")
