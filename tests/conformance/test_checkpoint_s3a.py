"""S3 by Hadoop's client, which has a conditional put from 3.4.2 on: in a Python with Spark 4.1 or newer, by hand.

``PYTHONPATH=src:tests python -m pytest -c /dev/null --rootdir . --noconftest tests/conformance/test_checkpoint_s3a.py``
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyspark
import pytest

from conformance.checkpoint_suite import CheckpointSuite, Faulty, NetworkSuite, RefusalSuite, Refusing
from jvm import bare_jvm, s3a_files, s3a_jars
from s3_between import CUT_REPLY, GO_ON, Between, Reply, Request, refusal
from shared_servers import s3_server
from sparkonce.checkpoint.files import CheckpointFiles, Landed, PutUnknownError, Taken
from sparkonce.checkpoint.proof import PROVED, prove
from sparkonce.rig.servers.s3 import S3Server
from sparkonce.spark.checkpoints import calls, s3a
from sparkonce.spark.checkpoints.s3a import S3AFiles

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(pyspark.__version__ < "4.1", reason="Spark 4.0 has Hadoop 3.4.1"),
]

TESTS = str(Path(__file__).parents[1])


@pytest.fixture(scope="module")
def s3() -> S3Server:
    return s3_server()


@pytest.fixture(scope="module")
def jvm() -> Iterator[Any]:
    with bare_jvm(s3a_jars()) as started:
        yield started


@pytest.fixture
def bucket(s3: S3Server) -> str:
    name = f"test-{secrets.token_hex(6)}"
    (s3.folder / "data" / name).mkdir()
    return name


class TestS3A(CheckpointSuite):
    @pytest.fixture
    def files(self, s3: S3Server, jvm: Any, bucket: str) -> CheckpointFiles:
        self.jvm, self.s3 = jvm, s3
        return s3a_files(jvm, f"s3a://{bucket}/checkpoint", s3.url)

    def another(self, files: CheckpointFiles) -> CheckpointFiles:
        return s3a_files(self.jvm, files.location, self.s3.url)

    def opening(self, files: CheckpointFiles) -> str:
        return (
            f"sys.path.insert(0, {TESTS!r})\nfrom jvm import bare_jvm, s3a_files, s3a_jars\n"
            "opened = bare_jvm(s3a_jars())\n"
            f"files = s3a_files(opened.__enter__(), {files.location!r}, {self.s3.url!r})"
        )

    def test_it_proves_itself_once(self, files: CheckpointFiles) -> None:
        prove(files)
        assert files.read(PROVED) is not None
        assert list(files.names("sparkonce")) == ["proved"]


@pytest.fixture
def between(s3: S3Server) -> Iterator[Between]:
    with Between(s3.port).running() as proxy:
        yield proxy


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3a, "TRIES_S", 3.0)
    monkeypatch.setattr(calls, "DEADLINE_S", 20.0)


def is_put(request: Request) -> bool:
    return request.method == "PUT"


class TestS3ABehindFaults(NetworkSuite):
    @pytest.fixture
    def faulty(self, s3: S3Server, jvm: Any, bucket: str, between: Between, patient: None) -> Faulty:
        folder = f"s3a://{bucket}/checkpoint"

        def lose(rest: object) -> None:
            puts: list[Request] = []

            def act(request: Request) -> object:
                if not is_put(request):
                    return GO_ON
                puts.append(request)
                return CUT_REPLY if len(puts) == 1 else rest

            between.act = act  # type: ignore[assignment]

        def heal() -> None:
            between.act = lambda _: GO_ON

        def cut() -> None:
            between.act = lambda _: refusal(503, "SlowDown")

        files, clean = s3a_files(jvm, folder, between.url), s3a_files(jvm, folder, s3.url)
        return Faulty(files, clean, lambda: lose(GO_ON), lambda: lose(refusal(500, "InternalError")), cut, heal)


class TestS3AThatRefuses(RefusalSuite):
    @pytest.fixture
    def refusing(self, s3: S3Server, jvm: Any, bucket: str, between: Between) -> Refusing:
        @contextmanager
        def during() -> Iterator[None]:
            between.act = lambda request: refusal(403, "AccessDenied") if is_put(request) else GO_ON
            yield
            between.act = lambda _: GO_ON

        folder = f"s3a://{bucket}/checkpoint"
        return Refusing(s3a_files(jvm, folder, between.url), s3a_files(jvm, folder, s3.url), during(), passes=False)


class TestAnswers:
    """Of a store that answers otherwise than the one here."""

    @pytest.fixture
    def files(self, jvm: Any, bucket: str, between: Between, patient: None) -> S3AFiles:
        return s3a_files(jvm, f"s3a://{bucket}/checkpoint", between.url)

    def answer(self, between: Between, *replies: Reply) -> list[Request]:
        waiting, puts = list(replies), []

        def act(request: Request) -> object:
            if is_put(request):
                puts.append(request)
                return waiting.pop(0) if waiting else GO_ON
            return GO_ON

        between.act = act  # type: ignore[assignment]
        return puts

    def test_each_put_has_the_condition(self, files: S3AFiles, between: Between) -> None:
        seen = []
        between.listen = lambda request, headers: seen.append((request.method, headers.get("If-None-Match")))
        assert files.put("a", b"x") == Landed()
        assert seen == [("PUT", "*")], "one request, and nothing else"

    def test_a_conflict_is_put_again(self, files: S3AFiles, between: Between) -> None:
        puts = self.answer(between, *[refusal(409, "ConditionalRequestConflict")] * 2)
        assert files.put("a", b"x") == Landed()
        assert len(puts) == 3

    def test_a_conflict_that_lasts_has_not_landed(self, files: S3AFiles, between: Between) -> None:
        self.answer(between, *[refusal(409, "ConditionalRequestConflict")] * 1000)
        with pytest.raises(OSError, match="409") as caught:
            files.put("a", b"x")
        assert calls.StoreError is type(caught.value)

    def test_a_refusal_after_a_lost_reply_leaves_the_put_in_doubt(self, files: S3AFiles, between: Between) -> None:
        self.answer(between, refusal(500, "InternalError"), refusal(403, "AccessDenied"))
        with pytest.raises(PutUnknownError, match=r"InternalError|500"):
            files.put("a", b"x")

    def test_an_error_that_passes(self, files: S3AFiles, between: Between) -> None:
        self.answer(between, refusal(500, "InternalError"), refusal(503, "SlowDown"))
        assert files.put("a", b"x") == Landed()
        assert files.put("a", b"y") == Taken(standing=b"x")

    def test_no_bucket(self, jvm: Any, s3: S3Server) -> None:
        with pytest.raises(OSError, match="NoSuchBucket"):
            s3a_files(jvm, "s3a://no-such-bucket/c", s3.url).put("a", b"x")
