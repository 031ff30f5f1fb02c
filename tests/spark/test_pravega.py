"""The Pravega sink and source on a real server. The server takes ten seconds to start, so one file tests both."""

from __future__ import annotations

import json
import threading
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from eventually import eventually
from one_run import prepare
from pravega_witness import SCOPE, PravegaWitness
from shared_servers import pravega_server
from simulation.sheets import TRANSACTIONS, transaction_answers
from spark.harness import new_name
from spark.in_process import LIMIT_S, SPARK, ended, stopped
from spark.table_job import QUERY, TableJob, WaitingRows
from sparkonce import ExactlyOnce, FilesSink, Guarantee, explain
from sparkonce.analysis.findings import Role
from sparkonce.errors import ConfigurationError, PreflightError, SchemaError, UnknownOutcomeError
from sparkonce.files import whole_batches
from sparkonce.protocol.handles import COMMITTED, Handle, Outcome
from sparkonce.protocol.state import Phase
from sparkonce.sinks.write_ahead.folder import WriteAheadFolder
from sparkonce_pravega import Pravega, PravegaSink, read_pravega
from sparkonce_pravega.application import TransactionNotes
from sparkonce_pravega.client import PravegaStream
from tryout.bulk import make_orders

pytestmark = SPARK
ARROW = pa.schema([("value", pa.string()), ("key", pa.string())])


@pytest.fixture
def witness(spark) -> PravegaWitness:
    return PravegaWitness(spark._jvm, pravega_server().url)


@pytest.mark.slow
class TestPravega(WaitingRows):
    @pytest.fixture(autouse=True)
    def _stream(self, witness, tmp_path) -> None:
        self.root, self.witness, self.stream = tmp_path, witness, new_name("s")
        witness.create(self.stream)

    def make_sink(self, **more: Any) -> PravegaSink:
        return PravegaSink(pravega_server().url, scope=SCOPE, stream=self.stream, folder=self.root / "rows", **more)

    def make_rows(self, start: int, count: int) -> pa.RecordBatch:
        return pa.record_batch({"value": [str(one) for one in range(start, start + count)]})

    def visible(self) -> Sequence[int]:
        return [int(event) for event in self.witness.events(self.stream)]


class PravegaJob(TableJob):
    """A new stream, and a run that writes to it."""

    def __init__(self, spark: SparkSession, folder: Path, witness: PravegaWitness) -> None:
        self.witness, self.stream = witness, new_name("s")
        witness.create(self.stream)
        super().__init__(spark, folder)

    def sink(self) -> PravegaSink:
        return PravegaSink(self.cluster(), scope=SCOPE, stream=self.stream, folder=self.folder / "rows")

    def cluster(self) -> Pravega:
        return Pravega(self.witness.controller)

    def numbers(self) -> list[int]:
        return sorted(int(event) for event in self.witness.events(self.stream))

    def prepare(self, batch: int = 0, slot: int = 0, schema: pa.Schema = ARROW, rows: int = 1) -> Handle:
        values = [str(100 * batch + 10 * slot + row) for row in range(rows)]
        given = pa.record_batch({"value": values, "key": [f"k{slot}"] * rows}, schema=schema)
        return prepare(self.sink(), given, run=self.owner(), batch=batch, slot=slot)

    def notes(self) -> list[str]:
        ledger = self.sink().folder().ledger.files
        return sorted(ledger.names("transactions"))

    def of_orders(self, orders: DataFrame) -> DataFrame:
        return orders.selectExpr("cast(number as string) as value")


@pytest.fixture
def job(spark, tmp_path, witness) -> PravegaJob:
    return PravegaJob(spark, tmp_path, witness)


@pytest.mark.slow
def test_the_server_answers_as_the_simulation_has_it(spark, job):
    stream = PravegaStream(spark, job.cluster(), SCOPE, job.stream)
    with stream.writer() as writer:
        assert transaction_answers(writer, lambda number: stream.settled(writer, number)) == list(TRANSACTIONS)
        assert stream.settled(writer, str(uuid.uuid4())) is None


