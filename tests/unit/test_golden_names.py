"""Names that sinks have given on servers, in every version, are parsed by today's code; and what they mean.

A run finds what an earlier one has left by nothing else. And a start holds what servers remember against the log: if
today's code told it in other words than the old log has it, the newest log would be taken for an old copy.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import unquote

import pytest

from golden.kept import CHANGED, DECIDED, FINISHED, NEWEST, SHORT, STATES, UNDECIDED, VERSIONS, copy_checkpoint, servers
from golden.stand_ins import kafka_committer
from sparkonce.checkpoint.local import LocalFiles
from sparkonce.driver.start import read_log
from sparkonce.log.base import DecisionLog
from sparkonce.log.local import LocalLogStore
from sparkonce.protocol.ownership import Token, TransactionalId, TransactionName
from sparkonce.protocol.traces import Trace, not_in_log
from sparkonce.protocol.view import LogView
from sparkonce.sink import Owner
from sparkonce.sinks.files.committer import FilesCommitter
from sparkonce.sinks.files.names import file_path, name_in
from sparkonce.sinks.files.s3.outcomes import TRANSACTION, UPLOAD, name_text
from sparkonce.sinks.kafka.outcomes import Description, Transaction
from sparkonce.sinks.mysql import markers as mysql_markers
from sparkonce.sinks.mysql.names import FORMAT_ID, StagingTable, Xid, lock_name, parse_recovered
from sparkonce.sinks.postgres.markers import read_traces
from sparkonce.sinks.postgres.names import BackendName, Location, staging_table
from sparkonce.sinks.postgres.settings import Target
from sparkonce.sinks.postgres.statements import create_commits
from sparkonce.sinks.redis import names as redis
from sparkonce.sinks.redis.committer import RedisCommitter
from sparkonce.sinks.redis.hash_slots import pack_slots, unpack_slots
from sparkonce.sinks.write_ahead.disk import DiskFolder
from sparkonce.sinks.write_ahead.ledger import Ledger
from sparkonce.spark.tables.committer import TableCommitter
from sparkonce.spark.tables.iceberg import NOTE
from sparkonce.spark.tables.table import Label

EACH_VERSION = pytest.mark.parametrize("version", VERSIONS)
RUN = Token(5, "0c5b77b9")
"""The run that decided batch 3 in version 1."""


def log(version: str, name: str, folder: Path) -> LogView:
    return read_log(DecisionLog(LocalLogStore(copy_checkpoint(version, name, folder))))


def tokens(version: str, name: str, folder: Path) -> set[Token]:
    return {run.token for run in log(version, name, folder).runs}


def facts(view: LogView, sink: str) -> Mapping[str, str]:
    return dict(dict(view.runs[-1].sinks)[sink])


def transaction_names(version: str, name: str) -> list[tuple[str, str]]:
    """All names of transactions on servers, each with the prefix that its sink has."""
    said = servers(version, name)
    found = [(gid, "sparkonce.postgres.two_phase") for gid in said["postgres"]["gids"]]
    for rows in said["postgres"]["markers"].values():
        found += [(row[0], row[1]) for row in rows]
    for sink, held in said["redis"].items():
        for ledger in held["ledgers"].values():
            found += [(text, sink) for text in ledger if not text.startswith("#")]
        found += [(key.partition("}:")[2], sink) for key in held["lists"]]
    found += [(meta["sparkonce-transaction"], "files.s3") for meta in said["s3"]["objects"].values() if meta]
    found += [(one.rpartition(".")[0], "iceberg") for one in said["iceberg"]["branches"]]
    found += [(key.removeprefix("sparkonce."), "iceberg") for key in said["iceberg"]["properties"]]
    found += [(json.loads(comment)["sparkonce"], "") for _, comment in said["mysql"]["tables"] if comment]
    return found


# --- what a name says, written out -----------------------------------------------------------------------------------


def test_a_transactional_id_of_kafka() -> None:
    text = f"shop.eu.{SHORT}.5-0c5b77b9.fcfd8fbf169d-1"
    assert text in servers("v1", DECIDED)["kafka"]
    found = TransactionalId(prefix="shop.eu", query=SHORT, token=RUN, worker="fcfd8fbf169d", lane=1)
    assert TransactionalId.parse(text) == found
    assert str(found) == text


def test_a_gid_of_postgres() -> None:
    text = servers("v1", DECIDED)["postgres"]["gids"][1]
    assert text == f"sparkonce.postgres.two_phase.{SHORT}.5-0c5b77b9.3.1.{text[-12:]}"
    found = TransactionName(
        prefix="sparkonce.postgres.two_phase", query=SHORT, token=RUN, batch=3, slot=1, copy=text[-12:]
    )
    assert TransactionName.parse(text) == found
    assert str(found) == text


def test_a_session_of_postgres() -> None:
    (text,) = servers("v1", DECIDED)["postgres"]["sessions"]
    assert text == f"so.a6859b00.{SHORT}.5-0c5b77b9.{text[-12:]}"
    found = BackendName(prefix=0xA6859B00, query=SHORT, token=RUN, copy=text[-12:])
    assert BackendName.parse(text) == found
    assert str(found) == text
    assert found.belongs_to("sparkonce.postgres.two_phase", SHORT, frozenset({RUN}))


def test_what_a_staged_copy_of_postgres_is_to_become() -> None:
    said = servers("v1", DECIDED)["postgres"]["markers"]
    (staged, _) = [row for row in said["markers"] if row[4] == "staged"]
    (keyed, _) = [row for row in said["public"] if row[4] == "staged"]
    assert Target.from_text(staged[5]) == (Target(schema="public", table="numbers"), ("number", "text"))
    wanted = Target(schema="public", table="keyed", mode="upsert", keys=("number",), order_by="at")
    assert Target.from_text(keyed[5]) == (wanted, ("number", "text", "at"))
    for text in (staged[5], keyed[5]):
        target, columns = Target.from_text(text)
        assert target.to_text(columns) == text, CHANGED.format(version=NEWEST)
    assert {row[4] for rows in said.values() for row in rows} == {"staged", "committed"}


def test_a_branch_of_xa() -> None:
    (branch, _) = servers("v1", DECIDED)["mysql"]["xids"]
    found = parse_recovered(*branch)
    assert found is not None
    assert found == Xid(prefix="sparkonce.mysql.two_phase", query=SHORT, token=RUN, copy=found.copy)
    assert branch[0] == FORMAT_ID == 0x53504F31
    assert bytes.fromhex(branch[3]) == f"{SHORT}.5-0c5b77b9.{found.copy}sparkonce.mysql.two_phase".encode()


def test_a_staging_table_of_mysql() -> None:
    tables = servers("v1", DECIDED)["mysql"]["tables"]
    found = [stage for table, comment in tables if (stage := StagingTable.parse(table, comment))]
    assert len(found) == 4
    assert {(one.name.prefix, one.name.query, one.name.token, one.name.batch) for one in found} == {
        ("sparkonce.mysql.staged", SHORT, RUN, 3),
        ("sparkonce.mysql.upsert", SHORT, RUN, 3),
    }
    assert {(one.table, one.keys) for one in found} == {("numbers", ()), ("keyed", ("number",))}
    comments = {comment for _, comment in tables if comment}
    assert {one.comment() for one in found} == comments, CHANGED.format(version=NEWEST)
    assert lock_name("0123456789ab") == "sparkonce:0123456789ab"


def test_keys_of_redis() -> None:
    single, cluster = (servers("v1", DECIDED)["redis"][name] for name in ("redis", "redis.cluster"))
    assert list(single["texts"]) == list(cluster["texts"]) == [redis.IDENTITY] == ["sparkonce:id"]
    assert list(single["ledgers"]) == [f"sparkonce:{{redis.{SHORT}}}:ledger"]
    assert redis.ledger_key("redis", SHORT).name == f"sparkonce:{{redis.{SHORT}}}:ledger"
    (ledger,) = cluster["ledgers"].values()
    assert ledger[redis.COMMITS_FIELD] == "5"
    prepared = {text: redis.LedgerEntry.parse(entry) for text, entry in ledger.items() if entry.startswith("P:")}
    assert len(prepared) == 2
    expected = set()
    for text, entry in prepared.items():
        name = TransactionName.parse(text)
        assert name is not None
        slots = unpack_slots(entry.slots)
        assert (len(slots), pack_slots(slots)) == (3, entry.slots)
        expected |= {redis.slot_key(name, slot).name for slot in slots}
    assert set(cluster["lists"]) == expected
    assert {entry[:2] for text, entry in ledger.items() if text[0] != "#"} == {"P:", "D:", "A:"}


def test_an_upload_to_s3() -> None:
    ((key, _), _) = servers("v1", DECIDED)["s3"]["uploads"]
    found = name_in(key.removeprefix("out/"))
    assert found is not None
    assert found == TransactionName(prefix="files.s3", query=SHORT, token=RUN, batch=3, slot=0, copy=found.copy)
    assert file_path("", found, 0, ".json") == key.removeprefix("out/")
    published = {key: meta for key, meta in servers("v1", FINISHED)["s3"]["objects"].items() if meta}
    assert len(published) == 13
    for path, meta in published.items():
        assert set(meta) == {TRANSACTION, UPLOAD} == {"sparkonce-transaction", "sparkonce-upload"}
        assert meta[TRANSACTION] == name_text(path.removeprefix("out/"))
        assert TransactionName.parse(unquote(meta[TRANSACTION])) == name_in(path)


def test_what_delta_and_iceberg_keep() -> None:
    said = servers("v1", FINISHED)
    versions = said["delta"]
    assert [(one["appId"], one["version"]) for one in versions] == [
        (f"delta.{SHORT}.{run}.0.0", batch)
        for batch, run in enumerate([*["0-d398fdc6"] * 3, "5-0c5b77b9", *["7-1460936b"] * 3])
    ]
    notes = said["iceberg"]["properties"]
    assert all(key.startswith(NOTE) for key in notes)
    texts = [*(one["userMetadata"] for one in versions), *notes.values()]
    for text in texts:
        label = Label.of_text(text)
        assert label is not None
        assert label.entry is not None
        assert (label.entry.name.query, label.members in (1, 2), len(label.digest)) == (SHORT, True, 32)
        assert label.to_text() == text, CHANGED.format(version=NEWEST)
    staged = [text for one in said["iceberg"]["summaries"] for text in one.values()]
    assert set(notes.values()) == set(staged)
    assert len(said["iceberg"]["branches"]) == 4


# --- all of them -----------------------------------------------------------------------------------------------------


@EACH_VERSION
@pytest.mark.parametrize("name", STATES)
def test_every_name_is_parsed_and_belongs_to_a_run_of_the_log(version: str, name: str, tmp_path: Path) -> None:
    known = frozenset(tokens(version, name, tmp_path))
    found = transaction_names(version, name)
    assert len(found) > 30
    for text, prefix in found:
        parsed = TransactionName.parse(text)
        assert parsed is not None, text
        assert str(parsed) == text, CHANGED.format(version=version)
        assert parsed.belongs_to(prefix or parsed.prefix, SHORT, known), text
        assert not parsed.belongs_to(f"{parsed.prefix}.eu", SHORT, known)
    for text in servers(version, name)["kafka"]:
        lane = TransactionalId.parse(text)
        assert lane is not None
        assert lane.belongs_to("shop.eu", SHORT, known)
        assert str(lane) == text, CHANGED.format(version=version)


@EACH_VERSION
def test_staging_tables_of_postgres_are_those_of_the_markers(version: str) -> None:
    said = servers(version, UNDECIDED)["postgres"]
    there = {(schema, table) for schema, table, *_ in said["tables"] if table != "sparkonce_commits"}
    names = {
        (schema, TransactionName.parse(row[0]))
        for schema, rows in said["markers"].items()
        for row in rows
        if row[4] == "staged"
    }
    assert {(schema, staging_table(name)) for schema, name in names if name is not None} == there
    assert len(there) == 4


@EACH_VERSION
def test_the_sinks_own_tables_have_the_columns_that_are_written(version: str) -> None:
    """They were made once, by whichever version came first."""
    said = servers(version, DECIDED)
    columns = [
        f"{column} {'timestamptz' if kind.startswith('timestamp') else kind}"
        for schema, table, column, kind in said["postgres"]["tables"]
        if (schema, table) == ("public", "sparkonce_commits")
    ]
    made = create_commits("public").as_string(None)
    written = made[made.index("(") + 1 : made.index(");")].replace(" PRIMARY KEY", "").replace(" NOT NULL", "")
    assert written.split(", ") == columns, CHANGED.format(version=version)
    for name, made in mysql_markers.TABLES.items():
        assert mysql_columns(made) == mysql_columns(said["mysql"]["created"][name]), CHANGED.format(version=version)


def mysql_columns(made: str) -> list[tuple[str, str]]:
    """Names and types, however a CREATE TABLE writes them."""
    plain = re.sub(r"\b((?:big)?int)\(\d+\)", r"\1", made.replace("`", ""))
    found = re.findall(r"(\w+) (\w+(?:\(\d+\))?(?: unsigned)?) NOT NULL", plain, re.IGNORECASE)
    assert len(found) > 1
    return [(name, kind.lower()) for name, kind in found]


# --- what servers remember -------------------------------------------------------------------------------------------


def of_kafka(version: str, view: LogView) -> Sequence[Trace]:
    said = servers(version, FINISHED)["kafka"]

    def survey(states: Sequence[str], begins: str, **_: float) -> tuple[list[Description], None]:
        found = [
            Description(Transaction(name, one["producer_id"], one["epoch"]), one["state"], 900_000, 0)
            for name, one in said.items()
            if one["state"] in states and name.startswith(begins)
        ]
        return found, None

    return kafka_committer(survey=survey).list_traces(SHORT, facts(view, "kafka"))


def of_postgres(version: str, view: LogView, sink: str) -> Sequence[Trace]:
    known = facts(view, sink)
    rows = servers(version, FINISHED)["postgres"]["markers"][known["commits"]]
    found = [(row[0], row[5]) for row in rows if (row[1], row[4]) == (known["prefix"], "committed")]
    connection: Any = SimpleNamespace(execute=lambda _: SimpleNamespace(fetchall=lambda: found))
    return read_traces(connection, known["prefix"], SHORT, Location.of(known))


def of_mysql(version: str, view: LogView, sink: str) -> Sequence[Trace]:
    known = facts(view, sink)
    rows = [
        tuple(one.encode() if isinstance(one, str) else one for one in row)
        for row in servers(version, FINISHED)["mysql"]["markers"]
        if row[0] == known["prefix"]
    ]
    link: Any = SimpleNamespace(rows=lambda *_: rows)
    found = mysql_markers.of_query(link, known["prefix"], SHORT, known["server"])
    return [
        Trace(token=one.name.token, committed=tuple(sorted(one.fields().items())), batch=one.name.batch)
        for one in found
    ]


def of_redis(version: str, view: LogView, sink: str) -> Sequence[Trace]:
    (ledger,) = servers(version, FINISHED)["redis"][sink]["ledgers"].values()
    flat = [text.encode() for pair in ledger.items() for text in pair]
    place = SimpleNamespace(cluster=sink == "redis.cluster")
    nodes: Any = SimpleNamespace(endpoint=place, ask=lambda _: [b"0", flat])
    committer = RedisCommitter(nodes, sink, staging_ttl_s=60, ledger_ttl_s=60)
    return committer.list_traces(SHORT, facts(view, sink))


def of_s3(version: str, view: LogView) -> Sequence[Trace]:
    manifests = {key.removeprefix("out/"): text for key, text in servers(version, FINISHED)["s3"]["manifests"].items()}
    store: Any = SimpleNamespace(
        list_names=lambda folder: [path.removeprefix(f"{folder}/") for path in manifests if path.startswith(folder)],
        get=lambda path: manifests[path].encode(),
        location="s3://golden/out",
    )
    return FilesCommitter(store, "files.s3", manifest=True).list_traces(SHORT, facts(view, "files.s3"))


def of_table(version: str, view: LogView, sink: str) -> Sequence[Trace]:
    said = servers(version, FINISHED)
    versions = [one["userMetadata"] for one in said["delta"]]
    texts = versions if sink == "delta" else said["iceberg"]["properties"].values()
    table: Any = SimpleNamespace(labels=lambda: [Label.of_text(text) for text in texts])
    folder = DiskFolder(Path("nowhere"), Ledger(LocalFiles(Path("nowhere"))))
    return TableCommitter(folder, sink, sink, table).list_traces(SHORT, facts(view, sink))


SERVED = {
    "kafka": lambda version, view, _: of_kafka(version, view),
    **dict.fromkeys(("postgres.two_phase", "postgres.staged", "postgres.upsert"), of_postgres),
    **dict.fromkeys(("mysql.two_phase", "mysql.staged", "mysql.upsert"), of_mysql),
    **dict.fromkeys(("redis", "redis.cluster"), of_redis),
    "files.s3": lambda version, view, _: of_s3(version, view),
    **dict.fromkeys(("delta", "iceberg"), of_table),
}


@EACH_VERSION
@pytest.mark.parametrize("sink", SERVED)
def test_what_a_server_remembers_is_in_the_log_of_then_word_for_word(version: str, sink: str, tmp_path: Path) -> None:
    view = log(version, FINISHED, tmp_path)
    traces = SERVED[sink](version, view, sink)
    assert not_in_log(view, traces) == ""
    newest = view.decisions[-1]
    remembered = {trace.committed for trace in traces}
    there = [handle.transaction for handle in newest.handles if handle.sink == sink]
    # Rows that are written as one, for all slots of a batch, are remembered by the first slot's name.
    firsts = there[:1] if sink in ("delta", "iceberg") else there
    assert firsts
    assert set(firsts) <= remembered, "a restored copy would not be noticed"
    assert {trace.token for trace in traces} <= {run.token for run in view.runs}
    without = LogView(runs=view.runs, decisions=view.decisions[:-1], end=newest.position)
    assert "no decision in it names" in not_in_log(without, traces)


@EACH_VERSION
def test_names_of_other_runs_are_left_alone(version: str, tmp_path: Path) -> None:
    """A sweep of the runs that a log knows reaches their transactions, and those of nobody else."""
    view = log(version, UNDECIDED, tmp_path)
    said = servers(version, UNDECIDED)["kafka"]
    described = [
        Description(Transaction(name, one["producer_id"], one["epoch"]), one["state"], 900_000, 0)
        for name, one in said.items()
    ]
    committer = kafka_committer(
        list_transactions=lambda states, begins, *, deadline_s: [
            one.transaction.transactional_id
            for one in described
            if one.state in states  # more than was asked for
        ],
        describe_transactions=lambda own, *, deadline_s: [
            one for one in described if one.transaction.transactional_id in {each.transactional_id for each in own}
        ],
    )
    killed, before = view.runs[-1], view.runs[:-1]
    known = facts(view, "kafka")
    left = committer.list_lingering([Owner(query=SHORT, token=killed.token, facts=known)])
    assert len(left) == 2
    assert committer.list_lingering([Owner(query=SHORT, token=one.token, facts=known) for one in before]) == []
    assert committer.list_lingering([Owner(query="0" * 12, token=killed.token, facts=known)]) == []
