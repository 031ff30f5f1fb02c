"""Third-party sinks can do what ours do: warn at the start, store offsets in transactions, and appear in `explain`."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest

from sparkonce.analysis.arguments import kafka_settings, sink_facts
from sparkonce.errors import ConfigurationError
from sparkonce.guarantees import Guarantee
from sparkonce.sink import SinkCommitter, SinkWriter, TwoPhaseCommitSink, WriterContext
from sparkonce.sinks.memory.sink import MemorySink
from sparkonce.sources.groups import GroupOffsets
from sparkonce.sources.topics import KafkaSource
from sparkonce.spark.settings import checked_groups
from sparkonce.spark.start.first_batch import warn_of_loops
from sparkonce.spark.views import dead_letter_sinks

SETTINGS = {"bootstrap.servers": "broker:9092", "transaction.timeout.ms": "60000"}


class PlainSink(TwoPhaseCommitSink):
    def columns(self, schema: pa.Schema) -> list[str]:
        return list(schema.names)

    def writer(self, context: WriterContext) -> SinkWriter:
        raise NotImplementedError

    def committer(self) -> SinkCommitter:
        raise NotImplementedError


class OtherKafkaSink(PlainSink):
    target_name = "totals"
    kafka_settings = SETTINGS
    takes_dead_letters = False


def test_a_sink_without_hooks_is_of_no_kafka() -> None:
    sink = PlainSink("mine")
    (facts,) = sink_facts(sink)
    assert (facts.name, facts.kafka, facts.transaction_timeout, kafka_settings(sink)) == (
        "PlainSink mine",
        False,
        None,
        None,
    )
    assert sink.partitions() is None
    rows: Any = object()
    assert sink.checked(rows, "mark") is rows


def test_explain_knows_its_topic_and_its_timeout() -> None:
    sink = OtherKafkaSink("mine")
    (facts,) = sink_facts(sink)
    assert (facts.name, facts.kafka, facts.transaction_timeout) == (
        "OtherKafkaSink totals",
        True,
        timedelta(seconds=60),
    )
    assert kafka_settings(sink) == SETTINGS
    assert kafka_settings(OtherKafkaSink("mine", Guarantee.AT_LEAST_ONCE)) is None


def test_offsets_go_into_its_transactions() -> None:
    offsets = GroupOffsets("group", {"bootstrap.servers": "broker:9092"}, in_transaction_of="mine")
    assert checked_groups(offsets, {"mine": OtherKafkaSink("mine")}) == (offsets,)
    for other in (PlainSink("mine"), OtherKafkaSink("mine", Guarantee.AT_LEAST_ONCE), OtherKafkaSink("another")):
        with pytest.raises(ConfigurationError, match="names no KafkaSink"):
            checked_groups(offsets, {other.name: other})


def test_a_query_that_reads_its_topic_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    source = KafkaSource(options={"kafka.bootstrap.servers": "broker:9092"}, partitions={"totals": 3})
    with caplog.at_level(logging.WARNING, "sparkonce"):
        warn_of_loops([source], [PlainSink("mine")])
        assert caplog.messages == []
        warn_of_loops([source], [OtherKafkaSink("mine")])
    assert "reads topic='totals', which its sink 'mine' writes to" in caplog.text


def test_it_may_not_be_one_of_dead_letters() -> None:
    refusing, other = MemorySink("refusing"), OtherKafkaSink("other")
    with pytest.raises(ConfigurationError, match="'other' is a OtherKafkaSink, which may refuse a row after"):
        dead_letter_sinks({refusing: None}, {refusing: other})
