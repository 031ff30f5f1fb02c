from __future__ import annotations

import os
import pickle
import secrets
import subprocess
import sys
import threading
from concurrent.futures import wait
from typing import Any

import pytest

from s3_between import CUT_REPLY, GO_ON, Reply, Request, damaged, refusal
from s3_bucket import new_name
from sparkonce.errors import PrepareError, UnknownOutcomeError
from sparkonce.protocol.handles import Outcome
from sparkonce.protocol.ownership import TransactionName
from sparkonce.sinks.files.names import file_path
from sparkonce.sinks.files.s3 import preflight, store
from sparkonce.sinks.files.s3.settings import MIB
from sparkonce.sinks.files.s3.store import S3Store
from sparkonce.sinks.files.store import StagedFile


def hold(store: S3Store, name: TransactionName | None = None, *, folder: str = "a=1", number: int = 0) -> StagedFile:
    name = name or new_name()
    return store.stage(name, file_path(folder, name, number, ".parquet"))


# --- parts ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 5 * MIB, 5 * MIB + 1, 12 * MIB], ids=str)
def test_a_file_of_any_size_is_whole(bucket, size):
    store = bucket.store(part_size_bytes=5 * MIB)
    held = hold(store)
    content = secrets.token_bytes(size)
    for start in range(0, size, 3 * MIB):
        held.stream.write(content[start : start + 3 * MIB])
    assert held.size() == held.stream.tell() == size
    fields = held.seal()
    store.publish([fields])
    (read,) = bucket.objects().values()
    assert read == content
    assert fields["size"] == size
    etag = bucket.client.head_object(Bucket=bucket.name, Key=f"out/{fields['path']}")["ETag"]
    assert etag.strip('"') == fields["checksum"]


def test_a_damaged_part_is_refused(bucket, between):
    between.act = lambda request: damaged(request) if request.is_part else GO_ON
    held = hold(bucket.store(endpoint_url=between.url, attempts=1))
    held.stream.write(b"rows")
    with pytest.raises(PrepareError, match="UploadPart"):
        held.seal()
    held.discard()
    assert bucket.uploads() == []


def test_an_upload_whose_beginning_was_not_answered_is_swept(bucket, between):
    first = [CUT_REPLY]
    between.act = lambda request: first.pop() if request.method == "POST" and first else GO_ON
    store = bucket.store(endpoint_url=between.url)
    name = new_name()
    held = hold(store, name)
    held.stream.write(b"rows")
    fields = held.seal()
    assert [one.outcome for one in store.publish([fields])] == [Outcome.COMMITTED]
    assert len(bucket.uploads()) == 1
    left = list(store.list_staged())
    assert [one.name for one in left] == [name]
    assert [one.outcome for one in store.discard([one.fields for one in left])] == [Outcome.ABORTED]
    assert bucket.uploads() == []
    assert list(bucket.objects().values()) == [b"rows"]


def test_a_failure_stops_the_writer_early(bucket, between):
    between.act = lambda request: refusal(403, "AccessDenied") if request.method == "POST" else GO_ON
    held = hold(bucket.store(endpoint_url=between.url, part_size_bytes=5 * MIB, upload_threads=1))
    with pytest.raises(PrepareError, match="s3:PutObject"):
        held.stream.write(bytes(25 * MIB))
    held.discard()


# --- giving up --------------------------------------------------------------------------------------------------------


def test_giving_up_leaves_nothing(bucket):
    store = bucket.store(part_size_bytes=5 * MIB)
    begun, written, sealed = hold(store), hold(store), hold(store)
    written.stream.write(bytes(6 * MIB))
    sealed.stream.write(b"rows")
    sealed.seal()
    for held in (begun, written, sealed):
        held.discard()
    assert bucket.uploads() == []
    with pytest.raises(ValueError, match="discarded"):
        written.stream.write(b"more")


def test_giving_up_waits_for_parts_under_way(bucket, between, monkeypatch):
    """A part that arrives after the abort may stay in the store and cost money."""
    arrived, go = threading.Event(), threading.Event()
    order: list[str] = []

    def slowly(request: Request) -> str:
        if request.is_part:
            arrived.set()
            go.wait(10)
        order.append(request.method)
        return GO_ON

    def waits(parts: Any) -> None:
        go.set()
        wait(parts)

    monkeypatch.setattr(store, "wait_for", waits)
    between.act = slowly
    held = hold(bucket.store(endpoint_url=between.url, part_size_bytes=5 * MIB))
    held.stream.write(bytes(5 * MIB))
    assert arrived.wait(30)
    held.discard()
    assert order[:3] == ["POST", "PUT", "DELETE"]
    assert bucket.uploads() == []


def test_what_is_swept_while_it_is_written_is_not_sealed(bucket):
    store = bucket.store(part_size_bytes=5 * MIB)
    held = hold(store)
    held.stream.write(bytes(5 * MIB))
    held.stream.write(b"the next part")
    while not (left := list(store.list_staged())):
        pass
    (listed,) = bucket.uploads()
    upload_of = {"Bucket": bucket.name, "Key": listed["Key"], "UploadId": listed["UploadId"]}
    while not bucket.client.list_parts(**upload_of).get("Parts"):
        pass  # a part that arrives during the abort of its upload may be accepted
    store.discard([one.fields for one in left])
    with pytest.raises(PrepareError, match="NoSuchUpload"):
        held.seal()
    held.discard()
    assert bucket.uploads() == []


