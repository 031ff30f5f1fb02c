"""Today's committers take every version's handles, and ask for exactly what these name.

Those that need no server are driven in `test_golden_drivers.py`; here each server's own client is stood in for.
"""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from golden.kept import CHANGED, DECIDED, FINISHED, NEWEST, SHORT, STATES, UNDECIDED, VERSIONS, copy, servers, state
from golden.stand_ins import Postgres, kafka_committer
from sparkonce.driver.start import read_log
from sparkonce.log.base import DecisionLog
from sparkonce.log.local import LocalLogStore
from sparkonce.protocol.codec import decode_record
from sparkonce.protocol.handles import Handle
from sparkonce.protocol.outcomes import Outcome
from sparkonce.protocol.ownership import Token, TransactionName
from sparkonce.protocol.records import Claim
from sparkonce.sinks.files import handle as files_handle
from sparkonce.sinks.files.hdfs.store import HdfsStore
from sparkonce.sinks.files.s3.finish import Finisher
from sparkonce.sinks.kafka.committer import fields_of as kafka_fields
from sparkonce.sinks.kafka.committer import transaction_of
from sparkonce.sinks.kafka.outcomes import BrokerAnswer, Transaction
from sparkonce.sinks.mysql import committer as mysql
from sparkonce.sinks.mysql.names import Xid, stage_table
from sparkonce.sinks.postgres import names as postgres
from sparkonce.sinks.postgres.prepared import try_finish
from sparkonce.sinks.postgres.settings import Limits
from sparkonce.sinks.postgres.staged import commit_staged
from sparkonce.sinks.redis import names as redis
from sparkonce.sinks.redis.encoding import encode
from sparkonce.sinks.redis.scripts import END
from sparkonce.sinks.redis.shape import Shape
from sparkonce.sinks.write_ahead.entry import Entry

EACH_VERSION = pytest.mark.parametrize("version", VERSIONS)
ENTRIES = ("write-ahead", "orders.eu", "delta", "iceberg")
"""Sinks whose rows wait in files of the write-ahead sink's."""


def raw_handles(version: str, name: str) -> list[Handle]:
    """All that the log of a state names."""
    folder = state(version, name) / "checkpoint" / "sparkonce" / "records"
    records = [decode_record(path.read_bytes()) for path in sorted(folder.iterdir())]
    return [handle for record in records if not isinstance(record, Claim) for handle in record.handles]


@cache
def decided(version: str) -> Mapping[str, Sequence[Handle]]:
    """The handles of the batch that is decided and not committed, by sink."""
    found: dict[str, list[Handle]] = {}
    for handle in raw_handles(version, DECIDED)[-48:]:
        found.setdefault(handle.sink, []).append(handle)
    return found


def named(handle: Handle, field: str = "name") -> TransactionName:
    name = TransactionName.parse(str(handle[field]))
    assert name is not None
    return name


# --- read, and written alike -----------------------------------------------------------------------------------------


def of_kafka(handle: Handle) -> Mapping[str, str | int]:
    return kafka_fields(transaction_of(handle))


def of_postgres(handle: Handle) -> Mapping[str, str | int]:
    fields = dict(handle.transaction)
    assert set(fields) == postgres.FIELDS
    found = postgres.Transaction.of(fields)
    assert found is not None
    assert found.name == named(handle)
    return found.fields()


def of_mysql(handle: Handle) -> Mapping[str, str | int]:
    marker = mysql.Marker.of(dict(handle.transaction))
    assert marker is not None
    return marker.fields()


def of_redis(handle: Handle) -> Mapping[str, str | int]:
    return dict(redis.fields_of(named(handle, redis.TRANSACTION), int(handle[redis.SEEN])))


def of_entry(handle: Handle) -> Mapping[str, str | int]:
    entry = Entry.of_handle(handle)
    assert entry is not None
    return entry.fields()


READ: Mapping[str, Callable[[Handle], Mapping[str, str | int]]] = {
    "kafka": of_kafka,
    **dict.fromkeys(("postgres.two_phase", "postgres.staged", "postgres.upsert"), of_postgres),
    **dict.fromkeys(("mysql.two_phase", "mysql.staged", "mysql.upsert"), of_mysql),
    **dict.fromkeys(("redis", "redis.cluster"), of_redis),
    **dict.fromkeys(ENTRIES, of_entry),
}
"""How each committer reads a handle, but for those of files; and the fields of what it has read."""

