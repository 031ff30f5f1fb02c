"""Durable formats: the exact bytes that today's code writes, how it reads them, and its errors for newer formats."""

from __future__ import annotations

import hashlib
import importlib
import pkgutil
import re
from dataclasses import replace
from typing import Any

import pytest

import sparkonce.sinks
import sparkonce.spark
import sparkonce_pravega
import sparkonce_rabbitmq
from sparkonce.decision_log import DecisionLog
from sparkonce.errors import CorruptRecordError, NewerFormatError
from sparkonce.protocol import codec
from sparkonce.protocol.handles import Handle, Outcome, transaction_fields
from sparkonce.protocol.ownership import Token, TransactionalId, TransactionName
from sparkonce.protocol.view import Amend, Claim, Commit, Decision, Floor, LogView, Run, Void
from sparkonce.sinks._shared.committing import HandleCommitter
from sparkonce.sinks.files import manifests
from sparkonce.sinks.files import store as files_handle
from sparkonce.sinks.files.manifests import CommittedFile, Manifest, ManifestName
from sparkonce.sinks.files.names import file_path, name_in
from sparkonce.sinks.files.s3.requests import TRANSACTION, UPLOAD, name_text
from sparkonce.sinks.kafka.committer import fields_of, transaction_of
from sparkonce.sinks.redis import names as redis
from sparkonce.sinks.sql.committer import SqlCommitter
from sparkonce.sinks.sql.dialect import Location, SqlTransaction
from sparkonce.sinks.sql.mysql import finishing as mysql_markers
from sparkonce.sinks.sql.mysql.dialect import MYSQL_DIALECT
from sparkonce.sinks.sql.mysql.settings import FORMAT_ID, StagingTable, Xid, stage_table
from sparkonce.sinks.sql.postgres.dialect import POSTGRES_DIALECT
from sparkonce.sinks.sql.postgres.settings import BackendName, staging_table
from sparkonce.sinks.sql.postgres.statements import create_commits
from sparkonce.sinks.sql.settings import Limits, Target, UpsertRules
from sparkonce.sinks.tables.table import Label
from sparkonce.sinks.write_ahead.ledger import Entry, entries_of, text_of
from sparkonce.storage.local import LocalFiles
from sparkonce_rabbitmq.sinks.publishing import Ids

TOKEN = Token(5, "60a1de0a")
QUERY = "60a1de00-0000-4000-8000-000000000001"
NAME = TransactionName(prefix="shop.eu", query="60a1de000000", token=TOKEN, batch=4, slot=1, copy="0123456789ab")
TEXT = "shop.eu.60a1de000000.5-60a1de0a.4.1.0123456789ab"
HANDLE = Handle(
    sink="kafka",
    slot=1,
    rows=7,
    fingerprint=3438256768684130304,
    opened_ms=1795446137275,
    transaction=(("epoch", 0), ("producer_id", 12), ("transactional_id", "shop.eu.60a1de000000.5-60a1de0a.fcfd8f-1")),
)
LINE = (
    '["kafka",1,7,3438256768684130304,1795446137275,'
    '{"epoch":0,"producer_id":12,"transactional_id":"shop.eu.60a1de000000.5-60a1de0a.fcfd8f-1"}]'
)
DECIDED: Any = {"token": TOKEN, "query": QUERY, "batch": 4, "offsets": ('{"orders":{"0":5}}',), "handles": (HANDLE,)}
FACTS = (("kafka", (("cluster_id", "czPmb"), ("topic", "totals"))), ("once", ()))
TOPICS = (("orders", "0aa23acf"),)
CLAIM = Claim(
    nonce=TOKEN.nonce,
    run="r-1",
    query=QUERY,
    host="driver.example",
    process=4711,
    library="0.1.0",
    location="/checkpoint/sparkonce",
    sinks=FACTS,
    sources=TOPICS,
    renews=Token(0, "aa"),
)


@pytest.mark.parametrize(
    ("record", "version", "body"),
    [
        (
            CLAIM,
            1,
            '{"at_ms":9,"host":"driver.example","kind":"claim","library":"0.1.0","location":"/checkpoint/sparkonce",'
            '"nonce":"60a1de0a","process":4711,"query":"60a1de00-0000-4000-8000-000000000001","renews":[0,"aa"],'
            '"run":"r-1","sinks":{"kafka":{"cluster_id":"czPmb","topic":"totals"},"once":{}},'
            '"sources":{"orders":"0aa23acf"}}',
        ),
        *(
            (
                record,
                version,
                f'{{"at_ms":9,"batch":4,"handles":[{LINE}],"kind":"{kind}","offsets":["{{\\"orders\\":{{\\"0\\":5}}}}"],'
                f'"query":"60a1de00-0000-4000-8000-000000000001","token":[5,"60a1de0a"]{rest}}}',
            )
            for record, version, kind, rest in (
                (Commit(**DECIDED), 1, "commit", ""),
                (Amend(**DECIDED), 1, "amend", ""),
                (Void(**DECIDED, void=(("kafka", 1),)), 2, "void", ',"void":[["kafka",1]]'),
            )
        ),
    ],
)
def test_a_record(record, version, body):
    written = codec.encode_record(record, at_ms=9)
    checksum = hashlib.sha256(f"record {version}\n{body}".encode()).hexdigest()
    assert written.decode() == f"sparkonce record {version} {checksum}\n{body}"
    assert (codec.decode_record(written), codec.decided_at_ms(written)) == (record, 9)


