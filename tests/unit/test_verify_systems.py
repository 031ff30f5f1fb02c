from __future__ import annotations

import io
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sparkonce.errors import ConfigurationError
from sparkonce_lab.history import OBSERVED
from sparkonce_lab.kafka import Transaction
from sparkonce_lab.systems.base import holds_credentials, without_credentials
from sparkonce_lab.systems.delta import DeltaSystem
from sparkonce_lab.systems.kafka import KafkaSystem
from sparkonce_lab.systems.mysql import MySQLSystem
from sparkonce_lab.systems.names import SYSTEMS, parse
from sparkonce_lab.systems.observed import newest_in, of_csv, of_parquet, of_texts
from sparkonce_lab.systems.postgres import PostgresSystem
from sparkonce_lab.systems.redis import times_applied

STRANGE = ("strange", -1, -1, -1, -1, -1)


def rows(table: pa.Table) -> list[tuple[object, ...]]:
    assert table.schema == OBSERVED
    return [tuple(row.values()) for row in table.to_pylist()]


def test_texts_and_csv_are_rows_with_their_places():
    found = of_texts([b"row,1,2,-3,1,7", b"sum,1,1700000000000,30,4,8"], [0, 3], [11, 12])
    assert rows(found) == [("row", 1, 2, -3, 1, 7, 0, 11), ("sum", 1, 1_700_000_000_000, 30, 4, 8, 3, 12)]

    assert rows(of_texts([])) == rows(of_csv([])) == []

    assert rows(of_csv([b'"row",1,2,', b"3,1,7\n,,2,3,1,7\n"])) == [
        ("row", 1, 2, 3, 1, 7, -1, -1),
        (None, None, 2, 3, 1, 7, -1, -1),
    ]


@pytest.mark.parametrize(
    "text", [None, b"", b"row,1,2,3,1", b"row,1,2,3,1,7,8", b"row,1,2,x,1,7", b"row,1,2,3,1,7\nrow,1,3,3,1,7", b"\xff"]
)
def test_what_is_no_row_is_strange_and_stays_in_its_place(text):
    found = rows(of_texts([b"row,1,2,3,1,7", text, b"row,1,4,3,1,7"], [0, 0, 0], [1, 2, 3]))
    assert found == [("row", 1, 2, 3, 1, 7, 0, 1), (*STRANGE, 0, 2), ("row", 1, 4, 3, 1, 7, 0, 3)]


def test_a_file_has_rows_in_whatever_order_of_columns(tmp_path):
    columns = {"batch": [7, 9], "rows": [1, 1], "amount": [3, 3], "number": [2, 3], "key": [1, 1], "kind": ["row"] * 2}
    pq.write_table(pa.table(columns), tmp_path / "file")
    assert rows(of_parquet(tmp_path / "file")) == [("row", 1, 2, 3, 1, 7, -1, -1), ("row", 1, 3, 3, 1, 9, -1, -1)]
    assert newest_in(tmp_path / "file") == 9

    other = io.BytesIO()
    pq.write_table(pa.table({"batch": pa.array([], pa.int64())}), other)
    assert newest_in(other) == -1
    for content in (other, io.BytesIO(b"half a file")):
        assert rows(of_parquet(content)) == [(*STRANGE, -1, -1)]


@pytest.mark.parametrize(
    ("count", "times"),
    [(b"4", [b"sum,1,0,30,4,8"]), (b"8", [b"sum,1,0,30,4,8"] * 2), (b"6", [None]), (b"0", [None]), (b"x", [None])],
)
def test_a_key_says_how_often_its_row_was_applied(count, times):
    assert times_applied(b"sum,1,0,30,4,8", count) == times


@pytest.mark.parametrize(
    "text",
    [
        *("kafka=broker:9092", "postgres=host=db dbname=shop user=me", "files=/data/out", "mysql=host=db user=me"),
        *("redis=redis://cache:6379/1", "s3=s3://bucket/prefix", "delta=/data/tables"),
    ],
)
def test_systems_are_known_by_name_and_place(text):
    name = text.partition("=")[0]
    for given in (name, text):
        system = parse(given)
        assert type(system) is SYSTEMS[name]
        assert system.name == name


@pytest.mark.parametrize("text", ["", "oracle", "Kafka", "files=", "postgres= ", "kafka:9092"])
def test_what_is_no_system_is_refused(text):
    with pytest.raises(ConfigurationError, match="kafka=broker:9092"):
        parse(text)


