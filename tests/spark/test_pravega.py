"""The Pravega sink, by the conformance suite and against what goes wrong, on a real server."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from eventually import eventually
from pravega_witness import SCOPE, PravegaWitness
from shared_servers import pravega_server
from simulation.sheets import TRANSACTIONS, transaction_answers
from spark.harness import new_name
from spark.in_process import SPARK, crash_at, ended
from spark.table_job import QUERY, KilledError, TableJob
from sparkonce import ExactlyOnce, Pravega, PravegaSink
from sparkonce.errors import ConfigurationError, PreflightError, SchemaError, UnknownOutcomeError
from sparkonce.protocol.handles import Handle, transaction_fields
from sparkonce.protocol.outcomes import COMMITTED, Outcome
from sparkonce.protocol.state import Phase
from sparkonce.sink import WriterContext
from sparkonce.sinks.write_ahead.folder import WriteAheadFolder
from sparkonce.spark.pravega.client import PravegaStream
from sparkonce.spark.pravega.notes import TransactionNotes
from sparkonce.testing.conformance import SinkConformance
from tryout.bulk import make_orders

pytestmark = SPARK
ARROW = pa.schema([("value", pa.string()), ("key", pa.string())])


@pytest.fixture
def witness(spark: SparkSession) -> PravegaWitness:
    return PravegaWitness(spark._jvm, pravega_server().url)


@pytest.mark.slow
class TestPravega(SinkConformance):
    visible_within_s = 0.0
    loses_whole_batches = True

    @pytest.fixture(autouse=True)
    def _stream(self, witness: PravegaWitness, tmp_path: Path) -> None:
        self.root, self.witness, self.stream = tmp_path, witness, new_name("s")
        witness.create(self.stream)

    def make_sink(self) -> PravegaSink:
        return PravegaSink(pravega_server().url, scope=SCOPE, stream=self.stream, folder=self.root / "rows")

    def make_second_sink(self) -> PravegaSink:
        url, rows = pravega_server().url, self.root / "rows"
        return PravegaSink(url, scope=SCOPE, stream=self.stream, folder=rows, name="beside")

    def make_rows(self, start: int, count: int) -> pa.RecordBatch:
        return pa.record_batch({"value": [str(one) for one in range(start, start + count)]})

    def visible(self) -> Sequence[int]:
        return [int(event) for event in self.witness.events(self.stream)]

    def expire(self, handle: Handle) -> bool:
        (self.root / "rows" / "pravega" / "prepared" / str(handle["name"])).unlink()
        return True

    def restart_server(self) -> bool:
        return True  # this server keeps its data in memory

    test_another_process_commits = None  # it would have to start its own Spark


class PravegaJob(TableJob):
    """A stream of its own, and a run that writes to it."""

    def __init__(self, spark: SparkSession, folder: Path, witness: PravegaWitness) -> None:
        self.witness, self.stream = witness, new_name("s")
        witness.create(self.stream)
        super().__init__(spark, folder)

    def sink(self) -> PravegaSink:  # type: ignore[override]
        return PravegaSink(self.cluster(), scope=SCOPE, stream=self.stream, folder=self.folder / "rows")

    def cluster(self) -> Pravega:
        return Pravega(self.witness.controller)

    def numbers(self) -> list[int]:
        return sorted(int(event) for event in self.witness.events(self.stream))

    def prepare(self, batch: int = 0, slot: int = 0, schema: pa.Schema = ARROW, rows: int = 1) -> Handle:
        sink = self.sink()
        writer = sink.writer(WriterContext(owner=self.owner(), batch=batch, slot=slot, copy="1.1.0"))
        writer.begin()
        values = [str(100 * batch + 10 * slot + row) for row in range(rows)]
        writer.write(pa.record_batch({"value": values, "key": [f"k{slot}"] * rows}, schema=schema))
        fields = transaction_fields(writer.prepare())
        writer.close()
        return Handle(sink=sink.name, slot=slot, rows=rows, transaction=fields)

    def notes(self) -> list[str]:
        ledger = self.sink().folder().ledger.files
        return sorted(ledger.names("transactions"))

    def orders(self, listener: Callable[[Phase, int], None] | None = None) -> str:
        """Writes the orders that there are, in batches of two files. What stopped it, or nothing."""
        rows = self.spark.readStream.schema("id bigint").option("maxFilesPerTrigger", 2)
        once = ExactlyOnce(self.sink(), checkpoint=str(self.folder / "query"), listener=listener, display=False)
        orders = rows.json(str(self.folder / "orders")).selectExpr("cast(id as string) as value")
        try:
            ended(once.start(orders, trigger={"availableNow": True}))
        except StreamingQueryException as error:
            return str(error)
        return ""


@pytest.fixture
def job(spark: SparkSession, tmp_path: Path, witness: PravegaWitness) -> PravegaJob:
    return PravegaJob(spark, tmp_path, witness)


def test_the_server_answers_as_the_simulation_has_it(spark: SparkSession, job: PravegaJob) -> None:
    stream = PravegaStream(spark, job.cluster(), SCOPE, job.stream)
    with stream.writer() as writer:
        assert transaction_answers(writer, lambda number: stream.settled(writer, number)) == list(TRANSACTIONS)
        assert stream.settled(writer, str(uuid.uuid4())) is None


def test_a_batch_is_one_transaction_and_keeps_the_order_of_a_key(job: PravegaJob) -> None:
    handles = [job.prepare(slot=slot, rows=9) for slot in range(3)]
    assert job.commit(*handles) == [Outcome.COMMITTED] * 3
    assert len(job.notes()) == 1
    for segment in job.witness.segments(job.stream):
        by_key = {slot: [event for event in segment if event.zfill(2)[0] == str(slot)] for slot in range(3)}
        assert all(events == sorted(events) for events in by_key.values())
    assert job.numbers() == [10 * slot + row for slot in range(3) for row in range(9)]


@pytest.mark.parametrize(
    ("kind", "method"),
    [
        (TransactionNotes, "put"),
        (PravegaStream, "write"),
        (PravegaStream, "settled"),
        (WriteAheadFolder, "note_done"),
    ],
)
def test_a_driver_that_is_killed_at_each_step(job: PravegaJob, kind: type, method: str) -> None:
    handles = [job.prepare(slot=slot) for slot in range(2)]
    job.commit_killed(kind, method, *handles)
    assert set(job.commit(*handles)) <= COMMITTED
    assert job.commit(*handles) == [Outcome.ALREADY_COMMITTED] * 2
    assert job.numbers() == [0, 10]


def test_a_driver_that_is_killed_when_all_is_written(job: PravegaJob, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its transaction is open, flushed and whole: it is aborted, and the rows come under another."""
    write = PravegaStream.write

    def killed_after(self: PravegaStream, *given: Any) -> int:
        write(self, *given)
        monkeypatch.undo()
        raise KilledError

    handle = job.prepare()
    monkeypatch.setattr(PravegaStream, "write", killed_after)
    with pytest.raises(KilledError):
        job.commit(handle)
    assert job.numbers() == []
    assert job.commit(handle) == [Outcome.COMMITTED]
    assert (job.numbers(), len(job.notes())) == ([0], 2)