def test_a_floor():
    run = Run(token=TOKEN, query=QUERY, location="/checkpoint/sparkonce", sinks=FACTS, sources=TOPICS)
    runs = (
        '[{"location":"/checkpoint/sparkonce","query":"60a1de00-0000-4000-8000-000000000001",'
        '"sinks":{"kafka":{"cluster_id":"czPmb","topic":"totals"},"once":{}},"sources":{"orders":"0aa23acf"},'
        '"token":[5,"60a1de0a"]}]'
    )
    newest = (
        f'{{"batch":4,"handles":[{LINE}],"offsets":["{{\\"orders\\":{{\\"0\\":5}}}}"],"position":2,'
        '"query":"60a1de00-0000-4000-8000-000000000001","token":[5,"60a1de0a"]'
    )
    decided, void = (Decision(position=2, **DECIDED, void=lost) for lost in ((), (("kafka", 1),)))
    for number, floor, body in (
        (1, Floor(position=3, runs=(run,)), f'{{"position":3,"runs":{runs}}}'),
        (2, Floor(position=3, runs=(run,), newest=decided), f'{{"newest":{newest}}},"position":3,"runs":{runs}}}'),
        (
            3,
            Floor(position=3, runs=(run,), newest=void),
            f'{{"newest":{newest},"void":[["kafka",1]]}},"position":3,"runs":{runs}}}',
        ),
    ):
        written = codec.encode_floor(floor)
        first, _, second = written.partition(b"\n")
        assert first.startswith(f"sparkonce floor {number} ".encode())
        assert second.decode() == body
        assert codec.decode_floor(written) == floor


@pytest.mark.parametrize("kind", ["record", "floor"])
def test_files_of_the_log_and_a_newer_one_among_them(kind, tmp_path):
    log = DecisionLog(LocalFiles(tmp_path))
    log.put_bytes(5, codec.encode_record(replace(CLAIM, renews=None), at_ms=9))
    log.raise_floor_bytes(5, codec.encode_floor(Floor(position=5)))
    files = [path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()]
    number = "00000000000000000005"
    assert sorted(files) == [f"sparkonce/floors/{number}", f"sparkonce/records/{number}"]
    assert [run.token for run in log.read(LogView()).runs] == [TOKEN]
    path = tmp_path / "sparkonce" / f"{kind}s" / number
    newer = codec.FORMATS[kind] + 1
    path.write_bytes(re.sub(rb"^(sparkonce \w+) \d", rb"\1 %d" % newer, path.read_bytes()))
    with pytest.raises(NewerFormatError, match=rf"(?i:{kind} .*) has format {newer}") as refused:
        DecisionLog(LocalFiles(tmp_path)).read(LogView())
    assert "upgrade this one" in refused.value.next_step


def test_handles():
    assert codec.encode_handle(HANDLE) == LINE
    assert codec.decode_handle(LINE) == HANDLE
    assert fields_of(transaction_of(HANDLE)) == dict(HANDLE.transaction)

    postgres = {"name": TEXT, "commit": "staged", "system": "7", "database": "shop", "commits": "public"}
    found = POSTGRES_DIALECT.fields.read(postgres)
    assert found == SqlTransaction(
        kind="staged", name=NAME, location=Location(server="7", database="shop", schema="public")
    )
    assert POSTGRES_DIALECT.fields.write(found) == postgres

    mysql: dict[str, str | int] = {"transaction": TEXT, "commit": "staged", "server": "a1", "begun_ms": 7}
    found = MYSQL_DIALECT.fields.read(mysql)
    assert found == SqlTransaction(kind="staged", name=NAME, location=Location(server="a1"), begun_ms=7)
    assert MYSQL_DIALECT.fields.write(found) == mysql

    staged = redis.StagedTransaction(NAME, 5)
    assert redis.fields_of(NAME, 5) == (("seen", 5), ("transaction", TEXT))
    assert redis.StagedTransaction.of(handle_of(seen=5, transaction=TEXT)) == staged


