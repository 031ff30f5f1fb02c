"""Pravega streams as a replayable source. The query's checkpoint contains the stream cuts of its batches."""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame, SparkSession

from sparkonce.arguments import nonempty, number, whole_number
from sparkonce.errors import ConfigurationError
from sparkonce.session import check_session, require_class
from sparkonce_pravega.client import CLIENT_CLASS
from sparkonce_pravega.cluster import CLIENT_JAR, Pravega
from sparkonce_pravega.compiled import FORMAT, add_source, source_options

MAX_BYTES_PER_BATCH = 128 * 2**20
"""The default limit of a batch in bytes: a million events of 128 bytes each, as many as for `read_kafka`."""

_SCOPE, _STREAM = "the stream's scope", "the stream's name"
_STARTS = "'earliest', 'latest', or the text of a stream cut (StreamCut.asText())"


def read_pravega(
    spark: SparkSession,
    controller: str | Pravega,
    *,
    scope: str,
    stream: str,
    starting: str = "earliest",
    max_bytes_per_batch: int | None = MAX_BYTES_PER_BATCH,
    outage_patience_s: float = 300.0,
    accept_lost: str | None = None,
) -> DataFrame:
    """Returns a streaming DataFrame over a Pravega stream. Each segment of a batch is a partition.

    Args:
        spark: The session, with Pravega's client; see `sparkonce.spark_packages`.
        controller: The controller's URI, such as ``tcp://host:9090``, or a `Pravega` that also has a user. Executors
            need its ``trust_store`` at the same path.
        scope: The stream's scope.
        stream: The stream.
        starting: Where the first run starts: ``earliest``, ``latest``, or a stream cut as text
            (``StreamCut.asText()``). Later runs resume from the checkpoint.
        max_bytes_per_batch: The approximate size of a batch, in bytes of the stream; None for no limit.
        outage_patience_s: How long Pravega may be unreachable while batches are being planned, in seconds.
        accept_lost: The head of the stream, up to which events may be missing: a stream cut as text, copied from an
            error.

    Returns:
        Columns ``value`` (binary), ``segment`` (its id) and ``offset`` (the event's offset in the segment).

    Raises:
        ConfigurationError: If a setting or argument is wrong, or the session does not have Pravega's client.
    """
    check_session(spark)
    options = {
        **source_options(Pravega.of(controller)),
        "stream": f"{nonempty('scope', scope, example=_SCOPE)}/{nonempty('stream', stream, example=_STREAM)}",
        "patience_ms": str(int(1000 * number("outage_patience_s", outage_patience_s, above=0))),
    }
    if max_bytes_per_batch is not None:
        options["max_bytes"] = str(whole_number("max_bytes_per_batch", max_bytes_per_batch, least=1))
    require_class(spark, CLIENT_JAR, CLIENT_CLASS)
    if starting not in ("earliest", "latest"):
        _check_cut(spark, "starting", starting, options["stream"], _STARTS)
    if accept_lost is not None:
        _check_cut(spark, "accept_lost", accept_lost, options["stream"], "the text that an error has named")
        options["accept_lost"] = accept_lost
    add_source(spark)
    return spark.readStream.format(FORMAT).options(**options, starting=starting).load()


def _check_cut(spark: SparkSession, setting: str, given: Any, stream: str, example: str) -> None:
    """Checks that a string is the text of a cut of this stream."""
    cuts = spark._jvm.io.pravega.client.stream.StreamCut
    try:
        cut = getattr(cuts, "from")(given)
    except Exception:  # noqa: BLE001 - any error from py4j, or from Pravega for an invalid string
        raise ConfigurationError(
            f"{setting}={given!r} is not the text of a stream cut.", next_step=f"Give {example}.", setting=setting
        ) from None
    if (of := str(cut.asImpl().getStream().getScopedName())) != stream:
        raise ConfigurationError(
            f"{setting}={given!r} is a cut of the stream {of!r}, and the stream is {stream!r}.",
            next_step="Give a cut of this stream.",
            setting=setting,
        )
