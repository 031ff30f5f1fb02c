"""Checkpoint files in an S3 bucket, through the client that needs no JVM, on a network that loses replies.

The results are checked with another client, boto3.
"""

from __future__ import annotations

import errno
import io
import os
import pickle
import subprocess
import sys
import threading

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from plain_store import PlainStore
from s3_between import CUT_REPLY, GO_ON, Reply, Request, refusal
from s3_bucket import Bucket
from shared_servers import USES_HDFS, hdfs_server
from sparkonce.driver.outage import is_store_outage
from sparkonce.errors import ConfigurationError
from sparkonce.storage import objects
from sparkonce.storage.files import PROVED, RACES, CheckpointFiles, Landed, PutUnknownError, Taken, prove
from sparkonce.storage.hdfs import HdfsFiles
from sparkonce.storage.objects import ObjectFiles
from sparkonce.storage.opening import open_location
from sparkonce_lab.rig.servers.s3 import ACCESS_KEY, SECRET_KEY, S3Server


@pytest.mark.parametrize("prefix", ["a b/c%20d", "p%2Fq", "ä#[]{}~^|&+=;,@:$'()!", "deep/er"])
def test_a_key_is_the_path_as_it_is_written(bucket, prefix):
    files = bucket.files(prefix)
    assert files.put("log/0", b"one") == Landed()
    assert files.put("log/0", b"two") == Taken(standing=b"one")
    assert files.read("log/0") == b"one"
    assert files.names("log") == ["0"]
    assert bucket.content(f"{prefix}/log/0") == b"one"
    files.replace("log/0", b"three")
    assert bucket.content(f"{prefix}/log/0") == b"three"
    files.delete(["log/0", "log/never"])
    assert files.names("log") == []
    assert files.read("log/0") is None
    assert bucket.keys(f"{prefix}/") == []


def test_the_keys_of_a_profile_open_the_store(bucket, monkeypatch, tmp_path):
    keys = f"aws_access_key_id={ACCESS_KEY}\naws_secret_access_key="
    (tmp_path / "credentials").write_text(f"[right]\n{keys}{SECRET_KEY}\n[wrong]\n{keys}other\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    settings = {
        "fs.s3a.endpoint": bucket.server.url,
        "fs.s3a.endpoint.region": "us-east-1",
        "fs.s3a.path.style.access": "true",
        "fs.s3a.aws.credentials.provider": "software.amazon.awssdk.auth.credentials.ProfileCredentialsProvider",
    }
    monkeypatch.setenv("AWS_PROFILE", "right")
    files = open_location(f"s3a://{bucket.name}/profile", settings)
    assert files.put("one", b"x") == Landed()
    assert pickle.loads(pickle.dumps(files)).read("one") == b"x"  # noqa: S301 - our own

    monkeypatch.setenv("AWS_PROFILE", "wrong")
    with pytest.raises(PermissionError):
        open_location(f"s3a://{bucket.name}/profile", settings).read("one")


def test_more_files_are_listed_than_one_answer_holds(bucket):
    files = bucket.files("ck")
    for number in range(1001):
        files.replace(f"log/{number}", b"")
    assert len(files.names("log")) == 1001


def test_an_answer_that_comes_too_late_is_unknown(bucket, between, monkeypatch):
    monkeypatch.setattr(objects, "REQUEST_S", 1)
    monkeypatch.setattr(objects, "DEADLINE_S", 1.5)
    done = threading.Event()

    def slow(_: Request) -> str:
        done.wait(30)
        return GO_ON

    between.act = slow
    try:
        with pytest.raises(PutUnknownError, match="No answer in time"):
            bucket.files("late", between.url).put("0", b"mine")
    finally:
        done.set()


def test_a_conflict_while_another_put_is_under_way_is_asked_again(bucket, between):
    files = bucket.files("conflict", between.url)
    for data, expected in ((b"mine", Landed()), (b"other", Taken(standing=b"mine"))):
        answers = iter([refusal(409, "ConditionalRequestConflict")])
        between.act = lambda request, answers=answers: next(answers, GO_ON) if request.method == "PUT" else GO_ON
        assert files.put("0", data) == expected


def test_a_conflict_that_does_not_end_is_unknown(bucket, between, monkeypatch):
    monkeypatch.setattr(objects, "DEADLINE_S", 1.0)
    between.act = lambda request: refusal(409, "ConditionalRequestConflict") if request.method == "PUT" else GO_ON
    with pytest.raises(PutUnknownError, match="409"):
        bucket.files("conflicts", between.url).put("0", b"mine")


