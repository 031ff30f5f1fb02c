"""Explains a query, a stream writer or a DataFrame: `sparkonce.explain`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

from pyspark.sql.classic.dataframe import DataFrame
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from sparkonce.analysis.arguments import kafka_settings
from sparkonce.analysis.explanation import Explanation, judge
from sparkonce.analysis.facts import Pipeline, parse_duration
from sparkonce.analysis.servers import ask_about_sink, ask_about_source
from sparkonce.analysis.sinks import parse_reader
from sparkonce.arguments import mapping
from sparkonce.errors import ConfigurationError
from sparkonce.spark.explain.queries import of_frame, of_query, of_writer, sinks_of_argument


def explain(
    query: StreamingQuery | DataStreamWriter | DataFrame,
    sink: Any = None,
    *,
    reader: str | Mapping[str, Any] | None = None,
    downtime: timedelta | str | None = None,
    deterministic: bool | Iterable[str] = False,
    ask: bool | Mapping[str, Any] = True,
) -> Explanation:
    """Explains what a query guarantees from source to readers, its weakest part, and what to change.

    Nothing is started, written or changed. Print the result as a table, or use it as an object or as JSON
    (`Explanation.to_json`).

    Args:
        query: A running query, a ``df.writeStream…`` before its start, or a streaming DataFrame.
        sink: Required for a DataFrame: an `ExactlyOnce`, one or several of our sinks, the name of one of Spark's
            formats (``kafka``, ``parquet``, ``delta``, …), or a function for ``foreachBatch`` or ``foreach``. It
            replaces the sink of a query or writer, for example with the format of the table of ``toTable``.
        reader: The reader of the sink's output: a Kafka consumer's settings, or ``read_committed``,
            ``read_uncommitted``, ``spark`` (reads the folder or table), ``files`` (lists the files). By default the
            sink's most common reader, which for Kafka is ``read_uncommitted``.
        downtime: The longest expected downtime of the query, as a timedelta or a string such as ``2h``. It is compared
            with the source's retention.
        deterministic: The names of the plan's deterministic Python functions; True for all. This cannot be detected:
            Spark considers every function deterministic unless ``asNondeterministic()`` says otherwise.
        ask: True queries the brokers for the topics' retention, their writers and the longest transaction timeout. A
            mapping does the same with these settings, under librdkafka's names. A question that is not answered within
            ten seconds becomes a condition of the guarantee.

    Raises:
        ConfigurationError: If an argument is missing or not understood.
    """
    known = parse_reader(reader)
    settings = None if isinstance(ask, bool) else mapping("ask", ask, example="True, or librdkafka's settings")
    away = parse_duration(downtime, "downtime") if isinstance(downtime, str) else downtime
    stable = deterministic if isinstance(deterministic, bool) else tuple(deterministic)
    if isinstance(query, StreamingQuery):
        pipeline, ours = of_query(query, stable)
    elif isinstance(query, DataStreamWriter):
        pipeline, ours = of_writer(query, stable)
    elif isinstance(query, DataFrame):
        if sink is None:
            raise ConfigurationError(
                "A DataFrame does not say where its rows go.",
                next_step="Give sink=, for example explain(df, KafkaSink(…)) or explain(df, 'delta').",
            )
        pipeline, ours = of_frame(query, sink, stable)
    else:
        raise ConfigurationError(
            f"query={query!r} cannot be explained.",
            next_step="Give a streaming DataFrame, its writeStream, or the query that was started, of a classic Spark "
            "session (not Spark Connect).",
        )
    if sink is not None and not isinstance(query, DataFrame):
        facts, ours = sinks_of_argument(sink)
        pipeline = replace(pipeline, sinks=facts)
    pipeline = replace(pipeline, reader=known, downtime=away)
    return judge(pipeline if ask is False else _asked(pipeline, ours, settings))


def _asked(pipeline: Pipeline, ours: Sequence[Any], settings: Mapping[str, Any] | None) -> Pipeline:
    """Returns the pipeline with the brokers' answers about its topics and limits."""
    sinks = list(pipeline.sinks)
    for index, sink in enumerate(ours):
        how = kafka_settings(sink)
        if how is not None:
            sinks[index] = ask_about_sink(sinks[index], how)
    sources = tuple(ask_about_source(source, settings) for source in pipeline.sources)
    return replace(pipeline, sources=sources, sinks=tuple(sinks))