def test_a_batch_is_one_transaction_and_keeps_the_order_of_a_key(job):
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
def test_a_driver_that_is_killed_at_each_step(job, kind, method):
    handles = [job.prepare(slot=slot) for slot in range(2)]
    job.commit_killed(kind, method, *handles)
    assert set(job.commit(*handles)) <= COMMITTED
    assert job.commit(*handles) == [Outcome.ALREADY_COMMITTED] * 2
    assert job.numbers() == [0, 10]


def test_a_transaction_that_was_forgotten_stops_the_query(job):
    """Pravega forgets a transaction after a day. One that never existed is just as unknown."""
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


def test_a_stream_that_was_made_anew_is_no_witness(job):
    """Another cluster counts its transactions from the start, so the noted one may belong to somebody else there."""
    handle = job.prepare()
    job.commit_unnoticed(handle)
    job.witness.delete(job.stream)
    job.witness.create(job.stream)
    (answer,) = job.run_of_its_own().commit([handle])
    assert answer.outcome is Outcome.UNKNOWN
    assert "recreated" in answer.reason
    assert job.numbers() == []


@pytest.mark.slow
def test_a_lease_that_runs_out(job, monkeypatch):
    """The client stops renewing the lease, as in a stalled process, and Pravega aborts the transaction on its own."""
    monkeypatch.setattr("sparkonce_pravega.client.LEASE_MS", 10_000)
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


def test_a_query_that_crashes(job):
    assert job.query_that_crashes(Phase.FINISHING) == job.numbers()


@pytest.mark.parametrize(
    ("value", "told"), [("null", "a value is null"), ("repeat('x', 8388608)", "bytes, of 8387584")]
)
def test_a_value_that_no_event_can_be_stops_before_the_decision(job, value, told):
    make_orders(job.folder / "orders", files=1)
    rows = job.spark.readStream.schema("id bigint").json(str(job.folder / "orders"))
    once = ExactlyOnce(job.sink(), checkpoint=str(job.folder / "query"), display=False)
    with pytest.raises(StreamingQueryException, match=told):
        ended(once.start(rows.selectExpr(f"cast({value} as string) as value"), trigger={"availableNow": True}))
    assert job.numbers() == []


def test_the_stream_must_be_there_and_stay(job):
    assert job.sink().preflight(QUERY, job.facts) == job.facts
    job.stream = "none"
    with pytest.raises(PreflightError, match="has written to tests/s"):
        job.sink().preflight(QUERY, job.facts)
    with pytest.raises(PreflightError, match="no stream tests/none"):
        job.sink().preflight(QUERY, None)


def test_columns_and_settings():
    sink = PravegaSink("tcp://host:9090", scope="a", stream="b")
    assert sink.columns(ARROW) == ["value", "key"]
    for schema, told in (
        (pa.schema([("key", pa.string())]), "needs the column 'value'"),
        (ARROW.append(pa.field("more", pa.string())), "'more' is neither"),
        (pa.schema([("value", pa.int64())]), "'value' is bigint"),
    ):
        with pytest.raises(SchemaError, match=told):
            sink.columns(schema)
    assert "transaction.ttl.hours" in " ".join(sink.conditions())


# --- reading ---------------------------------------------------------------------------------------------------------

EPOCH = 2**32
"""How much is added to a segment's id for each time that the stream was scaled before it."""


Seen = dict[int, list[tuple[int, int, str]]]
"""The segment, the offset and the value of each row, by batch."""


def numbered(first: int, end: int) -> list[str]:
    return [str(number) for number in range(first, end)]


def values(seen: Seen) -> list[int]:
    return sorted(int(value) for rows in seen.values() for _, _, value in rows)