@pytest.mark.parametrize(
    ("status", "code", "number"),
    [
        (403, "AccessDenied", errno.EACCES),
        (401, "Unauthorized", errno.EACCES),
        (400, "ExpiredToken", errno.EINVAL),
        (429, "TooManyRequests", errno.EAGAIN),
        (507, "XMinioStorageFull", errno.ENOSPC),
        (403, "QuotaExceeded", errno.ENOSPC),
        (501, "NotImplemented", errno.ENOTSUP),
    ],
)
def test_a_refusal_surely_did_not_land(bucket, between, status, code, number):
    files = bucket.files(f"refused-{code}", between.url)
    between.act = lambda request: refusal(status, code) if request.method == "PUT" else GO_ON
    with pytest.raises(OSError, match=code) as refused:
        files.put("0", b"mine")
    assert refused.value.errno == number
    assert files.read("0") is None


def test_a_refusal_after_a_lost_answer_is_unknown(bucket, between):
    files = bucket.files("lost-then-refused", between.url)
    answers = iter([CUT_REPLY, refusal(403, "AccessDenied")])
    between.act = lambda request: next(answers) if request.method == "PUT" else GO_ON
    with pytest.raises(PutUnknownError):
        files.put("0", b"mine")


def test_what_is_taken_and_cannot_be_read_is_unknown(bucket, between, monkeypatch):
    files = bucket.files("unread", between.url)
    files.put("0", b"mine")
    between.act = lambda request: GO_ON if request.method == "PUT" else refusal(403, "AccessDenied")
    with pytest.raises(PutUnknownError, match="could not be read"):
        files.put("0", b"other")


def test_a_request_that_reads_is_repeated(bucket, between):
    files = bucket.files("reads", between.url)
    files.put("log/0", b"mine")
    for act in (lambda: files.read("log/0") == b"mine", lambda: files.names("log") == ["0"]):
        answers = iter([refusal(503, "SlowDown"), CUT_REPLY])
        between.act = lambda _, answers=answers: next(answers, GO_ON)
        assert act()


@pytest.mark.parametrize(("status", "code"), [(400, "RequestTimeout"), (409, "OperationAborted")])
def test_a_code_that_asks_for_a_retry_counts_as_an_outage(bucket, between, status, code):
    """The client itself does not repeat requests after these codes; a run does."""
    files = bucket.files(f"codes-{code}", between.url)
    between.act = lambda _: refusal(status, code)
    for ask in (lambda: files.read("0"), lambda: files.names(""), lambda: files.delete(["0"])):
        with pytest.raises(OSError, match=code) as refused:
            ask()
        assert is_store_outage(refused.value)


def test_a_missing_bucket_is_no_missing_file(bucket):
    files = bucket.files("ck", name="nobody-made-it")
    for ask in (lambda: files.read("0"), lambda: files.names(""), lambda: files.put("0", b"")):
        with pytest.raises(OSError, match=r"NoSuchBucket") as missing:
            ask()
        assert missing.value.errno == errno.ENODEV
    with pytest.raises(ConfigurationError, match=r"NoSuchBucket.*Next: Create the bucket"):
        files.check()


def test_wrong_keys_are_told_without_a_word_of_them(bucket):
    files = bucket.files("ck", secret_access_key="very-secret")  # noqa: S106 - wrong on purpose
    with pytest.raises(ConfigurationError, match="SignatureDoesNotMatch") as refused:
        files.check()
    assert refused.value.__cause__ is None
    for text in (str(refused.value), repr(files), repr(files._access), str(files._access)):
        assert "very-secret" not in text
        assert SECRET_KEY not in text


def test_a_user_who_may_only_read_is_refused(tmp_path):
    with S3Server(tmp_path / "s3") as server:
        bucket = Bucket(server)
        server.add_user("reader", "reader-secret")
        policy = f"""{{"Statement": [{{"Effect": "Allow", "Principal": {{"AWS": ["reader"]}},
            "Action": ["s3:GetObject", "s3:ListBucket"],
            "Resource": ["arn:aws:s3:::{bucket.name}", "arn:aws:s3:::{bucket.name}/*"]}}]}}"""
        bucket.client.put_bucket_policy(Bucket=bucket.name, Policy=policy)
        bucket.files("ck").put("0", b"there")
        files = bucket.files("ck", access_key_id="reader", secret_access_key="reader-secret")  # noqa: S106
        assert files.read("0") == b"there"
        with pytest.raises(ConfigurationError, match=r"AccessDenied.*Next: Allow this user"):
            files.check()


def test_a_process_that_was_forked_from_a_user_of_the_client_is_told_so(bucket):
    code = """
import os, pickle, sys
files = pickle.loads(sys.stdin.buffer.read())
files.read("0")
if os.fork() == 0:
    try:
        files.read("0")
    except OSError as error:
        print(error, flush=True)
    os._exit(0)
os.wait()
"""
    run = subprocess.run(
        [sys.executable, "-c", code], input=pickle.dumps(bucket.files("ck")), capture_output=True, timeout=60
    )
    assert b"forked" in run.stdout, run.stderr.decode()


# --- the proof ------------------------------------------------------------------------------------------------------