def test_a_transaction_that_another_one_aborts_while_it_is_written(
    job: PravegaJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A paused driver: another one writes its rows. It fails to commit its own, and finds those of the other."""
    monkeypatch.setattr("sparkonce.sinks.write_ahead.application._lock", lambda _: True)
    handle, other = job.prepare(), job.run_of_its_own()
    write = PravegaStream.write

    def overtaken(self: PravegaStream, *given: Any) -> int:
        monkeypatch.setattr(PravegaStream, "write", write)
        written = write(self, *given)
        assert [one.outcome for one in other.commit([handle])] == [Outcome.COMMITTED]
        return written

    paused = job.run_of_its_own()
    monkeypatch.setattr(PravegaStream, "write", overtaken)
    assert [one.outcome for one in paused.commit([handle])] == [Outcome.RETRY]
    assert [one.outcome for one in paused.commit([handle])] == [Outcome.ALREADY_COMMITTED]
    assert job.numbers() == [0]


@pytest.mark.slow
def test_two_drivers_at_once_without_locks(job: PravegaJob, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sparkonce.sinks.write_ahead.application._lock", lambda _: True)
    handles = [job.prepare(slot=slot) for slot in range(2)]
    committers = [job.run_of_its_own() for _ in range(2)]
    for _ in range(8):
        with ThreadPoolExecutor(2) as pool:
            answers = list(pool.map(lambda one: one.commit(handles), committers))
        assert {one.outcome for some in answers for one in some} <= COMMITTED | {Outcome.RETRY}, answers
        if {one.outcome for some in answers for one in some} <= COMMITTED:
            break
    assert {one.outcome for some in answers for one in some} <= COMMITTED, answers
    assert job.numbers() == [0, 10]


def test_a_transaction_that_was_forgotten_stops_the_query(job: PravegaJob) -> None:
    """Pravega forgets it after a day. One that never was is as unknown to it."""
    handle = job.prepare()
    job.commit_unnoticed(handle)
    (note,) = job.notes()
    ledger = job.sink().folder().ledger.files
    _, _, birth = (ledger.read(f"transactions/{note}") or b"").decode().partition(" ")
    ledger.replace(f"transactions/{note}", f"{uuid.uuid4()} {birth}".encode())
    committer = job.run_of_its_own()
    (answer,) = committer.commit([handle])
    assert answer.outcome is Outcome.UNKNOWN
    assert "has forgotten" in answer.reason
    with pytest.raises(UnknownOutcomeError):
        committer.commit([handle])
    assert job.numbers() == [0]


def test_a_stream_that_was_made_anew_is_no_witness(job: PravegaJob) -> None:
    """Another cluster counts its transactions from the beginning: there the noted one may be another one's."""
    handle = job.prepare()
    job.commit_unnoticed(handle)
    job.witness.delete(job.stream)
    job.witness.create(job.stream)
    (answer,) = job.run_of_its_own().commit([handle])
    assert answer.outcome is Outcome.UNKNOWN
    assert "made anew" in answer.reason
    assert job.numbers() == []


@pytest.mark.slow
def test_a_server_that_does_not_answer(job: PravegaJob, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is known until it goes on, and nothing is done twice then."""
    monkeypatch.setattr("sparkonce.spark.tables.committer.WAIT_S", 1.0)
    monkeypatch.setattr("sparkonce.spark.pravega.sink.WAIT_S", 1.0)
    handle, committer = job.prepare(), job.run_of_its_own()
    server = pravega_server()
    server.pause()
    try:
        assert committer.commit([handle])[0].outcome is Outcome.RETRY
    finally:
        server.resume()
    monkeypatch.undo()
    while (outcome := committer.commit([handle])[0].outcome) is Outcome.RETRY:
        pass
    assert outcome in COMMITTED
    assert job.numbers() == [0]


@pytest.mark.slow
def test_a_lease_that_runs_out(job: PravegaJob, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client no longer renews it, as in a process that stands still: Pravega aborts the transaction by itself."""
    monkeypatch.setattr("sparkonce.spark.pravega.client.LEASE_MS", 10_000)
    write, open_writer, opened = PravegaStream.write, PravegaStream.writer, []

    @contextmanager
    def writer(self: PravegaStream) -> Iterator[Any]:
        with open_writer(self) as made:
            opened.append(made)
            yield made

    def stands_still(self: PravegaStream, transaction: Any, urls: Sequence[str]) -> int:
        monkeypatch.setattr(PravegaStream, "write", write)
        written = write(self, transaction, urls)
        opened[-1].close()
        begun = str(transaction.getTxnId().toString())
        eventually(lambda: job.witness.status(job.stream, begun) == "ABORTED", "the transaction is aborted")
        return written

    monkeypatch.setattr(PravegaStream, "writer", writer)
    handle, committer = job.prepare(), job.run_of_its_own()
    monkeypatch.setattr(PravegaStream, "write", stands_still)
    assert committer.commit([handle])[0].outcome is Outcome.RETRY
    assert committer.commit([handle])[0].outcome is Outcome.COMMITTED
    assert (job.numbers(), len(job.notes())) == ([0], 2)


def test_a_query_that_crashes(job: PravegaJob) -> None:
    sent = make_orders(job.folder / "orders", files=4)
    assert "CrashError" in job.orders(crash_at(Phase.FINISHING, 1))
    assert job.orders() == ""
    assert job.numbers() == sent


@pytest.mark.parametrize(
    ("value", "told"), [("null", "a value is null"), ("repeat('x', 8388608)", "bytes, of 8387584")]
)
def test_a_value_that_no_event_can_be_stops_before_the_decision(job: PravegaJob, value: str, told: str) -> None:
    make_orders(job.folder / "orders", files=1)
    rows = job.spark.readStream.schema("id bigint").json(str(job.folder / "orders"))
    once = ExactlyOnce(job.sink(), checkpoint=str(job.folder / "query"), display=False)
    with pytest.raises(StreamingQueryException, match=told):
        ended(once.start(rows.selectExpr(f"cast({value} as string) as value"), trigger={"availableNow": True}))
    assert job.numbers() == []


def test_the_stream_must_be_there_and_stay(job: PravegaJob) -> None:
    assert job.sink().preflight(QUERY, job.facts) == job.facts
    job.stream = "none"
    with pytest.raises(PreflightError, match="has written to tests/s"):
        job.sink().preflight(QUERY, job.facts)
    with pytest.raises(PreflightError, match="no stream tests/none"):
        job.sink().preflight(QUERY, None)


def test_columns_and_settings() -> None:
    sink = PravegaSink("tcp://host:9090", scope="a", stream="b")
    assert sink.columns(ARROW) == ["value", "key"]
    for schema, told in (
        (pa.schema([("key", pa.string())]), "needs the column 'value'"),
        (ARROW.append(pa.field("more", pa.string())), "'more' is neither"),
        (pa.schema([("value", pa.int64())]), "'value' is a int64"),
    ):
        with pytest.raises(SchemaError, match=told):
            sink.columns(schema)
    with pytest.raises(ConfigurationError, match="does not begin with"):
        PravegaSink("host:9090", scope="a", stream="b")
    assert "transaction.ttl.hours" in " ".join(sink.conditions())
