"""Spark's side of RabbitMQ queues: a streaming source that uses Spark's Python data source API, with Arrow batches.

Spark plans batches in a separate Python process on the driver, which lives as long as the query. The receiver's thread
runs in this process, so the connection ends with the query, and heartbeats do not wait for the driver. Tasks read
stored messages, and do not connect to the server.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from sparkonce.errors import CheckpointMismatchError
from sparkonce.session import Limited
from sparkonce_rabbitmq.queue.messages import SPARK_SCHEMA, identified_by
from sparkonce_rabbitmq.queue.progress import NEXT, QUEUE, Progress
from sparkonce_rabbitmq.queue.segments import RESTORE, Segments

if TYPE_CHECKING:
    import pyarrow as pa

    from sparkonce.source import CheckpointFiles
    from sparkonce_rabbitmq.queue.consumer import ConsumerSettings, QueueConsumer
    from sparkonce_rabbitmq.queue.receiver import Receiver, ReceiverSettings

NAME = "rabbitmq_queue"
FOLDER = "sparkonce-queue"

_FIRST_WAIT_S = 10.0
"""The longest wait for messages that are already in the queue when the query starts, in seconds."""

Position = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueOptions:
    """The settings of a source; see `read_rabbitmq_queue`. `files` gives access to the query's checkpoint."""

    files: CheckpointFiles
    consumer: ConsumerSettings
    receiver: ReceiverSettings
    most: int | None
    partitions: int

    def for_tasks(self) -> QueueOptions:
        """Returns the settings without the password, because tasks do not connect to a server."""
        server = replace(self.consumer.server, password="")
        return replace(self, consumer=replace(self.consumer, server=server))

    def segments(self) -> Segments:
        return Segments(self.files.inside(FOLDER).inside(quote(self.consumer.queue, safe="")))


@dataclass
class QueuePartition(InputPartition):  # type: ignore[misc]
    """A partition of a batch: some of its segments, in order."""

    numbers: list[int]


def source_of(options: QueueOptions) -> type[DataSource]:
    """Returns a data source with these settings, under the name `NAME`.

    Spark pickles the data source, so its options contain no secret. The planning process needs the password, but does
    not pickle the password for tasks: neither in the reader, nor in the source once the reader is created.
    """

    class RabbitMQQueueSource(DataSource):  # type: ignore[misc]
        @classmethod
        def name(cls) -> str:
            return NAME

        def schema(self) -> str:
            return SPARK_SCHEMA

        def streamReader(self, schema: object) -> QueueReader:  # noqa: ARG002, N802 - Spark's
            nonlocal options
            reader, options = QueueReader(options), options.for_tasks()
            return reader

    return RabbitMQQueueSource


class QueueReader(Limited, DataSourceStreamReader):  # type: ignore[misc]
    """Plans batches and receives messages on the driver, and reads the batches' partitions in tasks."""

    def __init__(self, options: QueueOptions) -> None:
        super().__init__(options.most)
        self._options = options
        self._identity = ""
        self._target: int | None = None
        self._position = 0
        self._receiver: Receiver | None = None
        self._consumer: QueueConsumer | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Leaves out the thread and the password, because tasks only read stored messages."""
        return {**self.__dict__, "_options": self._options.for_tasks(), "_receiver": None, "_consumer": None}

    def initialOffset(self) -> Position:  # noqa: N802 - Spark's
        return self._at(0)

    def latestOffset(self, start: Position | None = None, limit: Any = None) -> Position:  # noqa: N802 - Spark's
        """Returns the position up to which the next batch reads; the batch's start if nothing is new.

        Spark before 4.2 does not pass the start.
        """
        receiver, consumer = self._receiving()
        consumer.check()
        begin = max(self._position, receiver.begin()) if start is None else start[NEXT]
        end = receiver.end(begin, self.most_rows(limit))
        self._position = end if self._target is None else max(begin, min(end, self._target))
        return self._at(self._position)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's
        """Records the newest message so far; the query reads up to there. Spark 4.2 and newer call this."""
        receiver, consumer = self._receiving()
        consumer.check()
        self._target = receiver.newest()

    def partitions(self, start: Position, end: Position) -> list[QueuePartition]:
        """Returns the partitions of a batch, which are always the same for the same positions."""
        if {start[QUEUE], end[QUEUE]} != {self._known()}:
            raise CheckpointMismatchError(
                f"The messages in {self._options.segments().files.location} belong to another query.",
                next_step=RESTORE,
            )
        self._position = end[NEXT]
        numbers = list(range(start[NEXT], end[NEXT]))
        count = min(len(numbers), self._options.partitions)
        bounds = [len(numbers) * part // count for part in range(count)] + [len(numbers)] if count else []
        return [QueuePartition(numbers[at:to]) for at, to in pairwise(bounds)]

    def read(self, partition: QueuePartition) -> Iterator[pa.RecordBatch]:
        segments = self._options.segments()
        for number in partition.numbers:
            yield from segments.read(number).table().to_batches()

    def stop(self) -> None:
        """Closes the connection. Unacknowledged messages return to the queue."""
        if self._consumer is not None:
            self._consumer.stop()

    def _at(self, number: int) -> Position:
        return {QUEUE: self._known(), NEXT: number}

    def _known(self) -> str:
        if not self._identity:
            self._identity = self._options.segments().identity(identified_by(self._options.receiver.identify))
        return self._identity

    def _receiving(self) -> tuple[Receiver, QueueConsumer]:
        if self._receiver is None or self._consumer is None:
            from sparkonce_rabbitmq.queue.consumer import QueueConsumer
            from sparkonce_rabbitmq.queue.receiver import Receiver

            options = self._options
            progress = Progress(options.files, self._known())
            self._receiver = Receiver(options.segments(), progress, options.receiver)
            self._consumer = QueueConsumer(options.consumer, self._receiver)
            self._consumer.start()
            self._consumer.wait_quiet(_FIRST_WAIT_S)
        return self._receiver, self._consumer