class Reading:
    """A query that keeps the rows of its batches, on one checkpoint and one stream."""

    def __init__(self, spark: SparkSession, folder: Path, **given: Any) -> None:
        self.witness, self.stream = PravegaWitness(spark._jvm, pravega_server().url), new_name("s")
        self.witness.create(self.stream)
        self.checkpoint, self.given = folder / "checkpoint", given
        self._spark = spark

    def rows(self) -> DataFrame:
        return read_pravega(self._spark, pravega_server().url, scope=SCOPE, stream=self.stream, **self.given)

    def write(self, first: int, end: int) -> None:
        self.witness.write(self.stream, numbered(first, end))

    def run(self, *, crash_in: int | None = None, then: Callable[[int], None] = lambda batch: None) -> Seen:
        """Runs until everything is read, or until it crashes in a batch that it has read.

        Calls `then` in each batch.
        """
        seen: Seen = defaultdict(list)

        def take(rows: DataFrame, batch: int) -> None:
            seen[batch] = [(row["segment"], row["offset"], row["value"].decode()) for row in rows.collect()]
            then(batch)
            if batch == crash_in:
                raise KeyError(batch)

        writer = self.rows().writeStream.foreachBatch(take).option("checkpointLocation", str(self.checkpoint))
        query = writer.trigger(availableNow=True).start()
        try:
            if crash_in is None:
                assert query.awaitTermination(int(LIMIT_S))
            else:
                with pytest.raises(StreamingQueryException):
                    query.awaitTermination(int(LIMIT_S))
        finally:
            stopped(query)
        return seen

    def stops(self, **given: Any) -> str:
        """Runs, and returns what stopped it."""
        with pytest.raises(StreamingQueryException) as failed:
            self.run(**given)
        return str(failed.value)

    def end(self, batch: int) -> dict[str, Any]:
        """Returns the position that Spark has stored as the end of a batch."""
        return json.loads((self.checkpoint / "offsets" / str(batch)).read_text().splitlines()[-1])


@pytest.fixture
def reading(spark, tmp_path) -> Reading:
    return Reading(spark, tmp_path)


@pytest.mark.slow
def test_a_crashed_batch_has_the_same_rows_again_and_the_next_one_goes_on(reading):
    reading.given = {"max_bytes_per_batch": 500}
    reading.write(0, 100)
    crashed = reading.run(crash_in=1)
    planned = reading.end(1)
    assert planned["stream"] == f"{SCOPE}/{reading.stream}"
    reading.write(100, 150)
    again = reading.run()
    assert again[1] == crashed[1]
    assert reading.end(1) == planned
    assert values({**crashed, **again}) == list(range(150))
    assert all(len(rows) < 60 for rows in again.values()), "of ten bytes or more each"
    reading.write(150, 160)
    assert values(reading.run()) == list(range(150, 160)), "after a restart without a crash"


@pytest.mark.slow
def test_a_crashed_first_batch_begins_where_it_began(reading):
    reading.write(0, 20)
    reading.given = {"starting": "latest"}
    assert values(reading.run()) == []
    for kept in ("offsets", "commits"):  # as if the process had died before the batch was done
        (reading.checkpoint / kept / ".0.crc").unlink(missing_ok=True)
    (reading.checkpoint / "commits" / "0").unlink()
    end = reading.end(0)
    lines = (reading.checkpoint / "offsets" / "0").read_text().splitlines()
    reading.write(20, 30)
    tail = reading.witness.tail(reading.stream).asImpl().getPositions()
    later = {str(one.getKey().getSegmentId()): int(one.getValue()) for one in tail.entrySet()}
    (reading.checkpoint / "offsets" / "0").write_text("\n".join([*lines[:-1], json.dumps({**end, "cut": later})]))
    reading.write(30, 40)
    again = reading.run()
    assert values({0: again[0]}) == list(range(20, 30)), "latest is another place by now"
    assert values(again) == list(range(20, 40))


