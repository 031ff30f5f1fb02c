"""A query that is watched: by Prometheus, by its timeline, by OpenTelemetry, and in Spark's own UI."""

from __future__ import annotations

import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client.parser import text_string_to_metric_families
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from eventually import eventually
from spark.in_process import MARKS, CrashError, Stream, crash_at, travelling
from sparkonce import serve_metrics
from sparkonce.errors import PrepareError
from sparkonce.protocol.state import Phase
from sparkonce.storage.local import LocalFiles
from sparkonce.storage.spark import SparkCheckpoint
from sparkonce.watch.timeline import TimelineReader, TimelineSegment
from sparkonce_lab.rig.kafka import Cluster

pytestmark = MARKS

IDS = [f"{number:05d}" for number in range(1_000)]


@pytest.fixture(autouse=True, scope="module")
def _this_module_travels() -> Iterator[None]:
    with travelling(sys.modules[__name__]):
        yield


@pytest.fixture(scope="module")
def metrics_port() -> int:
    return serve_metrics(0)


@pytest.fixture(scope="module")
def exported() -> Iterator[InMemorySpanExporter]:
    """Sets up OpenTelemetry, which a process can do only once, and collects what is exported."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    yield exporter
    provider.shutdown()


@pytest.fixture
def spans(exported: InMemorySpanExporter) -> InMemorySpanExporter:
    exported.clear()
    return exported


def scraped(port: int, query: str) -> dict[tuple[str, ...], float]:
    """Returns a query's samples by name and by the values of their own labels."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        text = answer.read().decode()
    return {
        (sample.name, *(value for label, value in sorted(sample.labels.items()) if label not in ("query", "name"))): (
            sample.value
        )
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.labels.get("query") == query
    }


def query_of(stream: Stream) -> str:
    return SparkCheckpoint(LocalFiles(stream.checkpoint)).query_id() or ""


def timeline_of(stream: Stream, runs: int = 1, phase: Phase = Phase.IDLE) -> list[TimelineSegment]:
    """Returns the timeline once this many runs have written theirs, and the last run has written its end."""
    reader = TimelineReader(LocalFiles(stream.checkpoint))

    def ended() -> list[TimelineSegment]:
        found = list(reader.read())
        return found if len(found) == runs and found[-1].now.phase == phase.value else []

    return eventually(ended, f"a timeline of {runs} runs, the last of which is {phase.value}")


def test_all_see_the_same_batches(
    spark: SparkSession, kafka: Cluster, tmp_path: Path, metrics_port: int, spans: InMemorySpanExporter
) -> None:
    def _attribute(span: ReadableSpan, name: str) -> Any:
        assert span.attributes is not None
        return span.attributes[name]

    stream = Stream(spark, kafka, tmp_path, IDS)
    done = stream.run(rows_per_batch=400)
    assert stream.keys() == IDS
    found = scraped(metrics_port, query_of(stream))
    assert found[("sparkonce_batches_total",)] == len(done) == 3
    assert found["sparkonce_rows_total", "kafka"] == len(IDS)
    assert found[("sparkonce_transactions_total",)] == sum(one.transactions for one in done)
    assert found["sparkonce_in_doubt_transactions", "kafka"] == 0
    assert found["sparkonce_phase", "idle"] == 1
    assert found["sparkonce_transaction_timeout_seconds", "kafka"] > 0
    writing = sum(one.seconds[Phase.WRITING.value] for one in done)
    assert found["sparkonce_phase_seconds_total", Phase.WRITING.value] == pytest.approx(writing)
    segment = timeline_of(stream)[0]
    assert [(one.batch, one.rows, one.transactions) for one in segment.batches] == [
        (one.batch, one.rows, one.transactions) for one in done
    ]
    assert [name for name, _ in segment.batches[1].phases][:2] == [Phase.WRITING.value, Phase.VALIDATING.value]
    whole = [span for span in spans.get_finished_spans() if span.name == "sparkonce.batch"]
    assert [_attribute(span, "sparkonce.batch") for span in whole] == [0, 1, 2]
    assert sum(_attribute(span, "sparkonce.rows.kafka") for span in whole) == len(IDS)
    parts = [span for span in spans.get_finished_spans() if span.parent == whole[1].get_span_context()]
    assert [_attribute(span, "sparkonce.phase") for span in parts] == [name for name, _ in segment.batches[1].phases]
    assert (parts[0].start_time, parts[-1].end_time) == (whole[1].start_time, whole[1].end_time)


def test_spark_says_what_its_jobs_are_for(spark: SparkSession, kafka: Cluster, tmp_path: Path) -> None:
    stream = Stream(spark, kafka, tmp_path, IDS[:10])
    stream.run()
    query = query_of(stream)
    jobs = spark.sparkContext._jsc.sc().statusStore().jobsList(None)
    told = [jobs.apply(number).description() for number in range(jobs.size())]
    mine = [text.get() for text in told if text.isDefined() and query in text.get()]
    assert mine
    assert all("batch = 0" in text for text in mine), "Spark's own text is kept"
    assert any(text.endswith("<br/>sparkonce: writing batch 0 to kafka") for text in mine)


def test_a_run_that_stops_says_so_and_the_next_that_it_recovers(
    spark: SparkSession, kafka: Cluster, tmp_path: Path, metrics_port: int
) -> None:
    def refused(rows: DataFrame) -> DataFrame:
        return rows.withColumn("value", F.expr("cast(raise_error('not this one') as string)"))

    stream = Stream(spark, kafka, tmp_path, IDS[:10])
    with pytest.raises(CrashError):
        stream.run(listener=crash_at(Phase.FINISHING, 0))
    (crashed,) = timeline_of(stream, phase=Phase.STOPPED)
    assert crashed.now.batch == 0
    assert crashed.now.in_doubt.transactions > 0
    stream.run()
    stream.send(IDS[10:20])
    with pytest.raises(PrepareError):
        stream.run(refused)
    first, second, third = timeline_of(stream, 3, Phase.STOPPED)
    assert first.run < second.run < third.run
    assert [one.recovered for one in second.batches] == [True]
    assert "recovered" in [one.kind for one in second.events]
    assert third.now.batch == 1
    assert (third.events[-1].kind, third.events[-1].batch) == ("stopped", 1)
    assert "not this one" in third.events[-1].text
    found = scraped(metrics_port, query_of(stream))
    assert found["sparkonce_stops_total", "PrepareError"] == 1
    assert found["sparkonce_phase", "stopped"] == 1


def test_without_a_timeline_nothing_is_written(spark: SparkSession, kafka: Cluster, tmp_path: Path) -> None:
    stream = Stream(spark, kafka, tmp_path, IDS[:10])
    stream.run(timeline=False)
    assert stream.keys() == IDS[:10]
    assert not (stream.checkpoint / "sparkonce" / "timeline").exists()
