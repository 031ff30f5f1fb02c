"""The parts of the durable formats that need no Spark: options, fingerprints, and the run that a driver keeps."""

from __future__ import annotations

import datetime as dt
import fcntl
import os
import pickle
import subprocess
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pyarrow as pa
import pytest

from sparkonce.decision_log import DecisionLog
from sparkonce.errors import ConfigurationError
from sparkonce.protocol.ownership import Token
from sparkonce.protocol.view import Claim
from sparkonce.sink import TwoPhaseCommitSink
from sparkonce.spark.formats import ends
from sparkonce.spark.formats.ends import Ends, StoredRun
from sparkonce.spark.formats.options import FORMATS, open_files
from sparkonce.spark.formats.sources import FormatJobWriter
from sparkonce.spark.formats.task import fingerprints
from sparkonce.storage.hdfs import HdfsFiles
from sparkonce.storage.local import LocalFiles
from sparkonce.storage.objects import ObjectFiles

NAMED = {one.name.removeprefix("sparkonce-"): one for one in FORMATS}


def sink_of(name: str, **options: str) -> TwoPhaseCommitSink:
    return NAMED[name].sink(options)


def test_sparks_names_are_the_sinks_settings(tmp_path):
    kafka = sink_of("kafka", **{"kafka.bootstrap.servers": "b:9092", "topic": "t", "prefix": "p"})
    assert (kafka.settings, kafka.topic, kafka.prefix) == ({"bootstrap.servers": "b:9092"}, "t", "p")
    user = {"user": "etl", "password": "it's"}
    postgres = sink_of(
        "postgres", url="jdbc:postgresql://db:5433/shop", dbtable="sales.totals", commit="staged", **user
    )
    assert (postgres.target.schema, postgres.target.table, postgres.commit) == ("sales", "totals", "staged")
    mysql = sink_of("mysql", url="jdbc:mariadb://db/shop", dbtable="totals", lock_timeout_s="3", **user)
    assert mysql.conninfo == {"host": "db", "database": "shop", **user}
    assert (mysql.target.table, mysql.limits.lock_s) == ("totals", 3.0)
    redis = sink_of("redis", url="redis://r/1", structure="hash", fields="a, b", ttl_s="60")
    assert (redis.url, redis.shape.ttl_s) == ("redis://r/1", 60)
    files = sink_of(
        "files", path=str(tmp_path), format="csv", header="true", sep=";", partition_by="day", manifest="false"
    )
    assert (files.partition_by, files.manifest) == (("day",), False)


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("kafka", {"kafka.bootstrap.servers": "b", "topik": "t"}, "has no option 'topik'"),
        ("kafka", {"kafka.bootstrap.servers": "b", "guarantee": "at-least-once"}, "has no option 'guarantee'"),
        ("kafka", {"kafka.bootstrap.servers": "b", "includeheaders": "false"}, "includeHeaders=false"),
        ("files", {"format": "csv"}, "option path is missing"),
        ("files", {"path": "/x", "manifest": "perhaps"}, "manifest='perhaps' is not true or false"),
        ("postgres", {"dbtable": "t", "url": "postgresql://db/shop"}, "url is not an address"),
        ("postgres", {"dbtable": "t", "url": "jdbc:mysql://db/shop"}, "url is not an address"),
        ("mysql", {"dbtable": "t", "url": "jdbc:mysql://db/"}, "url is not an address"),
        ("mysql", {"dbtable": "t", "url": "jdbc:mysql://db:x/shop"}, "url is not an address"),
        ("mysql", {"dbtable": "t", "url": "jdbc:mysql://db/shop?connect_timeout=5s"}, "'5s' is not a number"),
    ],
)
def test_a_wrong_option_is_named(name, options, words):
    with pytest.raises(ConfigurationError, match=words) as refused:
        sink_of(name, **options)
    assert refused.value.next_step


def test_a_target_holds_no_credentials():
    url = "jdbc:postgresql://etl:secret@db/shop?password=secret"
    told = NAMED["postgres"].target_of({"url": url, "dbTable": "t", "password": "secret"})
    assert told == {"url": "jdbc:postgresql://db/shop", "dbtable": "t"}
    assert NAMED["redis"].target_of({"url": "redis://:secret@r:1/2"}) == {"url": "redis://r:1/2"}


def test_numbers_behind_an_address_are_numbers():
    url = "jdbc:mysql://db:3307/7?connect_timeout=5&ssl_disabled=true&ssl_ca=7"
    where = {"host": "db", "port": 3307, "database": "7", "user": "1"}
    found = sink_of("mysql", url=url, dbtable="t", user="1").conninfo
    assert found == where | {"connect_timeout": 5, "ssl_disabled": True, "ssl_ca": "7"}


ROWS = pa.record_batch(
    {
        "text": ["a", "b", None, ""],
        "number": [1, 2, None, 0],
        "real": [0.5, None, 2.0, 0.0],
        "flag": [True, False, None, False],
        "at": pa.array([dt.datetime(2026, 1, 1), None, None, None], pa.timestamp("us", "UTC")),
        "day": [dt.date(2026, 1, 1), None, None, dt.date(1970, 1, 1)],
        "price": pa.array([Decimal("1.50"), None, None, Decimal("0.00")], pa.decimal128(9, 2)),
        "list": [[1, 2], [], None, [0]],
    }
)