def test_a_store_proves_itself_once(bucket, between):
    files = bucket.files("proof", between.url)
    prove(files)
    races = [one for one in between.seen if one.method == "PUT" and ".races-" in one.path]
    assert len(races) == 2 * RACES
    assert bucket.keys("proof/") == [f"proof/{PROVED}"]
    between.seen.clear()
    prove(files)
    assert [one.method for one in between.seen] == ["GET"]
    prove(ObjectFiles("s3a://other", "proof", files._access))  # a moved checkpoint
    assert len(between.seen) > 2 * RACES
    between.seen.clear()
    # the checkpoint's data, now on another store
    prove(bucket.files("proof", between.url.replace("127.0.0.1", "localhost")))
    assert len(between.seen) > 2 * RACES


def test_a_store_with_two_winners_is_refused(bucket, between):
    """The proxy removes the condition from one put of the last race, like a store that checks first and then writes."""
    files = bucket.files("two-winners", between.url)
    races: list[str] = []

    def unconditional(request: Request) -> str | Reply:
        if request.method == "PUT" and ".races-" in request.path:
            races.append(request.path)
            if len(races) == 2 * RACES:
                return Reply(200, b"", (("ETag", '"00"'),))
        return GO_ON

    between.act = unconditional
    with pytest.raises(ConfigurationError, match="cannot carry a decision log") as refused:
        prove(files)
    assert "two-winners" in str(refused.value)
    assert bucket.keys("two-winners/") == []


def test_a_store_without_conditions_is_refused(bucket, between):
    files = bucket.files("no-condition", between.url)
    between.act = lambda request: Reply(200, b"", (("ETag", '"00"'),)) if request.method == "PUT" else GO_ON
    with pytest.raises(ConfigurationError, match="only if none has its name"):
        prove(files)


def test_a_race_without_a_known_end_is_held_again(bucket, between):
    files = bucket.files("unknown-race", between.url)
    lost: set[str] = set()

    def lose_one(request: Request) -> str | Reply:
        if request.method == "PUT" and request.path.endswith("/000"):
            lost.add(request.path)
            return refusal(500, "InternalError")
        return GO_ON

    between.act = lose_one
    prove(files)
    assert lost
    assert bucket.keys("unknown-race/") == [f"unknown-race/{PROVED}"]


def test_a_store_that_never_tells_is_named(bucket, between):
    files = bucket.files("never", between.url)
    between.act = lambda request: refusal(500, "InternalError") if ".races-" in request.path else GO_ON
    with pytest.raises(ConfigurationError, match="did not say which of two puts"):
        prove(files)


# --- files of any size: either complete or absent, and readable in parts ----------------------------------------------

LARGE = 20 * 2**20 + 7


@pytest.mark.slow
@pytest.mark.parametrize("store", ["bucket", "folder", pytest.param("hdfs", marks=USES_HDFS)])
def test_a_large_file_is_read_as_it_was_put(tmp_path, bucket, store):
    files: CheckpointFiles = bucket.files("x") if store == "bucket" else PlainStore(tmp_path)
    if store == "hdfs":
        files = HdfsFiles(f"{hdfs_server().url}{tmp_path}")
    data = os.urandom(LARGE)
    assert not files.exists("rows/a")
    assert files.open("rows/a") is None
    given = io.BytesIO(b"before" + data)
    given.seek(6)
    files.put_large("rows/a", given)
    assert files.exists("rows/a")
    assert list(files.names("rows")) == ["a"]
    with files.open("rows/a") as file:
        assert file.read() == data
        assert file.seek(LARGE - 5) == LARGE - 5
        assert file.read(100) == data[-5:]
        assert file.read(1) == b""
        assert file.seek(-3, os.SEEK_END) == LARGE - 3
        assert file.read() == data[-3:]
        with pytest.raises(OSError, match="fileno"):
            file.fileno()


def test_arrow_reads_rows_from_a_store(bucket):
    files, table = bucket.files("x"), pa.table({"number": range(100_000)})
    written = io.BytesIO()
    pq.write_table(table, written)
    written.seek(0)
    files.put_large("rows/a", written)
    with files.open("rows/a") as file:
        assert pq.read_table(file) == table
    files.put_large("empty", io.BytesIO())
    with files.open("empty") as file:
        assert file.read() == b""


def test_nobody_sees_a_part_of_a_file_whose_parts_did_not_all_arrive(bucket, between, monkeypatch):
    monkeypatch.setattr(objects, "DEADLINE_S", 1.0)
    between.act = lambda request: refusal(403, "AccessDenied") if "partNumber=3" in request.path else GO_ON
    with pytest.raises(OSError, match="403"):
        bucket.files("x", url=between.url).put_large("rows/a", io.BytesIO(os.urandom(LARGE)))
    assert any("partNumber=3" in one.path for one in between.seen)
    assert not bucket.files("x").exists("rows/a")
    assert bucket.keys("x/") == []


def test_a_bucket_that_is_gone_is_not_taken_for_a_missing_file(bucket):
    files = bucket.files("x", name="never-made")
    for ask in (files.exists, files.open):
        with pytest.raises(OSError, match="404"):
            ask("rows/a")