IN_FIELDS = ("files", "files.days", "files.hdfs", "files.s3")
DIRECT = ("kafka.direct", "files.direct", "postgres.direct", "mysql.direct", "redis.direct", "write-ahead.direct")


@EACH_VERSION
@pytest.mark.parametrize("name", STATES)
def test_every_sinks_handles_are_there(version: str, name: str) -> None:
    found = {(handle.sink, bool(handle.transaction)) for handle in raw_handles(version, name)}
    written = {*READ, *IN_FIELDS, "files.list"}
    assert {sink for sink, has in found if has} == written
    # At least once: rows and a fingerprint, and nothing to commit. At most once: no handle at all.
    assert {sink for sink, _ in found} - written == set(DIRECT)
    assert all(handle.rows or not handle.transaction for handle in raw_handles(version, name))


@EACH_VERSION
@pytest.mark.parametrize("name", STATES)
def test_handles_are_read_and_would_be_written_alike(version: str, name: str) -> None:
    read = set()
    for handle in raw_handles(version, name):
        if handle.transaction and handle.sink in READ:
            read.add(handle.sink)
            assert READ[handle.sink](handle) == dict(handle.transaction), CHANGED.format(version=version)
    assert read == set(READ)


@EACH_VERSION
@pytest.mark.parametrize("name", STATES)
@pytest.mark.parametrize("sink", IN_FIELDS)
def test_files_in_a_handle_are_read_and_would_be_written_alike(version: str, name: str, sink: str) -> None:
    found = [handle for handle in raw_handles(version, name) if handle.sink == sink and handle.transaction]
    assert found
    for handle in found:
        listed = files_handle.read_handle(handle)
        assert listed.files is not None
        assert listed.name.prefix == sink
        fields, content = files_handle.fields_of(listed.name, listed.files, listed.begun_ms, listed.folder)
        assert (fields, content) == (dict(handle.transaction), None), CHANGED.format(version=version)
        assert sum(int(one["rows"]) for one in listed.files) == handle.rows


@EACH_VERSION
def test_files_in_a_list_are_read_and_would_be_written_alike(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files_handle, "LONGEST_BYTES", 700)
    for handle in decided(version)["files.list"]:
        listed = files_handle.read_handle(handle)
        assert (listed.files, listed.list_path) == (None, f".sparkonce/lists/{listed.name}")
        content = (state(version, DECIDED) / "files" / "list" / listed.list_path).read_bytes()
        files = files_handle.read_list(content, listed.list_checksum)
        assert files is not None
        assert [one["path"] for one in files] == [
            f"day=2024-05-0{number + 1}/part-{listed.name}-{number}.json" for number in range(4)
        ]
        again = files_handle.fields_of(listed.name, files, listed.begun_ms, listed.folder)
        assert again == (dict(handle.transaction), content), CHANGED.format(version=version)
        assert files_handle.read_list(content + b" ", listed.list_checksum) is None


def test_what_a_handle_of_each_sink_holds() -> None:
    """Written out: what is in `expected.json` too, and what nobody would notice if it was made anew."""
    found = {sink: dict(handles[1].transaction) for sink, handles in decided("v1").items()}
    run = f"{SHORT}.5-0c5b77b9.3.1"
    mysql_server = found["mysql.staged"]["server"]
    assert found["kafka"] == {
        "transactional_id": f"shop.eu.{SHORT}.5-0c5b77b9.fcfd8fbf169d-1",
        "producer_id": 12,
        "epoch": 0,
    }
    for commit, schema, prefix in (
        ("two_phase", "public", "sparkonce.postgres.two_phase"),
        ("staged", "markers", "shop.postgres.staged"),
        ("upsert", "public", "sparkonce.postgres.upsert"),
    ):
        fields = found[f"postgres.{commit}"]
        assert (fields["commits"], fields["database"]) == (schema, "postgres")
        assert str(fields["name"]).startswith(f"{prefix}.{run}.")
        assert fields["commit"] == ("staged" if commit == "upsert" else commit)
    for commit in ("two_phase", "staged", "upsert"):
        fields = found[f"mysql.{commit}"]
        assert str(fields["transaction"]).startswith(f"sparkonce.mysql.{commit}.{run}.")
        assert fields["server"] == mysql_server
    assert (str(found["redis"]["transaction"]).rpartition(".")[0], found["redis"]["seen"]) == (f"redis.{run}", 5)
    assert str(found["redis.cluster"]["transaction"]).startswith(f"redis.cluster.{run}.")
    assert str(found["orders.eu"]["name"]).startswith(f"orders%2Eeu.{run}.")
    assert found["files.direct"] == {}
    (one,) = json.loads(str(found["files.s3"]["files"]))
    assert sorted(one) == ["bucket", "checksum", "etags", "mark", "path", "prefix", "rows", "size", "upload_id"]
    (one,) = json.loads(str(found["files.hdfs"]["files"]))
    assert sorted(one) == ["checksum", "held", "path", "rows", "size"]


