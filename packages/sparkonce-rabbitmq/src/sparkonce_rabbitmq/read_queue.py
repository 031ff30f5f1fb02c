"""A classic or quorum queue of RabbitMQ as a replayable source: its messages are stored in the query's checkpoint."""

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
"""The largest prefetch: the protocol has two bytes for it."""

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
    """Returns a streaming DataFrame over a queue. Start one query with it, on the checkpoint given here.

    Messages are received while the query is running, and stored in the checkpoint before a batch reads them.

    Args:
        spark: The session.
        server: The server, or a node of a cluster.
        queue: The queue's name. It must exist.
        checkpoint: The query's checkpoint, as passed to `ExactlyOnce`.
        identify: How to recognize a message that is delivered again: by its property ``message_id``; by a ``digest`` of
            everything that its publisher has set; or by a function that takes a `QueueMessage` and returns a string or
            bytes. Two messages with the same result count as one message. Cannot be changed later.
        acknowledge: When to acknowledge a message. ``finished``: once its batch is decided and finished. ``stored``:
            once it is in the checkpoint. The prefetch then need not cover a batch, but a deleted checkpoint loses
            messages.
        prefetch: The maximum number of delivered but unacknowledged messages. With ``finished``, this includes stored
            messages of unfinished batches.
        exclusive: True if the server must not let anybody else consume from the queue while the query runs.
        remember: The number of message ids that are remembered after their batches are finished.
        most_ahead: With ``stored``, acknowledgments pause while this many rows are waiting for a batch.
        max_rows_per_batch: The maximum number of rows in a batch, in whole segments; None for no limit.
        segment_rows: The maximum number of rows that are stored together.
        linger_s: How long a message waits for others to be stored with it, in seconds.
        partitions: The maximum number of partitions in a batch.
        outage_patience_s: How long the server, or the checkpoint's store, may be unreachable, in seconds.

    Returns:
        Columns ``value`` (binary), ``message_id``, ``exchange``, ``routing_key``, ``timestamp``, ``properties`` and
        ``headers`` (strings by name), ``redelivered``.

    Raises:
        ConfigurationError: If a setting or argument is wrong.
        PreflightError: If the queue does not exist, or this user may not read it.
        OutageError: If the server is unreachable.
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
    return spark.readStream.format(NAME).options(**told).load()  # The options are only for the analyzer.
