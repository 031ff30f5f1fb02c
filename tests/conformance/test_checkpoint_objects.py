from __future__ import annotations

import itertools
import secrets
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cache
from pickle import dumps

import pytest

from conformance.checkpoint_suite import (
    RECORD,
    CheckpointSuite,
    Faulty,
    NetworkSuite,
    RefusalSuite,
    Refusing,
    claim,
    commit,
)
from eventually import eventually
from s3_between import CUT_REPLY, GO_ON, Act, Between, Reply, Request, refusal
from s3_bucket import Bucket
from sparkonce.decision_log import DecisionLog
from sparkonce.protocol.view import LogView
from sparkonce.storage import objects
from sparkonce.storage.files import CheckpointFiles, Landed, PutUnknownError, Taken
from sparkonce.storage.objects import ObjectFiles


@cache
def bucket() -> Bucket:
    return Bucket()


def new_prefix() -> str:
    return f"checkpoint-{secrets.token_hex(4)}"


class TestObjects(CheckpointSuite):
    @pytest.fixture
    def files(self) -> CheckpointFiles:
        return bucket().files(new_prefix())

    def another(self, files: CheckpointFiles) -> CheckpointFiles:
        return files.inside("")

    def opening(self, files: CheckpointFiles) -> str:
        assert isinstance(files, ObjectFiles)
        return f"import base64, pickle\nfiles = pickle.loads(base64.b64decode({b64encode(dumps(files))!r}))"


SLOW_S = 1.5
"""How long a slow store takes for each request, in seconds. This is longer than an impatient client waits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Behind:
    """A checkpoint folder in S3 behind a proxy.

    Attributes:
        between: The proxy.
        files: The client behind the proxy.
        clean: A client that talks to the store directly.
        hurry: Makes a client that times out a request after one second, and gives up a put after a few retries.
    """

    between: Between
    files: CheckpointFiles
    clean: CheckpointFiles
    hurry: Callable[[], CheckpointFiles]


def first_put(act: str | Reply, rest: Act = lambda _: GO_ON) -> Act:
    """Applies ``act`` to the first put, and ``rest`` to all other requests."""
    number = itertools.count()
    return lambda request: act if is_put(request) and next(number) == 0 else rest(request)


def is_put(request: Request) -> bool:
    return request.method == "PUT"


@contextmanager
def held(between: Between, most: int = 1000) -> Iterator[None]:
    """Holds back the first puts on their way to the store, and releases them at the end."""
    go, number = threading.Event(), itertools.count()

    def act(request: Request) -> str:
        if is_put(request) and next(number) < most:
            assert go.wait(120)
        return GO_ON

    between.act = act
    try:
        yield
    finally:
        between.act = lambda _: GO_ON
        go.set()


@pytest.mark.slow
class TestObjectsBehindANetwork(NetworkSuite):
    """Behind a proxy that injects faults into single requests."""

    @pytest.fixture
    def behind(self, monkeypatch) -> Iterator[Behind]:
        prefix = new_prefix()
        with Between(bucket().server.port).running() as between:

            def hurry() -> CheckpointFiles:
                monkeypatch.setattr(objects, "REQUEST_S", 1)
                monkeypatch.setattr(objects, "DEADLINE_S", 4.0)
                return bucket().files(prefix, between.url)

            files, clean = bucket().files(prefix, between.url), bucket().files(prefix)
            yield Behind(between=between, files=files, clean=clean, hurry=hurry)

    @pytest.fixture
    def faulty(self, behind) -> Faulty:
        between = behind.between

        def does(act: Act) -> Callable[[], None]:
            return lambda: setattr(between, "act", act)

        def away(_: Request) -> Reply:
            return refusal(503, "SlowDown")

        return Faulty(
            files=behind.hurry(),
            clean=behind.clean,
            lose_reply=does(first_put(CUT_REPLY)),
            lose_replies=does(first_put(CUT_REPLY, away)),
            cut=does(away),
            heal=does(lambda _: GO_ON),
        )

    def test_a_store_that_is_merely_slow(self, behind):
        def slow(_: Request) -> str:
            time.sleep(SLOW_S)
            return GO_ON

        behind.between.act = slow
        assert behind.files.put("a/0", b"record") == Landed(), "its answer is waited for"
        assert behind.files.put("a/0", b"another") == Taken(standing=b"record")
        assert (behind.files.read("a/0"), list(behind.files.names("a"))) == (b"record", ["0"])
        assert len([one for one in behind.between.seen if is_put(one)]) == 2, "nothing was sent again"

    def test_a_put_that_was_sent_again_and_arrives_late(self, behind):
        files = behind.hurry()
        with held(behind.between, most=1):
            assert files.put("a/0", b"record") == Landed(), "the second try"
            assert behind.clean.read("a/0") == b"record"
            behind.clean.delete(["a/0"])
        eventually(lambda: behind.clean.read("a/0") == b"record", "the first try has reached the store")
        assert files.put("a/0", b"another") == Taken(standing=b"record")

    def test_a_put_below_the_floor_that_arrives_late(self, behind):
        """A newer driver has decided and cleaned up before a paused driver's put reaches the freed position."""
        late = DecisionLog(behind.hurry())
        newer = DecisionLog(behind.clean)
        assert newer.put(0, claim()) is None
        with held(behind.between):
            with pytest.raises(PutUnknownError):
                late.put(1, commit(0))
            for batch in range(5):
                assert newer.put(batch + 1, commit(batch)) is None
            floor = newer.read(LogView()).raised(2)
            newer.raise_floor(floor)
            newer.delete_below(floor.position)
            assert behind.clean.read(RECORD) is None
        eventually(lambda: behind.clean.read(RECORD) is not None, "the put has reached the store")
        assert late.floor().position > 1, "its driver sees that it counts for nothing"
        for log in (late, newer):
            view = log.read(LogView())
            assert (view.end, [decision.batch for decision in view.decisions]) == (6, [3, 4])
        newer.delete_below(floor.position)
        assert behind.clean.read(RECORD) is None


class TestObjectsThatAreRefused(RefusalSuite):
    @pytest.fixture(params=["read-only", "full"])
    def refusing(self, request, tmp_path) -> Iterator[Refusing]:
        prefix = new_prefix()
        answer = refusal(403, "AccessDenied") if request.param == "read-only" else refusal(507, "XMinioStorageFull")
        with Between(bucket().server.port).running() as between:

            @contextmanager
            def refused() -> Iterator[None]:
                between.act = lambda one: answer if is_put(one) else GO_ON
                yield
                between.act = lambda _: GO_ON

            during: AbstractContextManager[None] = refused()
            files, clean = bucket().files(prefix, between.url), bucket().files(prefix)
            yield Refusing(files=files, clean=clean, during=during, passes=request.param == "full")