@pytest.mark.parametrize(
    "text",
    [
        "postgre=host=db password=secret",
        "postgres://u:secret@h/db",
        "postgres://u:secret@h/db?sslmode=disable",
        "redis=rediss://u:secret@h",
        "redis=redis://u:secret@h:port",
    ],
)
def test_a_password_is_not_repeated(text):
    with pytest.raises(ConfigurationError) as refused:
        parse(text)
    assert "secret" not in str(refused.value)
    assert text[:5] in str(refused.value)


@pytest.mark.parametrize(
    ("place", "shown"),
    [
        ("host=db password=secret user=me", "host=db password=*** user=me"),
        (r"host=db password = 'se \' cret' user=me", "host=db password = *** user=me"),
        ("sslpassword=secret", "sslpassword=***"),
        ("postgresql://me:secret@db:5432/shop", "postgresql://***@db:5432/shop"),
        ("redis://:se@cret@cache:6379/0", "redis://***@cache:6379/0"),
        ("postgresql://db/shop?user=me&password=secret&x=y", "postgresql://db/shop?user=me&password=***&x=y"),
        ("password=ab&cd user=me", "password=*** user=me"),
        ('password="a b" user=me', "password=*** user=me"),
        (r"password=a\ b user=me", "password=*** user=me"),
        ("redis://:12/pw@cache:6379", "redis://***@cache:6379"),
        ("/data/out", "/data/out"),
        ("broker:9092", "broker:9092"),
    ],
)
def test_a_place_is_shown_without_credentials(place, shown):
    assert without_credentials(place) == shown
    assert holds_credentials(place) == (shown != place)


def test_only_its_own_transactions_are_asked_about(monkeypatch):
    listed: list[Any] = []
    described: list[str] = []

    def describe(_: Any, names: list[str], **__: Any) -> dict[str, Any]:
        described.extend(names)
        return {name: Transaction(name, "Ongoing", 1, 0, 1, 0, ()) for name in names}

    monkeypatch.setattr("sparkonce_lab.kafka._ask", lambda *_: {1: listed})
    monkeypatch.setattr("sparkonce_lab.kafka.describe_transactions", describe)
    system = KafkaSystem("b:1")
    prefix = system.sink_settings()["prefix"]
    names = [f"{prefix}.0.1", f"{prefix}-other.0.1", "the-users-own"]
    listed += [SimpleNamespace(transactional_id=name) for name in names]
    assert system.left_open() == [f"{prefix}.0.1 Ongoing"]
    assert described == [f"{prefix}.0.1"]


@pytest.mark.parametrize("make", [PostgresSystem, MySQLSystem])
def test_of_those_who_ask_at_once_one_connects(make, monkeypatch):
    """A reader's thread and a fault injector may both connect.

    One of the two connections is kept, and the other dropped.
    """
    system, both = make(), threading.Barrier(2)

    def connect() -> None:
        with suppress(threading.BrokenBarrierError):
            both.wait(0.2)
            pytest.fail("both connect")
        raise ConnectionError

    monkeypatch.setattr(system, "connect", connect)
    with ThreadPoolExecutor(2) as threads:
        asked = [threads.submit(system.ask, "SELECT 1") for _ in range(2)]
        assert [type(one.exception()) for one in asked] == [ConnectionError, ConnectionError]


def test_a_delta_table_is_read_by_its_log(tmp_path):
    """Files that a later version removes are no longer read, and files that belong to no version are never read."""
    system = DeltaSystem(str(tmp_path))
    system.start(tmp_path / "unused")
    system.place()
    root, waiting = system.root, system.waiting
    assert (len(system.read()), system.newest(), system.left_open()) == (0, -1, [])
    rows = {"kind": ["a"], "key": [1], "number": [1], "amount": [1], "rows": [1]}
    for batch in range(3):
        pq.write_table(pa.table({**rows, "batch": [batch]}), root / f"{batch} a.parquet")
    versions = [[{"add": {"path": "0%20a.parquet"}}, {"add": {"path": "1%20a.parquet"}}]]
    versions += [[{"commitInfo": {"userMetadata": "noted"}}, {"remove": {"path": "1%20a.parquet"}}]]
    for number, actions in enumerate(versions, 1):
        (root / "_delta_log" / f"{number:020}.json").write_text("\n".join(map(json.dumps, actions)))
        assert system.newest() == {1: 1, 2: 0}[number]
    assert system.read()["batch"].to_pylist() == [0]
    (waiting / "delta" / "prepared").mkdir(parents=True)
    (waiting / "delta" / "prepared" / "a slot").touch()
    assert system.left_open() == ["a slot"]
    system.stop()
    assert list(tmp_path.iterdir()) == []
