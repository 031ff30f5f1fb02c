"""RabbitMQ streams as a replayable source. The query's checkpoint contains the positions of its batches."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from sparkonce.arguments import mapping, nonempty, number, one_of, texts, whole_number
from sparkonce.errors import ConfigurationError
from sparkonce.session import check_session
from sparkonce_rabbitmq.server import RabbitMQ, checked_server
from sparkonce_rabbitmq.stream.data_source import NAME, OPTION, RabbitMQStreamSource, StreamOptions

MAX_ROWS_PER_BATCH = 1_000_000
"""The default limit of a batch, as in `read_kafka`."""

AMQP, RAW = "amqp", "raw"
"""The formats of a message."""

_STARTS = "'earliest', 'latest', an aware datetime, or {'orders': 17}"

Start = str | int | datetime


def read_rabbitmq_stream(
    spark: SparkSession,
    server: RabbitMQ,
    *,
    streams: str | Sequence[str] | None = None,
    super_stream: str | None = None,
    starting: Start | Mapping[str, Start] = "earliest",
    max_rows_per_batch: int | None = MAX_ROWS_PER_BATCH,
    body: str = "amqp",
    offset_name: str | None = None,
    outage_patience_s: float = 300.0,
    accept_lost: Mapping[str, int] | None = None,
) -> DataFrame:
    """Returns a streaming DataFrame over RabbitMQ streams. Each stream is a partition.

    Args:
        spark: The session.
        server: The server, or any node of a cluster.
        streams: One or more streams.
        super_stream: A super stream, all of whose streams are read, instead of `streams`.
        starting: Where the first run starts: ``earliest``, ``latest``, or a timezone-aware datetime (the first chunk
            that is not older). A mapping has one of these, or an offset, for each stream. Later runs resume from the
            checkpoint. A stream that is added later is read from its beginning, unless the mapping contains it.
        max_rows_per_batch: The maximum number of messages in a batch, over all streams; None for no limit.
        body: The format of messages. ``amqp``: AMQP 1.0, as written by RabbitMQ's clients and `RabbitMQStreamSink`, and
            as RabbitMQ stores messages published to a stream with AMQP 0-9-1. ``value`` is then the body. ``raw``: bare
            bytes.
        offset_name: The name under which the server stores the offsets of finished batches, for tools that show lag.
        outage_patience_s: How long the server may be unreachable, in seconds.
        accept_lost: For each stream, the offset below which messages may be missing, copied from an error.

    Returns:
        Columns ``stream``, ``offset``, ``timestamp`` (of the message's chunk) and ``value`` (binary). For AMQP, also
        ``properties`` and ``application_properties`` (strings by name).

    Raises:
        ConfigurationError: If a setting or argument is wrong.
    """
    check_session(spark)
    names, is_super = _which(streams, super_stream)
    begins, accepted = _starting(starting), mapping("accept_lost", accept_lost or {}, example="{'orders': 17}")
    if not is_super:
        _check_names("starting", begins, {*names, ""})
        _check_names("accept_lost", accepted, names)
    options = StreamOptions(
        server=asdict(checked_server(server)),
        streams=names,
        super_stream=is_super,
        starting=begins,
        most=None if max_rows_per_batch is None else whole_number("max_rows_per_batch", max_rows_per_batch, least=1),
        amqp=one_of("body", body, (AMQP, RAW)) == AMQP,
        offset_name=""
        if offset_name is None
        else nonempty("offset_name", offset_name, example="a name, such as 'orders-job'"),
        patience_s=number("outage_patience_s", outage_patience_s, above=0),
        accept_lost={
            stream: whole_number(f"accept_lost[{stream!r}]", offset, least=0) for stream, offset in accepted.items()
        },
    )
    spark.dataSource.register(RabbitMQStreamSource)
    reader = spark.readStream.format(NAME).option("streams", ", ".join(names))  # The plan shows this option.
    return reader.option(OPTION, options.text()).load()


def _which(streams: str | Sequence[str] | None, super_stream: str | None) -> tuple[tuple[str, ...], bool]:
    if bool(streams) == bool(super_stream):
        raise ConfigurationError(
            f"{'streams and super_stream are' if streams else 'Nothing is'} given; exactly one of streams and "
            "super_stream is needed.",
            next_step="Give one of them.",
            setting="streams",
        )
    if super_stream:
        return (nonempty("super_stream", super_stream, example="the name of a super stream"),), True
    names = texts("streams", (streams,) if isinstance(streams, str) else streams, example="'orders', or ['orders']")
    return tuple(dict.fromkeys(names)), False


def _check_names(setting: str, starts: Mapping[str, Any], names: Collection[str]) -> None:
    for stream in starts:
        if stream not in names:
            raise ConfigurationError(
                f"{setting}[{stream!r}] is not one of the streams.", next_step="Name one of streams.", setting=setting
            )


def _starting(starting: Any) -> dict[str, str | int]:
    """Returns where a query starts in each stream. An empty name stands for all streams."""
    if isinstance(starting, Mapping):
        return {
            nonempty("starting", stream, example=_STARTS): _start(f"starting[{stream!r}]", one)
            for stream, one in starting.items()
        }
    if isinstance(starting, int):
        raise _no_start("starting", starting)
    return {"": _start("starting", starting)}


def _start(setting: str, start: Any) -> str | int:
    if isinstance(start, datetime) and start.tzinfo is not None:
        return start.isoformat()
    if isinstance(start, str) and start in ("earliest", "latest"):
        return start
    if isinstance(start, int) and not isinstance(start, bool) and start >= 0:
        return start
    raise _no_start(setting, start)


def _no_start(setting: str, start: object) -> ConfigurationError:
    return ConfigurationError(
        f"{setting}={start!r} is not a starting position.", next_step=f"Give {_STARTS}.", setting="starting"
    )