def test_a_handle_of_files_lists_them_or_names_their_list(monkeypatch):
    one: dict[str, str | int] = {"path": "a.json", "rows": 1, "size": 9, "checksum": "crc32:0", "held": "a.held"}
    text = '[{"checksum":"crc32:0","held":"a.held","path":"a.json","rows":1,"size":9}]'
    fields, content = files_handle.fields_of(NAME, [one], 7, "f")
    assert (fields, content) == ({"name": TEXT, "begun_ms": 7, "folder": "f", "files": text}, None)
    listed = files_handle.read_handle(handle_of(**fields))
    assert (listed.name, listed.files, listed.begun_ms, listed.folder) == (NAME, (one,), 7, "f")

    monkeypatch.setattr(files_handle, "LONGEST_BYTES", 10)
    fields, content = files_handle.fields_of(NAME, [one], 7, "f")
    assert content == text.encode()
    assert fields["list"] == f".sparkonce/lists/{TEXT}"
    listed = files_handle.read_handle(handle_of(**fields))
    assert listed.files is None
    assert files_handle.read_list(content, listed.list_checksum) == (one,)
    assert files_handle.read_list(content + b" ", listed.list_checksum) is None


def handle_of(**fields: str | int) -> Handle:
    return Handle(sink="s", slot=0, rows=1, fingerprint=0, opened_ms=0, transaction=transaction_fields(fields))


def test_a_handle_with_a_field_of_a_newer_version_is_left_alone():
    """The committers have no server to ask, so any request would fail."""
    for package in (sparkonce.sinks, sparkonce.spark, sparkonce_pravega, sparkonce_rabbitmq):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if module.name.endswith((".committer", "sparkonce_pravega.application")):
                importlib.import_module(module.name)
    known: list[Any] = [
        SqlCommitter(one, None, "s", server="", limits=Limits()) for one in (MYSQL_DIALECT, POSTGRES_DIALECT)
    ]
    kinds: list[Any] = [HandleCommitter]
    while kinds:
        kinds += (kind := kinds.pop()).__subclasses__()
        if kind.__module__.startswith("sparkonce") and kind not in (HandleCommitter, SqlCommitter):
            known.append(kind.__new__(kind))
    assert len(known) >= 8
    for committer in known:
        newer = handle_of(**dict.fromkeys((*committer.handle_fields, "lease"), 1))
        for end in (committer.commit, committer.abort):
            (answer,) = end([newer])
            assert answer.outcome is Outcome.UNKNOWN
            assert answer.reason.startswith(
                "The handle has fields that this version of sparkonce does not know: lease. Run the version that wrote"
            )


def test_names_on_servers():
    assert (str(NAME), TransactionName.parse(TEXT)) == (TEXT, NAME)
    assert NAME.belongs_to("shop.eu", "60a1de000000", frozenset({TOKEN}))
    assert not NAME.belongs_to("shop", "60a1de000000", frozenset({TOKEN}))

    lane = TransactionalId(prefix="shop.eu", query="60a1de000000", token=TOKEN, worker="fcfd8fbf169d", lane=1)
    assert str(lane) == "shop.eu.60a1de000000.5-60a1de0a.fcfd8fbf169d-1"
    assert TransactionalId.parse(str(lane)) == lane

    session = BackendName(prefix=0xA6859B00, query="60a1de000000", token=TOKEN, copy="0123456789ab")
    assert str(session) == "so.a6859b00.60a1de000000.5-60a1de0a.0123456789ab"
    assert BackendName.parse(str(session)) == session
    assert staging_table(NAME) == "sparkonce_60a1de000000_0123456789ab"

    branch = Xid.of(NAME)
    assert branch.gtrid + branch.bqual == b"60a1de000000.5-60a1de0a.0123456789abshop.eu"
    assert Xid.parse(FORMAT_ID, 36, 7, (branch.gtrid + branch.bqual).hex()) == branch
    assert FORMAT_ID == 0x53504F31
    stage = StagingTable(name=NAME, begun_ms=7, target=Target(table="t", mode="upsert", keys=("k",)))
    assert stage.comment() == f'{{"sparkonce":"{TEXT}","begun_ms":7,"table":"t","keys":["k"]}}'
    assert stage_table(NAME.copy) == "sparkonce_stage_0123456789ab"
    assert StagingTable.parse("sparkonce_stage_0123456789ab", stage.comment()) == stage

    assert redis.IDENTITY == "sparkonce:id"
    assert redis.ledger_key("shop.eu", "60a1de000000").name == "sparkonce:{shop.eu.60a1de000000}:ledger"
    assert redis.single_key(NAME).name == f"sparkonce:{{shop.eu.60a1de000000}}:{TEXT}"
    assert redis.slot_key(NAME, 7).name == f"sparkonce:{{gve}}:{TEXT}"

    assert file_path("day=1", NAME, 2, ".json") == f"day=1/part-{TEXT}-2.json"
    assert name_in(f"part-{TEXT}-2.json") == NAME
    assert (TRANSACTION, UPLOAD) == ("sparkonce-transaction", "sparkonce-upload")
    assert name_text(f"day=1/part-{TEXT}-2.json") == TEXT