# --- asked for -------------------------------------------------------------------------------------------------------


@EACH_VERSION
def test_kafka_is_asked_to_commit_these_transactions(version: str) -> None:
    asked: list[Transaction] = []

    def end(transactions: Sequence[Transaction], *, commit: bool, deadline_s: float) -> list[BrokerAnswer]:
        assert commit
        asked.extend(transactions)
        return [BrokerAnswer(0) for _ in transactions]

    answers = kafka_committer(end_transactions=end).commit(decided(version)["kafka"])
    assert [one.outcome for one in answers] == [Outcome.COMMITTED] * 2
    there = {name: one for name, one in servers(version, DECIDED)["kafka"].items() if one["state"] == "Ongoing"}
    assert {one.transactional_id: (one.producer_id, one.epoch) for one in asked} == {
        name: (one["producer_id"], one["epoch"]) for name, one in there.items()
    }


@EACH_VERSION
def test_postgres_is_asked_to_commit_these_prepared_transactions(version: str) -> None:
    connection = Postgres({})
    handles = decided(version)["postgres.two_phase"]
    for handle in handles:
        location = postgres.Location.of(dict(handle.transaction))
        found = try_finish(connection, named(handle), location, commit=True)  # type: ignore[arg-type]
        assert found.outcome is Outcome.COMMITTED
    gids = servers(version, DECIDED)["postgres"]["gids"]
    assert connection.executed == [f"COMMIT PREPARED '{gid}'" for gid in gids]


@EACH_VERSION
@pytest.mark.parametrize(
    ("sink", "schema", "moved"),
    [
        ("postgres.staged", "markers", 'INSERT INTO "public"."numbers" ("number", "text") SELECT'),
        ("postgres.upsert", "public", 'INSERT INTO "public"."keyed" ("number", "text", "at") SELECT DISTINCT ON'),
    ],
)
def test_postgres_is_asked_to_move_these_staged_rows(version: str, sink: str, schema: str, moved: str) -> None:
    """Finds where the rows go, and how, in the marker that the writer has left."""
    handles = decided(version)[sink]
    markers = {row[0]: row for row in servers(version, DECIDED)["postgres"]["markers"][schema]}
    there = [markers[str(handle["name"])] for handle in handles]
    assert [row[4] for row in there] == ["staged"] * 2
    connection = Postgres(
        {
            "FOR UPDATE": [(row[0], row[4], row[5]) for row in there],
            "count(*)": [(number, handle.rows) for number, handle in enumerate(handles)],
        }
    )
    location = postgres.Location.of(dict(handles[0].transaction))
    rows = {named(handle): handle.rows for handle in handles}
    answers = commit_staged(connection, rows, location, Limits())  # type: ignore[arg-type]
    assert {one.outcome for one in answers.values()} == {Outcome.COMMITTED}
    moving, ending = connection.executed[-2:]
    assert moving.startswith(moved)
    assert ending.endswith("; COMMIT")
    tables = {f'"{schema}"."sparkonce_{SHORT}_{named(handle).copy}"' for handle in handles}
    assert all(table in step for table in tables for step in (moving, ending))
    listed = servers(version, DECIDED)["postgres"]["tables"]
    assert tables <= {f'"{one[0]}"."{one[1]}"' for one in listed}


@EACH_VERSION
def test_mysql_finds_these_branches_and_staging_tables(version: str) -> None:
    held = servers(version, DECIDED)["mysql"]
    prepared = [Xid.of(named(one, "transaction")) for one in decided(version)["mysql.two_phase"]]
    listed = [[one[0], one[1], one[2], one[3]] for one in held["xids"]]
    assert sorted(listed) == sorted(
        [0x53504F31, len(one.gtrid), len(one.bqual), (one.gtrid + one.bqual).hex()] for one in prepared
    )
    staged = [*decided(version)["mysql.staged"], *decided(version)["mysql.upsert"]]
    stages = {name for name, _ in held["tables"] if name.startswith("sparkonce_stage_")}
    assert {stage_table(named(one, "transaction").copy) for one in staged} == stages


