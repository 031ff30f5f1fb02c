"""Queries that read Pravega streams: which events a batch has, and has again after a crash, on a real server."""

from __future__ import annotations

import json
import threading
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from pravega_witness import SCOPE, PravegaWitness
from shared_servers import pravega_server
from spark.harness import new_name
from spark.in_process import LIMIT_S, SPARK, ended, stopped
from sparkonce import ExactlyOnce, FilesSink, Guarantee, Pravega, explain, read_pravega
from sparkonce.analysis.findings import Role
from sparkonce.errors import ConfigurationError, PreflightError
from sparkonce.files import whole_batches

pytestmark = SPARK

EPOCH = 2**32
"""What a segment's id has more than its number, for each time that the stream was scaled before it."""


Seen = dict[int, list[tuple[int, int, str]]]
"""The segment, the offset and the value of each row, by batch."""


def numbered(first: int, end: int) -> list[str]:
    return [str(number) for number in range(first, end)]


def values(seen: Seen) -> list[int]:
    return sorted(int(value) for rows in seen.values() for _, _, value in rows)


class Reading:
    """A query that keeps what its batches had, on one checkpoint and one stream.

    Args:
        spark: The session.
        folder: Of the checkpoint.
        given: Of `read_pravega`.
    """

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
        """Runs until all is read, or until it crashes in a batch, after it has read it. Calls `then` in each batch."""
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
        """Returns the position that Spark has stored for the end of a batch."""
        return json.loads((self.checkpoint / "offsets" / str(batch)).read_text().splitlines()[-1])


@pytest.fixture
def reading(spark: SparkSession, tmp_path: Path) -> Reading:
    return Reading(spark, tmp_path)


def test_a_crashed_batch_has_the_same_rows_again_and_the_next_one_goes_on(reading: Reading) -> None:
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
def test_a_crashed_first_batch_begins_where_it_began(reading: Reading) -> None:
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


@pytest.mark.parametrize("most", [pytest.param(None, marks=pytest.mark.slow), 150])
def test_segments_that_are_split_and_merged(reading: Reading, most: int | None) -> None:
    """All events once, those of a key in their order over all segments that have had them."""
    reading.given = {"max_bytes_per_batch": most}
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
@pytest.mark.parametrize("most", [100, 250])
def test_segments_that_are_replaced_by_ones_across_their_borders(reading: Reading, most: int) -> None:
    """Two become three, and these become two, some with far more events than others."""
    reading.given = {"max_bytes_per_batch": most}

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
def test_a_sealed_stream_is_read_to_its_end(reading: Reading) -> None:
    reading.write(0, 30)
    reading.witness.seal(reading.stream)
    assert values(reading.run()) == list(range(30))
    assert values(reading.run()) == []


@pytest.mark.slow
def test_a_start_at_a_given_cut(reading: Reading) -> None:
    reading.write(0, 10)
    reading.given = {"starting": str(reading.witness.tail(reading.stream).asText())}
    reading.write(10, 20)
    assert values(reading.run()) == list(range(10, 20))


def test_events_that_are_gone_stop_the_query_by_name(reading: Reading) -> None:
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
def test_segments_that_are_gone_stop_the_query(reading: Reading) -> None:
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
def test_what_follows_segments_that_are_gone_is_read_in_small_batches(reading: Reading) -> None:
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


def test_a_stream_that_is_made_again_stops_the_query(reading: Reading) -> None:
    reading.write(0, 20)
    reading.run()
    reading.witness.delete(reading.stream)
    reading.witness.create(reading.stream)
    reading.write(0, 40)
    assert "is not the one that this query has read" in reading.stops()


@pytest.mark.slow
def test_a_stream_of_another_cluster_stops_the_query(reading: Reading) -> None:
    """Its segments have the same numbers, and were made at another time."""
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
def test_an_outage_while_a_batch_is_planned_ends_no_query_as_if_all_were_read(reading: Reading) -> None:
    reading.given = {"max_bytes_per_batch": 300, "outage_patience_s": 2}
    reading.write(0, 60)
    try:
        told = reading.stops(then=lambda batch: pravega_server().pause())
    finally:
        pravega_server().resume()
    assert f"Pravega at {pravega_server().url} does not tell" in told
    reading.given["outage_patience_s"] = 60
    seen = reading.run()
    assert 0 < len(values(seen)) < 60, "the first batch was done"
    assert values(seen)[-1] == 59


@pytest.mark.slow
def test_an_outage_within_the_patience_is_waited_out(reading: Reading) -> None:
    reading.given = {"max_bytes_per_batch": 300, "outage_patience_s": 15}  # an answer may take a fifth of it
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


def test_a_query_of_ours_reads_it_exactly_once(reading: Reading, tmp_path: Path) -> None:
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


def test_explain_knows_the_source_and_tells_no_password(spark: SparkSession, tmp_path: Path) -> None:
    cluster = Pravega("tcp://host:9090", user="etl", password="hush-hush")  # noqa: S106 - of nobody
    rows = read_pravega(spark, cluster, scope="shop", stream="orders")
    (source,) = [part for part in explain(rows.select("value"), FilesSink(tmp_path)).parts if part.role is Role.SOURCE]
    assert (source.name, source.level) == ("pravega: shop/orders", Guarantee.EXACTLY_ONCE)
    assert "hush-hush" not in rows._jdf.queryExecution().toString()


def test_a_stream_that_is_missing_refuses_the_start(reading: Reading, tmp_path: Path) -> None:
    reading.stream = "no-such"
    once = ExactlyOnce(FilesSink(tmp_path / "out"), checkpoint=str(tmp_path / "checkpoint"), display=False)
    with pytest.raises(PreflightError, match="no stream tests/no-such, which this query reads"):
        once.start(reading.rows().select("value"))


def test_settings(spark: SparkSession) -> None:
    def read(controller: str = "tcp://host:9090", stream: str = "b", **more: Any) -> None:
        read_pravega(spark, controller, scope="a", stream=stream, **more)

    cut = "H4sIAAAAAAAA/zOwqtAvNjQ1NDWwsDAyMTU2MLIy1DGwMgBiQ3MTHUNDMwBhc+jKIgAAAA=="
    for given, told in (
        ({"controller": "host:9090"}, "does not begin with"),
        ({"stream": ""}, "stream='' is empty"),
        ({"starting": "begin"}, "starting='begin' is not the text of a stream cut"),
        ({"starting": cut}, "is a cut of the stream 'x/s1515088245302', and the stream is 'a/b'"),
        ({"accept_lost": "all"}, "accept_lost='all' is not the text"),
        ({"max_bytes_per_batch": 0}, "max_bytes_per_batch=0"),
        ({"outage_patience_s": 0}, "outage_patience_s=0"),
    ):
        with pytest.raises(ConfigurationError, match=told):
            read(**given)