@pytest.mark.slow
def test_segments_that_are_split_and_merged(reading):
    """Each event is read once, and the events of a key in order, across all segments that held them."""
    reading.given = {"max_bytes_per_batch": 150}
    reading.write(0, 40)
    first = reading.run()
    reading.write(40, 80)
    reading.witness.scale(reading.stream, [0], {0.0: 0.25, 0.25: 0.5})
    reading.write(80, 120)
    reading.witness.scale(reading.stream, [1, EPOCH + 3], {0.25: 1.0})
    reading.write(120, 160)
    crashed = reading.run(crash_in=max(first) + 1)
    seen = {**first, **crashed, **reading.run()}
    assert values(seen) == list(range(160))
    assert len({segment for rows in seen.values() for segment, _, _ in rows}) > 3
    for key in range(10):
        order = [
            (batch, segment // EPOCH, offset, int(value))
            for batch, rows in seen.items()
            for segment, offset, value in rows
            if value[-1] == str(key)
        ]
        assert [value for *_, value in sorted(order)] == list(range(key, 160, 10))


@pytest.mark.slow
def test_segments_that_are_replaced_by_ones_across_their_borders(reading):
    """Two segments become three, and these become two again, some with far more events than others."""
    reading.given = {"max_bytes_per_batch": 100}

    def write(first: int, end: int) -> None:
        reading.witness.write(reading.stream, numbered(first, end), lambda one: one if int(one) % 4 == 0 else "one")

    write(0, 40)
    reading.witness.scale(reading.stream, [0, 1], {0.0: 0.3, 0.3: 0.6, 0.6: 1.0})
    write(40, 80)
    reading.witness.scale(reading.stream, [EPOCH + 2, EPOCH + 3, EPOCH + 4], {0.0: 0.5, 0.5: 1.0})
    write(80, 120)
    seen = reading.run()
    assert values(seen) == list(range(120))
    assert len({segment for rows in seen.values() for segment, _, _ in rows}) > 5


@pytest.mark.slow
def test_a_sealed_stream_is_read_to_its_end(reading):
    reading.write(0, 30)
    reading.witness.seal(reading.stream)
    assert values(reading.run()) == list(range(30))
    assert values(reading.run()) == []


@pytest.mark.slow
def test_a_start_at_a_given_cut(reading):
    reading.write(0, 10)
    reading.given = {"starting": str(reading.witness.tail(reading.stream).asText())}
    reading.write(10, 20)
    assert values(reading.run()) == list(range(10, 20))


@pytest.mark.slow
def test_events_that_are_gone_stop_the_query_by_name(reading):
    reading.write(0, 20)
    reading.run()
    reading.write(20, 40)
    cut = reading.witness.tail(reading.stream)
    reading.witness.truncate(reading.stream, cut)
    reading.write(40, 60)
    told = reading.stops()
    head = str(cut.asText())
    assert "was truncated before this query has read all" in told
    assert f"accept_lost='{head}'" in told
    reading.given = {"accept_lost": head}
    assert values(reading.run()) == list(range(40, 60))


@pytest.mark.slow
def test_segments_that_are_gone_stop_the_query(reading):
    reading.write(0, 20)
    reading.run(crash_in=0)
    reading.witness.scale(reading.stream, [0, 1], {0.0: 0.3, 0.3: 1.0})
    reading.write(20, 40)
    cut = reading.witness.tail(reading.stream)
    reading.witness.truncate(reading.stream, cut)
    reading.write(40, 60)
    assert "segment 0 from 0 on" in reading.stops(), "the batch that is repeated"
    reading.given = {"accept_lost": str(cut.asText())}
    assert values(reading.run()) == list(range(40, 60))


@pytest.mark.slow
def test_what_follows_segments_that_are_gone_is_read_in_small_batches(reading):
    reading.given = {"max_bytes_per_batch": 100}
    reading.write(0, 20)
    reading.run()
    reading.write(20, 40)
    reading.witness.scale(reading.stream, [0, 1], {0.0: 0.3, 0.3: 1.0})
    reading.witness.scale(reading.stream, [EPOCH + 2, EPOCH + 3], {0.0: 0.6, 0.6: 1.0})
    cut = reading.witness.tail(reading.stream)
    reading.witness.truncate(reading.stream, cut)
    reading.write(40, 80)
    reading.given = {"accept_lost": str(cut.asText()), **reading.given}
    assert values(reading.run()) == list(range(40, 80))


@pytest.mark.slow
def test_a_stream_that_is_made_again_stops_the_query(reading):
    reading.write(0, 20)
    reading.run()
    reading.witness.delete(reading.stream)
    reading.witness.create(reading.stream)
    reading.write(0, 40)
    assert "is not the one that this query has read" in reading.stops()


@pytest.mark.slow
def test_a_stream_of_another_cluster_stops_the_query(reading):
    """The other cluster's segments have the same numbers, but a different creation time."""
    reading.write(0, 20)
    reading.run()
    end = reading.end(0)
    end["made"] = {segment: made - 1000 for segment, made in end["made"].items()}
    kept = reading.checkpoint / "offsets" / "0"
    kept.write_text("\n".join([*kept.read_text().splitlines()[:-1], json.dumps(end)]))
    kept.with_name(".0.crc").unlink(missing_ok=True)
    reading.write(20, 40)
    assert "was made at" in reading.stops()


@pytest.mark.slow
def test_an_outage_while_a_batch_is_planned_ends_no_query_as_if_all_were_read(reading):
    reading.given = {"max_bytes_per_batch": 300, "outage_patience_s": 2}
    reading.write(0, 60)
    try:
        told = reading.stops(then=lambda batch: pravega_server().pause())
    finally:
        pravega_server().resume()
    assert f"Pravega at {pravega_server().url} does not report" in told
    reading.given["outage_patience_s"] = 60
    seen = reading.run()
    assert 0 < len(values(seen)) < 60, "the first batch was done"
    assert values(seen)[-1] == 59


@pytest.mark.slow
def test_an_outage_within_the_patience_is_waited_out(reading):
    # an answer may take a fifth of the time limit
    reading.given = {"max_bytes_per_batch": 300, "outage_patience_s": 15}
    reading.write(0, 60)
    back = threading.Timer(5, pravega_server().resume)

    def away(batch: int) -> None:
        if batch == 0:
            pravega_server().pause()
            back.start()

    try:
        assert values(reading.run(then=away)) == list(range(60))
    finally:
        pravega_server().resume()
        back.join()


def test_a_query_of_ours_reads_it_exactly_once(reading, tmp_path):
    reading.given = {"max_bytes_per_batch": 700}
    reading.write(0, 100)
    for end in (100, 120):
        once = ExactlyOnce(FilesSink(tmp_path / "out"), checkpoint=str(tmp_path / "checkpoint"), display=False)
        values = reading.rows().selectExpr("cast(value as string) as value")
        ended(once.start(values, trigger={"availableNow": True}))
        assert sorted(map(int, written(tmp_path / "out"))) == list(range(end))
        reading.write(100, 120)


def written(folder: Path) -> list[str]:
    import pyarrow.parquet as pq

    return [one for path in whole_batches(folder) for one in pq.read_table(path).column("value").to_pylist()]


def test_explain_knows_the_source_and_tells_no_password(spark, tmp_path):
    cluster = Pravega("tcp://host:9090", user="etl", password="hush-hush")  # noqa: S106 - of nobody
    rows = read_pravega(spark, cluster, scope="shop", stream="orders")
    (source,) = [part for part in explain(rows.select("value"), FilesSink(tmp_path)).parts if part.role is Role.SOURCE]
    assert (source.name, source.level) == ("pravega_stream: shop/orders", Guarantee.EXACTLY_ONCE)
    assert "hush-hush" not in rows._jdf.queryExecution().toString()


def test_a_stream_that_is_missing_refuses_the_start(reading, tmp_path):
    reading.stream = "no-such"
    once = ExactlyOnce(FilesSink(tmp_path / "out"), checkpoint=str(tmp_path / "checkpoint"), display=False)
    with pytest.raises(PreflightError, match="no stream tests/no-such, which this query reads"):
        once.start(reading.rows().select("value"))


def test_settings_of_the_source(spark):
    cut = "H4sIAAAAAAAA/zOwqtAvNjQ1NDWwsDAyMTU2MLIy1DGwMgBiQ3MTHUNDMwBhc+jKIgAAAA=="
    for given, told in (
        ({"starting": cut}, "is a cut of the stream 'x/s1515088245302', and the stream is 'a/b'"),
        ({"outage_patience_s": 0}, "outage_patience_s=0"),
    ):
        with pytest.raises(ConfigurationError, match=told):
            read_pravega(spark, "tcp://host:9090", scope="a", stream="b", **given)
