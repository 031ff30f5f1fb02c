"""A classic or quorum queue of RabbitMQ as a source, which replays: its messages are in the query's checkpoint."""

from __future__ import annotations

import os

from pyspark.sql import DataFrame, SparkSession

from sparkonce.arguments import flag, function, nonempty, number, one_of, whole_number
from sparkonce.session import check_session, checked_location, open_checkpoint
from sparkonce_rabbitmq.queue.data_source import NAME, QueueOptions, source_of
from sparkonce_rabbitmq.queue.messages import Identify, identified_by
from sparkonce_rabbitmq.queue.receiver import Acknowledge
from sparkonce_rabbitmq.server import RabbitMQ, checked_server

MOST_PREFETCH = 65_535
"""The protocol has two bytes for it."""

_LEAST_REMEMBERED = 2 * MOST_PREFETCH


def read_rabbitmq_queue(
    spark: SparkSession,
    server: RabbitMQ,
    *,
    queue: str,
    checkpoint: str | os.PathLike[str],
    identify: Identify = "message_id",
    acknowledge: Acknowledge = "finished",
    prefetch: int = 20_000,
    exclusive: bool = True,
    remember: int = 250_000,
    most_ahead: int = 1_000_000,
    max_rows_per_batch: int | None = 1_000_000,
    segment_rows: int = 10_000,
    linger_s: float = 0.2,
    partitions: int = 4,
    outage_patience_s: float = 300.0,
) -> DataFrame:
    """Returns a streaming DataFrame over a queue. Start one query with it, on the checkpoint that is named here.

    Messages are received while the query runs, and kept in the checkpoint before a batch reads them.

    Args:
        spark: The session.
        server: The server, or a node of a cluster.
        queue: The queue's name. It must exist.
        checkpoint: The query's checkpoint, as `ExactlyOnce` is given it.
        identify: What tells a message that comes again from others: its property ``message_id``; a ``digest`` of all
            that its publisher has set; or a function of a `QueueMessage` that returns a text or bytes. Two messages
            of which it is the same are one message. Cannot be changed.
        acknowledge: ``finished``: a message is acknowledged once its batch is decided and finished. ``stored``: once
            it is kept in the checkpoint; so a deleted checkpoint loses messages, and prefetch need not hold a batch.
        prefetch: The most messages that are delivered and not acknowledged. With ``finished``, also of what is kept
            and not finished.
        exclusive: Whether the server lets nobody else consume meanwhile.
        remember: How many ids of messages are remembered behind finished batches.
        most_ahead: With ``stored``: acknowledgements pause while so many rows wait for a batch.
        max_rows_per_batch: The most rows of a batch, in whole segments; None for no limit.
        segment_rows: The most rows that are kept together.
        linger_s: How long a message waits for others that it is kept with, in seconds.
        partitions: The most partitions of a batch.
        outage_patience_s: The time for which the server, or the checkpoint's store, may be away, in seconds.

    Returns:
        Columns ``value`` (binary), ``message_id``, ``exchange``, ``routing_key``, ``timestamp``, ``properties`` and
        ``headers`` (texts by name), ``redelivered``.

    Raises:
        ConfigurationError: if a setting or argument is wrong.
        PreflightError: if the queue is not there, or this user may not read it.
        OutageError: if the server cannot be reached.
    """
    check_session(spark)
    from sparkonce_rabbitmq.queue.consumer import ConsumerSettings, queue_is_there
    from sparkonce_rabbitmq.queue.receiver import ReceiverSettings

    most = None if max_rows_per_batch is None else whole_number("max_rows_per_batch", max_rows_per_batch, least=1)
    rows = whole_number("segment_rows", segment_rows, least=1)
    consumer = ConsumerSettings(
        server=checked_server(server),
        queue=nonempty("queue", queue, example="a queue's name, such as 'orders'"),
        prefetch=whole_number("prefetch", prefetch, least=1, most=MOST_PREFETCH),
        exclusive=flag("exclusive", exclusive),
        patience_s=number("outage_patience_s", outage_patience_s, above=0),
    )
    receiver = ReceiverSettings(
        identify=one_of("identify", identify, ("message_id", "digest"))
        if isinstance(identify, str)
        else function("identify", identify, example="'message_id', 'digest', or a function of a message"),
        acknowledge=one_of("acknowledge", acknowledge, ("finished", "stored")),
        remember=whole_number("remember", remember, least=_LEAST_REMEMBERED),
        most_ahead=whole_number("most_ahead", most_ahead, least=1),
        segment_rows=rows if most is None else min(rows, most),
        linger_s=number("linger_s", linger_s, least=0),
    )
    files = open_checkpoint(spark, checked_location(checkpoint)).for_workers()
    queue_is_there(server, queue)
    count = whole_number("partitions", partitions, least=1)
    options = QueueOptions(files=files, consumer=consumer, receiver=receiver, most=most, partitions=count)
    spark.dataSource.register(source_of(options))
    told = {"queue": queue, "identify": identified_by(receiver.identify), "acknowledge": receiver.acknowledge}
    return spark.readStream.format(NAME).options(**told).load()  # for the analyser alone