def test_a_fingerprint_is_of_the_values_alone():
    golden = [4559136617318129230, -2449691984421237062, 7566449170750377504, -8526136431942586326]
    whole = fingerprints(ROWS, ROWS.schema.names).to_pylist()
    assert len(set(whole)) == ROWS.num_rows
    one_by_one = [fingerprints(ROWS.slice(row, 1), ROWS.schema.names)[0].as_py() for row in range(ROWS.num_rows)]
    assert one_by_one == whole
    # Fingerprints must never change, since a later version may compare a decided batch with a replay.
    assert whole == golden


CLAIM = Claim(nonce="0123abcd", run="r", query="q")
TOKEN = Token(7, "0123abcd")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.setattr(ends, "_folder", lambda: tmp_path)
    return tmp_path


def test_a_run_is_kept_until_an_error():
    with StoredRun("k") as one:
        assert one.found is None
        one.keep(CLAIM, TOKEN)
    with StoredRun("k") as two:
        assert two.found == (CLAIM, TOKEN)
    with StoredRun("other") as other:
        assert other.found is None
    with pytest.raises(ValueError, match="broken"), StoredRun("k"):
        raise ValueError("broken")
    with StoredRun("k") as last:
        assert last.found is None


def test_a_run_that_another_process_holds_is_not_continued(folder, monkeypatch):
    monkeypatch.setattr(ends, "_LOCKED_WITHIN_S", 0.2)
    with StoredRun("k") as one:
        one.keep(CLAIM, TOKEN)
    standing = os.open(folder / "k.run", os.O_RDWR)
    try:
        fcntl.flock(standing, fcntl.LOCK_EX)
        with StoredRun("k") as two:
            assert two.found is None
    finally:
        os.close(standing)


def test_what_was_kept_for_a_driver_that_is_gone_is_deleted(folder):
    pid, (_, _, started) = os.getpid(), ends._process(os.getpid())
    gone = subprocess.Popen(["true"])
    gone.wait()
    alive, ended, followed = f"{pid}-{started}-ab.run", f"{gone.pid}-{started}-ab.run", f"{pid}-{started - 1}-ab.run"
    for name in (alive, ended, followed, "other.run"):
        (folder / name).touch()
    with StoredRun("k") as one:
        one.keep(CLAIM, TOKEN)
    assert sorted(path.name for path in folder.iterdir()) == sorted([alive, "k.run", "other.run"])


def test_without_a_key_nothing_is_kept(folder):
    with StoredRun(None) as one:
        one.keep(CLAIM, TOKEN)
    assert list(folder.iterdir()) == []


S3A = {
    "fs.defaultFS": "s3a://lake",
    "fs.s3a.endpoint": "http://127.0.0.1:9000",
    "fs.s3a.access.key": "a",
    "fs.s3a.bucket.other.secret.key": "t",
    "fs.s3a.secret.key": "s",
}


@pytest.mark.parametrize(
    ("given", "default", "kind", "found"),
    [
        ("/c/%20x", "", LocalFiles, "/c/%20x"),
        ("/c", "file:///", LocalFiles, "/c"),
        ("file:///c", "s3a://lake", LocalFiles, "/c"),
        ("/c/d?e", "s3a://lake", ObjectFiles, "s3a://lake/c/d?e"),
        ("s3a://other/c/", "hdfs://nn:1", ObjectFiles, "s3a://other/c"),
        ("/c", "hdfs://nn:1/", HdfsFiles, "hdfs://nn:1/c"),
        ("hdfs:///c", "hdfs://nn:1", HdfsFiles, "hdfs://nn:1/c"),
        ("hdfs://two/c", "hdfs://nn:1", HdfsFiles, "hdfs://two/c"),
    ],
)
def test_a_folder_is_where_hadoop_says(given, default, kind, found):
    files = open_files("log", given, {**S3A, "fs.defaultFS": default})
    assert (type(files), files.location) == (kind, found)


def test_a_store_is_reached_with_the_sessions_keys():
    files = pickle.loads(pickle.dumps(open_files("log", "s3a://other/c", S3A)))  # noqa: S301 - our own
    assert isinstance(files, ObjectFiles)
    assert files._access.keys == {"access_key_id": "a", "secret_access_key": "t"}
    assert files._access.options["endpoint"] == "http://other.127.0.0.1:9000"


@pytest.mark.parametrize(
    ("location", "more", "words"),
    [
        ("c", {"fs.defaultFS": "hdfs://nn:1"}, "relative"),
        ("wasb://c/d", {}, "wasb: is not known"),
        ("/c", {"fs.defaultFS": "dbfs:/"}, "dbfs: is not known"),
        ("s3a://b/c", {"fs.s3a.delegation.token.binding": "x"}, "delegation.token.binding has no counterpart"),
        ("s3a://b/c", {"hadoop.security.credential.provider.path": "jceks://x"}, "needs Spark.s JVM"),
    ],
)
def test_a_store_that_cannot_be_reached_without_a_jvm_is_refused(location, more, words):
    with pytest.raises(ConfigurationError, match=words) as refused:
        open_files("log", location, {**S3A, **more})
    assert "4.1" not in refused.value.next_step


def test_a_job_that_is_decided_says_so(tmp_path, caplog):
    known = SimpleNamespace(log=DecisionLog(LocalFiles(tmp_path)), query="q", sink=None, begin=lambda _: None)
    FormatJobWriter(cast(Ends, known), "nightly", "{}", ["key"])
    assert "job='nightly' has already been decided" in caplog.text