# --- sweeping ---------------------------------------------------------------------------------------------------------


def test_all_that_is_held_is_listed_and_nothing_of_others(bucket):
    store = bucket.store(page=2)
    own = [new_name(position=position) for position in range(5)]
    for name in own:
        for number in range(2):
            held = hold(store, name, folder="town=a b+ü&%41/x=?", number=number)
            held.stream.write(b"rows")
            held.seal()
    strangers = ["out/a=1/part-of-mine.parquet", f"outer/{file_path('', new_name(), 0, '.x')}", "elsewhere"]
    for key in strangers:
        bucket.client.create_multipart_upload(Bucket=bucket.name, Key=key)
    left = list(store.list_staged())
    assert sorted(str(one.name) for one in left) == sorted(str(name) for name in own for _ in range(2))
    assert {one.outcome for one in store.discard([one.fields for one in left])} == {Outcome.ABORTED}
    assert sorted(one["Key"] for one in bucket.uploads()) == sorted(strangers)


def test_two_uploads_of_one_key_are_both_listed(bucket):
    """Page by page: the second page begins within the key."""
    store = bucket.store(page=1)
    name = new_name()
    for _ in range(3):
        hold(store, name).seal()
    assert len({one.fields["upload_id"] for one in store.list_staged()}) == 3


def test_a_store_that_lists_uploads_only_by_whole_keys_or_buckets_is_swept_and_named(bucket, between, caplog):
    """MinIO behaves like this."""

    def minio(request: Request) -> str | Reply:
        is_by_prefix = request.method == "GET" and "uploads" in request.path and "prefix=out" in request.path
        return Reply(200, b"<ListMultipartUploadsResult/>") if is_by_prefix else GO_ON

    between.act = minio
    store = bucket.store(endpoint_url=between.url)
    store.check()
    assert "does not list open uploads by prefix" in caplog.text
    assert store.timeout_s() == preflight.DAY_S
    name = new_name()
    hold(store, name).seal()
    bucket.client.create_multipart_upload(Bucket=bucket.name, Key="elsewhere")
    assert [one.name for one in store.list_staged()] == [name]


def test_a_listing_that_is_not_answered_is_not_empty(bucket, between):
    between.act = lambda _: refusal(503, "SlowDown")
    store = bucket.store(endpoint_url=between.url, attempts=1)
    with pytest.raises(UnknownOutcomeError, match="ListMultipartUploads"):
        list(store.list_staged())
    with pytest.raises(UnknownOutcomeError, match="ListObjectsV2"):
        store.list_names("x")
    with pytest.raises(UnknownOutcomeError, match="GetObject"):
        store.get("x")
    with pytest.raises(UnknownOutcomeError, match="PutObject"):
        store.put("x", b"")
    with pytest.raises(UnknownOutcomeError, match="DeleteObject"):
        store.delete(["x", "y"])


# --- small files ------------------------------------------------------------------------------------------------------


def test_small_files_are_put_read_listed_and_deleted(bucket):
    store = bucket.store(page=2)
    assert store.get("lists/1 ü.json") is None
    assert store.list_names("lists") == []
    for number in range(5):
        store.put(f"lists/{number} ü.json", b"old")
    store.put("lists/0 ü.json", b"new")
    store.put("lists/deeper/0.json", b"other")
    store.put("lists-of-others/0.json", b"other")
    assert store.get("lists/0 ü.json") == b"new"
    assert bucket.content("out/lists/0 ü.json") == b"new"
    assert sorted(store.list_names("lists")) == [f"{number} ü.json" for number in range(5)]
    store.delete([f"lists/{number} ü.json" for number in (0, 1, 7)])
    assert sorted(store.list_names("lists/")) == [f"{number} ü.json" for number in (2, 3, 4)]


# --- memory -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_large_file_takes_little_memory(bucket):
    """A slow store must not make a fast writer buffer everything: 200 MB go through 4 threads with 8 MiB each."""
    program = """
import pickle, sys
from sparkonce.sinks.files.names import file_path

def peak_bytes():
    (line,) = [line for line in open("/proc/self/status") if line.startswith("VmHWM")]
    return int(line.split()[1]) * 1024

store, name, chunk, chunks = pickle.load(sys.stdin.buffer)
first = store.stage(name, file_path("", name, 0, ".bin"))
first.stream.write(b"x")
first.seal()
held = store.stage(name, file_path("", name, 1, ".bin"))
data = bytes(chunk)
before = peak_bytes()
for _ in range(chunks):
    held.stream.write(data)
held.seal()
print(peak_bytes() - before)
"""
    given = pickle.dumps((bucket.store(), new_name(), 1_000_000, 200))
    run = subprocess.run(
        [sys.executable, "-c", program], input=given, capture_output=True, timeout=120, check=False, env=os.environ
    )
    assert run.returncode == 0, run.stderr.decode()
    # Four parts in flight, one being filled, and the copies that the HTTP client makes, one at a time.
    assert 8 * MIB < int(run.stdout) < 80 * MIB
