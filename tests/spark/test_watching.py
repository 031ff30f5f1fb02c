"""A query that is monitored: by Prometheus, its timeline, OpenTelemetry, and Spark's own UI."""

from __future__ import annotations

import urllib.request
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client.parser import text_string_to_metric_families

from eventually import eventually
from spark.in_process import IDS, MARKS, Stream
from sparkonce import serve_metrics
from sparkonce.protocol.state import Phase
from sparkonce.storage.local import LocalFiles
from sparkonce.storage.spark_checkpoint import SparkCheckpoint
from sparkonce.watch.timeline import TimelineReader, TimelineSegment

pytestmark = [*MARKS, pytest.mark.usefixtures("travels")]


def query_of(stream: Stream) -> str:
    return SparkCheckpoint(LocalFiles(stream.checkpoint)).query_id() or ""


def test_all_see_the_same_batches(stream):
    def attribute(span: ReadableSpan, name: str) -> Any:
        return span.attributes[name]

    spans, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    trace.set_tracer_provider(provider)  # which a process can do only once
    port = serve_metrics(0)
    done = stream.run(rows_per_batch=400)
    provider.shutdown()
    assert stream.keys() == IDS
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        families = list(text_string_to_metric_families(answer.read().decode()))
    query = query_of(stream)
    found = {
        (sample.name, *(value for label, value in sorted(sample.labels.items()) if label not in ("query", "name"))): (
            sample.value
        )
        for family in families
        for sample in family.samples
        if sample.labels.get("query") == query
    }
    assert found[("sparkonce_batches_total",)] == len(done) == 3
    assert found["sparkonce_rows_total", "kafka"] == len(IDS)
    assert found[("sparkonce_transactions_total",)] == sum(one.transactions for one in done)
    assert found["sparkonce_in_doubt_transactions", "kafka"] == 0
    assert found["sparkonce_phase", "idle"] == 1
    assert found["sparkonce_transaction_timeout_seconds", "kafka"] > 0
    writing = sum(one.seconds[Phase.WRITING.value] for one in done)
    assert found["sparkonce_phase_seconds_total", Phase.WRITING.value] == pytest.approx(writing)
    reader = TimelineReader(LocalFiles(stream.checkpoint))

    def whole_timeline() -> list[TimelineSegment]:
        return [one for one in reader.read() if one.now.phase == Phase.IDLE.value]

    (segment,) = eventually(whole_timeline, "the run has written its end")
    assert [(one.batch, one.rows, one.transactions) for one in segment.batches] == [
        (one.batch, one.rows, one.transactions) for one in done
    ]
    assert [name for name, _ in segment.batches[1].phases][:2] == [Phase.WRITING.value, Phase.VALIDATING.value]
    whole = [span for span in spans.get_finished_spans() if span.name == "sparkonce.batch"]
    assert [attribute(span, "sparkonce.batch") for span in whole] == [0, 1, 2]
    assert sum(attribute(span, "sparkonce.rows.kafka") for span in whole) == len(IDS)
    parts = [span for span in spans.get_finished_spans() if span.parent == whole[1].get_span_context()]
    assert [attribute(span, "sparkonce.phase") for span in parts] == [name for name, _ in segment.batches[1].phases]
    assert (parts[0].start_time, parts[-1].end_time) == (whole[1].start_time, whole[1].end_time)


def test_spark_says_what_its_jobs_are_for(stream):
    stream.run(rows_per_batch=1_000)
    query = query_of(stream)
    jobs = stream.spark.sparkContext._jsc.sc().statusStore().jobsList(None)
    told = [jobs.apply(number).description() for number in range(jobs.size())]
    mine = [text.get() for text in told if text.isDefined() and query in text.get()]
    assert mine
    assert all("batch = 0" in text for text in mine), "Spark's own text is kept"
    assert any(text.endswith("<br/>sparkonce: writing batch 0 to kafka") for text in mine)