@EACH_VERSION
def test_s3_is_asked_to_complete_these_uploads(version: str) -> None:
    asked: list[dict[str, Any]] = []

    def complete(**arguments: Any) -> dict[str, Any]:
        asked.append(arguments)
        etag = next(one["checksum"] for one in files if one["upload_id"] == arguments["UploadId"])
        return {"ChecksumType": "COMPOSITE", "ETag": f'"{etag}"'}

    listed = [files_handle.read_handle(handle) for handle in decided(version)["files.s3"]]
    files = [one for each in listed for one in each.files or ()]
    client = SimpleNamespace(complete_multipart_upload=complete)
    finisher = Finisher(client, client, if_none_match=True)
    assert [finisher.publish(one).outcome for one in files] == [Outcome.COMMITTED] * 2
    there = servers(version, DECIDED)["s3"]["uploads"]
    assert sorted([one["Key"], one["UploadId"]] for one in asked) == there
    assert [one["MultipartUpload"] for one in asked] == [
        {"Parts": [{"PartNumber": 1, "ETag": f'"{one["etags"]}"'}]} for one in files
    ]


@EACH_VERSION
def test_hdfs_is_asked_to_rename_these_files(version: str) -> None:
    renamed: dict[str, str] = {}

    def rename(before: str, after: str, overwrite: bool) -> None:
        assert not overwrite
        renamed[before] = after

    store = HdfsStore("hdfs://127.0.0.1:1/out")
    store._client = SimpleNamespace(rename=rename, mkdirs=lambda *_: None)
    listed = [files_handle.read_handle(handle) for handle in decided(version)["files.hdfs"]]
    files = [one for each in listed for one in each.files or ()]
    sizes = {f"/out/.sparkonce/held/{one['held']}": one["size"] for one in files}
    store._client.get_file_info = lambda path: SimpleNamespace(isdir=False, length=sizes[path])
    found = store.publish(files)
    assert [one.outcome for one in found] == [Outcome.COMMITTED] * 2
    held = [path for path in servers(version, DECIDED)["hdfs"] if path.endswith(".held")]
    assert sorted(renamed) == held
    assert set(renamed.values()) < set(servers(version, FINISHED)["hdfs"])


# --- what waits elsewhere --------------------------------------------------------------------------------------------


@EACH_VERSION
@pytest.mark.parametrize("sink", ["redis", "redis.cluster"])
def test_redis_has_these_transactions_in_its_ledger_and_their_rows_in_lists(version: str, sink: str) -> None:
    held = servers(version, DECIDED)["redis"][sink]
    assert redis.IDENTITY in held["texts"]
    for handle in decided(version)[sink]:
        name = named(handle, "transaction")
        entry = redis.LedgerEntry.parse(held["ledgers"][redis.ledger_of(name).name][str(name)])
        assert (entry.state, entry.seen) == (redis.PREPARED, handle["seen"])
        assert 0 < entry.begun_ms <= entry.prepared_ms
        assert bool(entry.slots) == (sink == "redis.cluster")


@EACH_VERSION
def test_rows_wait_in_redis_in_the_form_that_todays_scripts_take(version: str) -> None:
    shape = Shape(structure="increment", key_template="row:{number}")
    lists = servers(version, DECIDED)["redis"]["redis"]["lists"]
    for handle in decided(version)["redis"]:
        given = [300 + 10 * handle.slot + place for place in range(3)]
        rows = pa.record_batch({"number": pa.array(given, pa.int64()), "amount": pa.array([1] * 3, pa.int64())})
        chunks = [chunk for _, chunk in encode(shape, rows).chunks()]
        there = [b64decode(one) for one in lists[redis.single_key(named(handle, "transaction")).name]]
        assert there == [*chunks, END.encode()], CHANGED.format(version=version)


@EACH_VERSION
def test_a_run_that_was_killed_is_known_by_its_token(version: str, tmp_path: Path) -> None:
    """Finds what a run left on servers by the token in the log; nothing else says what it wrote."""
    view = read_log(DecisionLog(LocalLogStore(copy(version, UNDECIDED, tmp_path) / "checkpoint")))
    killed = view.runs[-1].token
    left = servers(version, UNDECIDED)
    gids = [TransactionName.parse(gid) for gid in left["postgres"]["gids"]]
    tokens: set[Token] = {one.token for one in gids if one is not None}
    assert (len(gids), tokens) == (2, {killed})


def test_the_newest_version_is_the_one_that_is_written() -> None:
    assert VERSIONS[-1] == NEWEST
