"""Spark's own Kafka source, with the defaults that exactly-once needs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.errors import AnalysisException, IllegalArgumentException
from pyspark.sql import DataFrame, SparkSession

from sparkonce.arguments import flag, mapping, nonempty, one_of, texts, whole_number
from sparkonce.errors import ConfigurationError
from sparkonce.jvm import is_connect, missing
from sparkonce.packages import KAFKA_MODULE
from sparkonce.sources.kafka import Starting, consumer_settings, starting_options
from sparkonce.spark.start.arguments import check_session

_OURS: Mapping[str, str] = {
    "subscribe": "topics",
    "subscribepattern": "pattern",
    "assign": "partitions",
    "startingoffsets": "starting",
    "startingtimestamp": "starting",
    "startingoffsetsbytimestamp": "starting",
    "maxoffsetspertrigger": "max_offsets_per_trigger",
    "failondataloss": "fail_on_data_loss",
    "includeheaders": "headers",
}
"""Spark's options that have an argument here, in lower case, because Spark ignores case."""

MAX_OFFSETS_PER_TRIGGER = 1_000_000
"""The default batch limit. At 5,000 rows a second, such a batch takes three of a transaction's fifteen minutes."""

FAST: Mapping[str, str] = {"max.poll.records": "10000", "fetch.max.wait.ms": "1"}
"""Consumer settings without which Spark's source waits for the broker most of the time.

After each poll, `InternalKafkaConsumer.fetch` asks for the partition's first and last offsets. Kafka's default is to
poll 500 records, so every 500 records take two more round trips. Ten thousand records of 100 bytes are a whole fetch,
and the smallest ones take only a few MiB for each partition that an executor reads. A poll also sends the next fetch.
If the partition has no more records, the broker waits up to 500 ms before it answers, and handles the consumer's next
requests only after that.
"""


def read_kafka(
    spark: SparkSession,
    settings: Mapping[str, Any],
    *,
    topics: str | Sequence[str] | None = None,
    pattern: str | None = None,
    partitions: Mapping[str, Sequence[int]] | None = None,
    starting: Starting = "earliest",
    isolation_level: str = "read_committed",
    max_offsets_per_trigger: int | None = MAX_OFFSETS_PER_TRIGGER,
    fail_on_data_loss: bool = True,
    headers: bool = False,
    options: Mapping[str, Any] | None = None,
) -> DataFrame:
    """Returns a streaming DataFrame over Kafka topics. It is replayable: its offsets are in the query's checkpoint.

    Args:
        spark: The session, which needs Spark's Kafka connector: see `sparkonce.spark_packages`.
        settings: The consumers' settings, under librdkafka's or Java's names; ``bootstrap.servers`` is required. The
            connection settings of a `KafkaSink` work here, too. ``max.poll.records`` and ``fetch.max.wait.ms`` have
            other defaults than Kafka's, with which Spark's source is faster (`FAST`).
        topics: One or more topics: a string, comma-separated if there are several, or a sequence.
        pattern: Instead of ``topics``, a Java regular expression. Topics that are created later are matched, too.
        partitions: Instead of ``topics``, the partitions of each topic.
        starting: Where the first run starts: ``earliest``, ``latest``, or an aware datetime (the first record that is
            not older). Or a mapping from each topic to its partitions, each with an offset, one of these words, or a
            datetime. Later runs resume from the checkpoint. New partitions are read from their beginning.
        isolation_level: ``read_committed``, or ``read_uncommitted`` (Kafka's own default), which also reads the rows of
            aborted transactions.
        max_offsets_per_trigger: The maximum number of offsets per batch, over all partitions; None for no limit. It
            limits how long a batch takes, even after a backlog: transactions only live for ``transaction.timeout.ms``,
            and a planned batch is repeated unchanged.
        fail_on_data_loss: True stops the query if offsets that it has not read yet are gone; False continues and loses
            rows.
        headers: True adds a column ``headers``.
        options: Additional options for Spark's source, such as ``minPartitions``.

    Returns:
        Columns ``key`` and ``value`` (binary), ``topic``, ``partition``, ``offset``, ``timestamp``, ``timestampType``,
        and ``headers`` if requested.

    Raises:
        ConfigurationError: If a setting or argument is wrong, or the session does not have the connector.
    """
    if not is_connect(spark):
        check_session(spark)
    one_of("isolation_level", isolation_level, ("read_committed", "read_uncommitted"))
    consumer = consumer_settings(settings)
    if consumer.setdefault("isolation.level", isolation_level) != isolation_level:
        raise ConfigurationError(
            f"isolation.level={consumer['isolation.level']!r} is among the settings, and isolation_level is "
            f"{isolation_level!r}.",
            next_step="Give it once, as the argument isolation_level.",
            setting="isolation.level",
        )
    consumer = {**FAST, **consumer}
    reader = spark.readStream.format("kafka")
    if max_offsets_per_trigger is not None:
        most = whole_number("max_offsets_per_trigger", max_offsets_per_trigger, least=1)
        reader = reader.option("maxOffsetsPerTrigger", most)
    reader = (
        reader.options(**_more(mapping("options", options or {}, example="{'minPartitions': 8}")))
        .options(**_which(spark, topics, pattern, partitions))
        .options(**starting_options(starting))
        .options(**{f"kafka.{name}": value for name, value in consumer.items()})
        .option("failOnDataLoss", flag("fail_on_data_loss", fail_on_data_loss))
        .option("includeHeaders", flag("headers", headers))
    )
    try:
        return reader.load()
    except AnalysisException as error:
        if "Failed to find data source: kafka" in str(error):
            raise missing(spark, KAFKA_MODULE) from None
        raise


