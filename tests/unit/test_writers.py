from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from sparkonce import WriteAheadSink
from sparkonce.errors import PrepareError, SchemaError
from sparkonce.protocol.handles import Outcome
from sparkonce.protocol.ownership import Token, TransactionName
from sparkonce.sink import Owner, WriterContext
from sparkonce.sinks.files.local import LocalStore
from sparkonce.sinks.files.store import FileState
from sparkonce.sinks.kafka.writer import KafkaWriter, WriterLimits
from sparkonce.sinks.sql.dialect import Location
from sparkonce.sinks.sql.postgres.encoding import ServerType, encode_rows, encoder
from sparkonce.sinks.sql.postgres.finishing import MarkerState, verdict
from sparkonce.sinks.sql.postgres.writer import CopyRows
from sparkonce.sinks.write_ahead.folder import DiskFolder, RowsState
from sparkonce.sinks.write_ahead.ledger import Ledger
from sparkonce.sinks.write_ahead.rows import read
from sparkonce.sinks.write_ahead.writer import WriteAheadWriter
from sparkonce.storage.local import LocalFiles
from sparkonce.write_ahead import Applies

NAME = TransactionName(prefix="p", query="0" * 12, token=Token(0, "0" * 8), batch=1, slot=0, copy="a" * 12)


def test_kafka_has_all_rows_in_order_before_they_are_prepared():
    class Producer:
        """Stands in for librdkafka's producer. Produced rows are in flight until a flush."""

        def __init__(self) -> None:
            self.in_flight: list[bytes] = []
            self.arrived: list[bytes] = []
            self.state = ""
            self.transactional_id, self.producer_id, self.epoch, self.producer = "id", 1, 0, self
            self.reports = SimpleNamespace(fatal="", refused=0, away=False)

        def __len__(self) -> int:
            return len(self.in_flight)

        def produce(self, _topic: str, value: bytes, *_: object) -> None:
            self.in_flight.append(value)

        def flush(self, _: float) -> None:
            self.arrived += self.in_flight
            self.in_flight.clear()

        def acknowledged(self, _: int) -> int:
            return len(self.arrived)

        def abort_reason(self) -> str:
            return self.state

        def poll(self, *_: object) -> None:
            """Delivers nothing."""

        begin_transaction = begin_task = poll

    producer, lease = Producer(), Future[Any]()
    pool: Any = SimpleNamespace(take=lambda _: lease, wait=lambda *_: producer)
    writer = KafkaWriter(pool, batch=1, topic="t", transactional=True, limits=WriterLimits.of({}, 60.0))
    writer.begin()
    for values in ([b"a", b"b"], [b"c"]):
        writer.write(pa.record_batch({"value": values}))
    assert writer.prepare() == {"transactional_id": "id", "producer_id": 1, "epoch": 0}
    assert producer.arrived == [b"a", b"b", b"c"]

    producer.state = "it timed out"
    with pytest.raises(PrepareError, match="Kafka aborted the transaction: it timed out"):
        writer.prepare()


def test_postgres_gets_each_value_as_it_is():
    rows = pa.record_batch({"number": [-7, 7]})
    sent: list[bytes] = []
    writer: Any = CopyRows.__new__(CopyRows)
    writer._copy, writer._count, writer._is_text_read = (
        SimpleNamespace(write=lambda one: sent.append(bytes(one))),
        0,
        False,
    )
    writer._encoders = [encoder("number", pa.int64(), ServerType(shown="int8", name="int8"))]
    writer._job, writer._connection = SimpleNamespace(limits=SimpleNamespace(slot_s=60.0)), object()
    writer.write(rows)
    assert sent == [bytes(piece) for piece in encode_rows(rows, writer._encoders)]


def test_postgres_has_committed_what_has_a_marker():
    location = Location(server="1", database="d", schema="public")
    found = MarkerState(state="committed", is_prepared=False, location=location, newest=1, row_security=False)
    answer = verdict(found, NAME, location)
    assert answer.outcome is Outcome.ALREADY_COMMITTED


def test_rows_that_wait_are_all_in_their_file(tmp_path):
    folder = DiskFolder(tmp_path / "folder", Ledger(LocalFiles(tmp_path / "ledger")))
    folder.make()
    owner = Owner(query="0" * 12, token=Token(0, "0" * 8), facts={"identity": folder.identity()})
    writer = WriteAheadWriter(folder, "p", WriterContext(owner=owner, batch=0, slot=0, copy="0"))
    writer.begin()
    for values in ([1, 2], [3]):
        writer.write(pa.record_batch({"number": values}))
    writer.prepare()
    with folder.open(writer._name, RowsState.PREPARED) as file:
        assert [number for rows in read([file], []) for number in rows.column(0).to_pylist()] == [1, 2, 3]


def test_a_type_that_waiting_rows_cannot_have_is_refused_by_column():
    """Parquet has no struct without fields: its writer would find that out in the first batch, without the name."""
    sink = WriteAheadSink(print, applies=Applies.IDEMPOTENT)
    with pytest.raises(SchemaError, match="Column 'nothing' is struct<>, and Parquet has no such type"):
        sink.columns(pa.schema([("number", pa.int64()), ("nothing", pa.struct([]))]))
    assert list(sink.columns(pa.schema([("number", pa.int64())]))) == ["number"]


def test_a_file_is_staged_then_published_then_gone(tmp_path):
    store = LocalStore(tmp_path)
    store.check()
    path = "part.jsonl"
    staged = store.stage(NAME, path)
    staged.stream.write(b"{}\n")
    fields = [{**staged.seal(), "rows": 1}]
    assert store.states(fields) == [FileState.STAGED]
    store.publish(fields)
    assert store.states(fields) == [FileState.PUBLISHED]
    (tmp_path / path).unlink()
    assert store.states(fields) == [FileState.GONE]
