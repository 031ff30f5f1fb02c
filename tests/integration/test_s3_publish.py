"""Completing uploads: by any driver, repeatedly, and after anything else that may have happened."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

import pytest

from s3_between import CUT_REPLY, GO_ON, Reply, Request, refusal
from s3_bucket import Bucket, seal
from sparkonce.errors import UnknownOutcomeError
from sparkonce.protocol.handles import COMMITTED, Finished, Handle, Outcome, transaction_fields
from sparkonce.sinks.files.committer import FilesCommitter
from sparkonce.sinks.files.names import name_in
from sparkonce.sinks.files.s3.settings import MIB
from sparkonce.sinks.files.s3.store import S3Store
from sparkonce.sinks.files.store import Fields, FileState, FileStore, fields_of


@pytest.fixture
def store(bucket) -> Iterator[S3Store]:
    opened = bucket.store()
    yield opened
    opened.close()


def publish(store: FileStore, fields: Fields) -> Finished:
    (finished,) = store.publish([fields])
    return finished


def key(fields: Fields) -> str:
    return f"out/{fields['path']}"


def test_a_file_shows_once_it_is_published(bucket, store):
    fields = seal(store)
    assert bucket.objects() == {}
    assert store.states([fields]) == [FileState.STAGED]
    assert publish(store, fields).outcome is Outcome.COMMITTED
    assert bucket.objects() == {key(fields): b"rows"}
    assert store.states([fields]) == [FileState.PUBLISHED]
    assert bucket.uploads() == []
    metadata = bucket.client.head_object(Bucket=bucket.name, Key=key(fields))["Metadata"]
    assert metadata == {"sparkonce-transaction": str(name_in(str(fields["path"]))), "sparkonce-upload": fields["mark"]}


def test_a_lost_reply_is_asked_for_again(bucket, between):
    fields = seal(bucket.store())
    store = bucket.store(endpoint_url=between.url)
    between.act = lambda request: CUT_REPLY if request.is_complete else GO_ON
    assert publish(store, fields).outcome is Outcome.RETRY
    assert sum(request.is_complete for request in between.seen) == 1  # boto3 did not retry on its own
    assert bucket.objects() == {key(fields): b"rows"}
    between.act = lambda _: GO_ON
    for _ in range(2):
        assert publish(store, fields).outcome in {Outcome.COMMITTED, Outcome.ALREADY_COMMITTED}
    assert bucket.objects() == {key(fields): b"rows"}


GONE = refusal(404, "NoSuchUpload")


@pytest.mark.parametrize(
    "answer",
    [
        Reply(429, b""),
        refusal(400, "Throttling"),
        refusal(409, "ConditionalRequestConflict"),
        refusal(200, "InternalError"),  # S3 may fail after it has begun to send the response
        GONE,  # for an upload that exists
    ],
    ids=["429 without a body", "throttling", "conflict", "failed late", "gone"],
)
def test_a_store_that_refuses_once_is_asked_again(bucket, between, answer):
    """Each kind of request is rejected once. boto3 does not retry, so our own error table decides about each answer."""
    fields = seal(bucket.store())
    store = bucket.store(endpoint_url=between.url, attempts=1)
    refused: set[tuple[str, bool]] = set()

    def refuse_once(request: Request) -> str | Reply:
        kind = request.method, request.is_complete
        is_first = kind not in refused
        refused.add(kind)
        return answer if is_first and (answer is not GONE or request.is_complete) else GO_ON

    between.act = refuse_once
    assert publish(store, fields).outcome is Outcome.RETRY
    between.seen.clear()
    assert publish(store, fields).outcome is Outcome.COMMITTED
    assert [request.method for request in between.seen] == ["POST"], "an undisturbed publish is one request"
    assert bucket.objects() == {key(fields): b"rows"}
    assert bucket.uploads() == []


@pytest.mark.parametrize("published", [True, False], ids=["published", "aborted"])
def test_a_busy_store_does_not_make_a_loss_of_what_was_published(bucket, between, published):
    """The completion reports that the upload is gone.

    Each of the following requests is rejected once, without a body.
    """
    fields = seal(bucket.store())
    if published:
        publish(bucket.store(), fields)
    else:
        bucket.abort(str(fields["upload_id"]))
    refused: set[str] = set()

    def refuse_once(request: Request) -> str | Reply:
        if request.is_complete:
            return GONE
        is_first = request.method not in refused
        refused.add(request.method)
        return Reply(429, b"") if is_first else GO_ON

    between.act = refuse_once
    store = bucket.store(endpoint_url=between.url, attempts=1)
    final = Outcome.ALREADY_COMMITTED if published else Outcome.LOST
    assert [publish(store, fields).outcome for _ in range(3)] == [Outcome.RETRY, Outcome.RETRY, final]
    assert refused == {"GET", "HEAD"}


def test_done_without_an_object_is_not_done(bucket, between):
    """Versitygw reports success while another completion is still in progress."""
    fields = seal(bucket.store())
    store = bucket.store(endpoint_url=between.url)
    done = f"<CompleteMultipartUploadResult><ETag>{fields['checksum']}</ETag></CompleteMultipartUploadResult>"
    between.act = lambda request: Reply(200, done.encode()) if request.is_complete else GO_ON
    assert publish(store, fields).outcome is Outcome.RETRY


def test_nobodys_object_is_overwritten(bucket, store):
    fields = seal(store)
    bucket.client.put_object(Bucket=bucket.name, Key=key(fields), Body=b"a stranger's")
    finished = publish(store, fields)
    assert finished.outcome is Outcome.UNKNOWN
    assert str(fields["path"]) in finished.reason
    assert bucket.objects() == {key(fields): b"a stranger's"}
    assert len(bucket.uploads()) == 1  # nothing is undone
    assert [one.outcome for one in store.discard([fields])] == [Outcome.ABORTED]


def test_one_that_somebody_overwrote_is_unknown(bucket, store):
    """Versitygw answers 200 to the second completion anyway."""
    fields = seal(store)
    publish(store, fields)
    bucket.client.put_object(Bucket=bucket.name, Key=key(fields), Body=b"a stranger's")
    assert publish(store, fields).outcome is Outcome.UNKNOWN
    assert store.states([fields]) == [FileState.UNKNOWN]
    assert bucket.objects() == {key(fields): b"a stranger's"}


def test_an_aborted_one_is_not_taken_for_a_strangers(bucket, store):
    """Versitygw answers 200 to the completion of an upload that does not exist, if there is any object."""
    fields = seal(store)
    bucket.abort(str(fields["upload_id"]))
    bucket.client.put_object(Bucket=bucket.name, Key=key(fields), Body=b"rows")
    assert publish(store, fields).outcome is Outcome.UNKNOWN
    assert [one.outcome for one in store.discard([fields])] == [Outcome.ABORTED]


def test_one_that_was_deleted_is_unknown_where_versions_are_kept(bucket, between):
    """S3 reports the delete marker with HeadObject.

    Versitygw does so only with GetObject, so it stays undetected there.
    """
    fields = seal(bucket.store())
    publish(bucket.store(), fields)
    bucket.client.delete_object(Bucket=bucket.name, Key=key(fields))
    marked = Reply(404, b"", (("x-amz-delete-marker", "true"),))
    between.act = lambda request: GONE if request.is_complete else marked if request.method == "HEAD" else GO_ON
    store = bucket.store(endpoint_url=between.url)
    assert publish(store, fields).outcome is Outcome.UNKNOWN
    assert store.states([fields]) == [FileState.UNKNOWN]


def test_a_completion_still_at_work_is_not_taken_for_a_loss(bucket, store):
    """Versitygw hides the upload from all listings while it assembles the object, and is killed at that moment."""
    fields = seal(store)
    with at_work(bucket, fields):
        assert publish(store, fields).outcome is Outcome.RETRY
        with pytest.raises(UnknownOutcomeError, match="still putting the object together"):
            store.states([fields])
    assert bucket.objects() == {key(fields): b"rows"}


@contextmanager
def at_work(bucket: Bucket, fields: Fields) -> Iterator[None]:
    """Versitygw hides the upload from all listings while it assembles the object. Then the object exists."""
    held = bucket.server.folder / "data" / bucket.name / ".sgwtmp" / "multipart"
    folder = held / hashlib.sha256(key(fields).encode()).hexdigest() / str(fields["upload_id"])
    working = folder.with_name(f"{folder.name}.{fields['checksum']}.inprogress")
    folder.rename(working)
    yield
    working.rename(folder)
    assert publish(bucket.store(), fields).outcome is Outcome.COMMITTED


def handle_of(*files: Fields) -> Handle:
    name = name_in(str(files[0]["path"]))
    assert name is not None
    fields, _ = fields_of(name, files, 0, "out/")
    return Handle(sink="files", slot=0, rows=len(files), transaction=transaction_fields(fields))


def test_a_completion_that_begins_while_the_rest_is_given_up_is_waited_for(bucket, store, monkeypatch):
    """Another driver checked before a file of the transaction was lost, and now completes the others."""
    lost, left = seal(store), seal(store)
    handle, committer = handle_of(lost, left), FilesCommitter(store, "files", manifest=False)
    bucket.abort(str(lost["upload_id"]))
    discard = store.discard
    with ExitStack() as stack:

        def too_late(files: Sequence[Fields]) -> Sequence[Finished]:
            stack.enter_context(at_work(bucket, left))
            return discard(files)

        with monkeypatch.context() as patch:
            patch.setattr(store, "discard", too_late)
            assert [one.outcome for one in committer.commit([handle])] == [Outcome.RETRY]
    assert [one.outcome for one in committer.commit([handle])] == [Outcome.UNKNOWN]
    assert bucket.objects() == {key(left): b"rows"}


def test_what_is_left_of_a_lost_one_is_given_up_also_where_no_answer_comes(bucket, between):
    store = bucket.store(endpoint_url=between.url, attempts=1)
    lost, left = seal(store), seal(store)
    handle, committer = handle_of(lost, left), FilesCommitter(store, "files", manifest=False)
    bucket.abort(str(lost["upload_id"]))
    between.act = lambda request: CUT_REPLY if request.method == "DELETE" else GO_ON
    assert [one.outcome for one in committer.commit([handle])] == [Outcome.RETRY]
    assert bucket.uploads() == []
    between.act = lambda _: GO_ON
    assert [one.outcome for one in committer.commit([handle])] == [Outcome.LOST]
    assert bucket.objects() == {}


def test_a_missing_part_is_never_published(bucket, store):
    fields = seal(store)
    wrong: Mapping[str, str | int] = {**fields, "etags": "0" * 32}
    assert publish(store, wrong).outcome is Outcome.UNKNOWN
    assert bucket.objects() == {}


def test_a_part_that_arrives_while_aborting_is_aborted_too(bucket, between):
    """S3's manual: aborting can leave parts that were in progress."""
    fields = seal(bucket.store())
    store = bucket.store(endpoint_url=between.url)
    first = [Reply(204, b"")]
    between.act = lambda request: first.pop() if request.method == "DELETE" and first else GO_ON
    assert [one.outcome for one in store.discard([fields])] == [Outcome.ABORTED]
    assert [request.method for request in between.seen] == ["DELETE", "GET", "DELETE", "GET", "HEAD"]
    assert bucket.uploads() == []


def test_two_clients_publish_the_same_at_once(bucket, store):
    contents = [secrets.token_bytes(6 * MIB) for _ in range(3)]
    files = [seal(store, content) for content in contents]

    def publish_all(client: S3Store) -> set[Outcome]:
        while Outcome.RETRY in (answers := {one.outcome for one in client.publish(files)}):
            pass
        return answers

    with ThreadPoolExecutor(2) as pool:
        for answers in pool.map(publish_all, [store, bucket.store()]):
            assert answers <= COMMITTED
    assert bucket.objects() == {key(fields): content for fields, content in zip(files, contents, strict=True)}
    assert bucket.uploads() == []