def _which(
    spark: SparkSession,
    topics: str | Sequence[str] | None,
    pattern: str | None,
    partitions: Mapping[str, Sequence[int]] | None,
) -> dict[str, str]:
    choices = {"topics": topics, "pattern": pattern, "partitions": partitions}
    named = [name for name, value in choices.items() if value]
    if len(named) != 1:
        raise ConfigurationError(
            f"{' and '.join(named) or 'Nothing'} is given; exactly one of topics, pattern and partitions is needed.",
            next_step="Give one of them.",
            setting="topics",
        )
    if topics:
        names = (topics,) if isinstance(topics, str) else texts("topics", topics, example="'orders', or ['orders']")
        return {"subscribe": ",".join(names)}
    if pattern:
        nonempty("pattern", pattern, example="a regular expression: 'orders-.*'")
        _check_pattern(spark, pattern)
        return {"subscribePattern": pattern}
    example = "{'orders': [0, 1]}"
    assigned = mapping("partitions", partitions, example=example)
    try:
        return {"assign": json.dumps({topic: list(map(int, numbers)) for topic, numbers in assigned.items()})}
    except (TypeError, ValueError):
        raise ConfigurationError(
            f"partitions={partitions!r} does not name partitions by number.",
            next_step=f"Give {example}.",
            setting="partitions",
        ) from None


def _check_pattern(spark: SparkSession, pattern: str) -> None:
    if is_connect(spark):
        return  # Spark reports it when the query starts
    try:
        spark.sparkContext._jvm.java.util.regex.Pattern.compile(pattern)
    except IllegalArgumentException as error:
        reason = str(error).splitlines()[0]
        raise ConfigurationError(
            f"pattern={pattern!r} is not a regular expression of Java's: {reason}.",
            next_step="Correct it.",
            setting="pattern",
        ) from None


def _more(options: Mapping[str, Any]) -> dict[str, Any]:
    for name in options:
        if name.lower() in _OURS:
            raise ConfigurationError(
                f"options[{name!r}] is set by an argument of read_kafka.",
                next_step=f"Use the argument {_OURS[name.lower()]}.",
                setting=name,
            )
        if name.lower().startswith("kafka."):
            raise ConfigurationError(
                f"options[{name!r}] is a setting of the consumer.", next_step="Put it into settings.", setting=name
            )
    return dict(options)