def test_tables_and_entries_on_servers():
    assert (
        '"sparkonce_commits" (name text PRIMARY KEY, prefix text NOT NULL, query text NOT NULL, batch bigint NOT NULL, '
        "state text NOT NULL, target text NOT NULL, begun timestamptz NOT NULL);"
    ) in create_commits("public").as_string(None)
    target = Target(schema="public", table="t", mode="upsert", keys=("k",), rules=UpsertRules(order_by="at"))
    text = (
        '{"schema":"public","table":"t","mode":"upsert","keys":["k"],"on_conflict":"update","order_by":"at",'
        '"columns":["k","v","at"]}'
    )
    assert target.to_text(("k", "v", "at")) == text
    assert Target.from_text(text) == (target, ("k", "v", "at"))
    assert mysql_markers.TABLES == {
        "sparkonce_commits": "CREATE TABLE sparkonce_commits (prefix VARBINARY(64) NOT NULL, query VARBINARY(12) NOT "
        "NULL, batch BIGINT UNSIGNED NOT NULL, copy VARBINARY(12) NOT NULL, slot INT UNSIGNED NOT NULL, position "
        "BIGINT UNSIGNED NOT NULL, nonce VARBINARY(8) NOT NULL, kind VARBINARY(9) NOT NULL, begun_ms BIGINT UNSIGNED "
        "NOT NULL, connection BIGINT UNSIGNED NOT NULL, PRIMARY KEY (prefix, query, batch, copy)) ENGINE=InnoDB",
        "sparkonce_servers": "CREATE TABLE sparkonce_servers (host VARBINARY(300) NOT NULL PRIMARY KEY, id "
        "VARBINARY(32) NOT NULL) ENGINE=InnoDB",
    }
    entry = redis.LedgerEntry(state="P", begun_ms=7, seen=5, prepared_ms=9, slots="a")
    assert redis.LedgerEntry.parse("P:7:5:9:a:term") == entry
    assert (Ids.of(4, 0, 14), Ids.of(4, 1, 14).first) == (Ids(42949672960, 42949672973), 43218108416)


def test_a_manifest():
    made = Manifest(
        sink="files",
        prefix="shop.eu",
        query="60a1de000000",
        token=TOKEN,
        batch=4,
        files=(CommittedFile(path="half=h0/a.json", rows=2, size_bytes=70, checksum="crc32:5725756a"),),
        transactions=({"name": TEXT},),
    )
    written = (
        '{"sparkonce_manifest": 1}\n'
        '{"sink":"files","prefix":"shop.eu","query":"60a1de000000","token":{"position":5,"nonce":"60a1de0a"},"batch":4,'
        '"files":[{"path":"half=h0/a.json","rows":2,"size_bytes":70,"checksum":"crc32:5725756a"}],'
        f'"transactions":[{{"name":"{TEXT}"}}]}}\n'
    ).encode()
    assert manifests.encode([made]) == written
    assert manifests.decode(written, "m") == ({"sparkonce_manifest": 1}, [made])
    with pytest.raises(CorruptRecordError, match=r"m has format 2, and this version knows 1\."):
        manifests.decode(written.replace(b": 1}", b": 2}"), "m")
    text = "shop.eu.60a1de000000.5-60a1de0a.4.manifest"
    assert ManifestName.parse(text) == ManifestName(
        text=text, prefix="shop.eu", query="60a1de000000", token=TOKEN, first=4, last=4
    )
    merged = ManifestName.parse("shop.eu.60a1de000000.0-99.merged")
    assert (merged.token, merged.first, merged.last) == (None, 0, 99)


def test_notes_of_rows_that_wait_and_labels_of_tables():
    entry = Entry(name=NAME, size_bytes=811, checksum="54711", identity="6163", begun_ms=1795, parts="")
    note = (
        f'[{{"name": "{TEXT}", "size_bytes": 811, "checksum": "54711", "identity": "6163", "begun_ms": 1795}}]'
    ).encode()
    assert text_of([entry]) == note
    assert entries_of(note, "") == [entry]
    assert Entry.of_fields(entry.fields()) == entry
    for change in (b'"colour": "red", "checksum"', b'"digest"'):
        with pytest.raises(OSError, match="entries that this version does not know: it is damaged, or of another"):
            entries_of(note.replace(b'"checksum"', change), "")
    label = Label.of([entry])
    text = (
        '{"sparkonce":{"digest":"%s","first":{"begun_ms":1795,"checksum":"54711","identity":"6163",'
        f'"name":"{TEXT}","size_bytes":811}},"members":1}}}}'
    )
    assert label.to_text() == text % label.digest
    assert Label.of_text(label.to_text()) == label
