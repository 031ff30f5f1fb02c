"""S3 by Hadoop's client, which has a conditional put from 3.4.2 on: in a Python with Spark 4.1 or newer, by hand.

``PYTHONPATH=src:tests python -m pytest -c /dev/null --rootdir . --noconftest tests/conformance/test_checkpoint_s3a.py``
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyspark
import pytest

from conformance.checkpoint_suite import CheckpointSuite, claim
from conformance.network_suite import RefusalSuite, Refusing
from conformance.s3_suite import Behind, S3Suite, first_put, held, is_put
from jvm import bare_jvm, s3a_files
from s3_between import CUT_REPLY, GO_ON, Between, Reply, Request, refusal
from shared_servers import s3_server
from sparkonce.log import DecisionLog, FilesLogStore
from sparkonce.spark.checkpoints import hadoop, s3a
from sparkonce.spark.checkpoints.s3a import S3AFiles
from sparkonce.storage.files import CheckpointFiles, Landed, PutUnknownError, Taken, may_pass
from sparkonce.storage.proof import PROVED, prove
from sparkonce_lab.rig.kafka.jars import spark_s3a_jars
from sparkonce_lab.rig.servers.s3 import S3Server

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
    with bare_jvm(spark_s3a_jars()) as started:
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
            f"sys.path.insert(0, {TESTS!r})\nfrom jvm import bare_jvm, s3a_files\n"
            "from sparkonce_lab.rig.kafka.jars import spark_s3a_jars\n"
            "opened = bare_jvm(spark_s3a_jars())\n"
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
    monkeypatch.setattr(hadoop, "DEADLINE_S", 20.0)


class TestS3ABehindFaults(S3Suite):
    @pytest.fixture
    def behind(
        self, s3: S3Server, jvm: Any, bucket: str, between: Between, monkeypatch: pytest.MonkeyPatch
    ) -> Iterator[Behind]:
        folder = f"s3a://{bucket}/checkpoint"
        limits = jvm.org.apache.hadoop.fs.s3a.impl.AWSClientConfig

        def hurry() -> CheckpointFiles:
            monkeypatch.setattr(s3a, "TRIES_S", 4.0)
            monkeypatch.setitem(s3a._SETTINGS, "fs.s3a.connection.request.timeout", "1s")
            limits.setMinimumOperationDuration(jvm.java.time.Duration.ofSeconds(1))
            return s3a_files(jvm, folder, between.url)

        files, clean = s3a_files(jvm, folder, between.url), s3a_files(jvm, folder, s3.url)
        yield Behind(between=between, files=files, clean=clean, hurry=hurry)
        limits.resetMinimumOperationDuration()


class TestS3AThatRefuses(RefusalSuite):
    @pytest.fixture(params=["read-only", "full"])
    def refusing(
        self, request: pytest.FixtureRequest, s3: S3Server, jvm: Any, bucket: str, between: Between
    ) -> Refusing:
        full = request.param == "full"
        answer = refusal(507, "XMinioStorageFull") if full else refusal(403, "AccessDenied")

        @contextmanager
        def during() -> Iterator[None]:
            between.act = lambda one: answer if is_put(one) else GO_ON
            yield
            between.act = lambda _: GO_ON

        folder = f"s3a://{bucket}/checkpoint"
        return Refusing(s3a_files(jvm, folder, between.url), s3a_files(jvm, folder, s3.url), during(), passes=full)


def once(call: Callable[..., Any]) -> Callable[..., Any]:
    """Makes a call that must not be repeated."""
    left = [call]
    return lambda *arguments: left.pop()(*arguments)


class TestAnswers:
    """The answers of stores other than the one here."""

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
        assert hadoop.StoreError is type(caught.value)

    def test_a_refusal_after_a_lost_reply_leaves_the_put_in_doubt(self, files: S3AFiles, between: Between) -> None:
        self.answer(between, refusal(500, "InternalError"), refusal(403, "AccessDenied"))
        with pytest.raises(PutUnknownError, match=r"InternalError|500"):
            files.put("a", b"x")

    def test_an_error_that_passes(self, files: S3AFiles, between: Between) -> None:
        self.answer(between, refusal(500, "InternalError"), refusal(503, "SlowDown"))
        assert files.put("a", b"x") == Landed()
        assert files.put("a", b"y") == Taken(standing=b"x")

    def test_a_put_that_the_client_repeats_by_itself_meets_its_own_record(
        self, jvm: Any, bucket: str, between: Between, patient: None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        kept = {name: value for name, value in s3a._SETTINGS.items() if "retry" not in name and "attempts" not in name}
        monkeypatch.setattr(s3a, "_SETTINGS", kept)
        files = s3a_files(jvm, f"s3a://{bucket}/checkpoint", between.url)
        between.act = first_put(CUT_REPLY)
        monkeypatch.setattr(S3AFiles, "_tried", once(S3AFiles._tried))
        log = DecisionLog(FilesLogStore(files))
        assert log.put(0, claim()) == claim(), "the log says what stands there"
        assert len([one for one in between.seen if is_put(one)]) == 2

    def test_a_put_without_an_answer_is_sent_again(self, jvm: Any, bucket: str, between: Between) -> None:
        files = s3a_files(jvm, f"s3a://{bucket}/checkpoint", between.url)
        with held(between, most=1):
            assert files.put("a", b"x") == Landed()
        assert len(between.seen) == 2

    def test_a_store_that_is_gone_is_waited_for_and_there_again(self, jvm: Any, tmp_path: Path, patient: None) -> None:
        with S3Server(tmp_path / "s3") as server:
            (server.folder / "data" / "bucket").mkdir()
            files = s3a_files(jvm, "s3a://bucket/checkpoint", server.url)
            assert files.put("0", b"mine") == Landed()
            server.kill()
            with pytest.raises(PutUnknownError, match=r"Broken pipe|reset"):  # on a connection from before
                files.put("1", b"mine")
            with pytest.raises(OSError, match="refused") as gone:
                files.put("1", b"mine")
            assert may_pass(gone.value), "it surely did not land, and the driver waits"
            server.start()
            assert files.put("1", b"mine") == Landed()
            assert files.read("0") == b"mine"

    def test_no_bucket(self, jvm: Any, s3: S3Server) -> None:
        with pytest.raises(OSError, match="NoSuchBucket"):
            s3a_files(jvm, "s3a://no-such-bucket/c", s3.url).put("a", b"x")
