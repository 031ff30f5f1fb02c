"""Spark's side of RabbitMQ streams: a streaming source that uses Spark's Python data source API, with Arrow batches.

Spark requests positions from a Python process on the driver, and writes them to the query's checkpoint before a batch
runs. Tasks read the partitions of a batch, one for each stream.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from sparkonce.errors import OutageError
from sparkonce.session import Limited
from sparkonce_rabbitmq.server import RabbitMQ

if TYPE_CHECKING:
    import pyarrow as pa

    from sparkonce_rabbitmq.stream.asking import StreamAsker
    from sparkonce_rabbitmq.stream.positions import Positions, StreamRange

logger = logging.getLogger("sparkonce")

NAME = "rabbitmq_stream"
SCHEMA = "stream string, offset long, timestamp timestamp, value binary"
AMQP_SCHEMA = f"{SCHEMA}, properties map<string, string>, application_properties map<string, string>"
OPTION = "source"
"""The option that contains a whole `StreamOptions`."""

_BRIEF_S = 2.0
"""The driver's longest wait for a server that has responded before, in seconds.

After that, the driver tries again at Spark's next call, so that the query can be stopped between the attempts.
"""

_TASK_PATIENCE_S = 30.0
"""A task's longest wait for the server, in seconds. After that, the driver waits, and writes the batch again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOptions:
    """The settings of a source, as passed in an option; see `read_rabbitmq_stream`.

    Attributes:
        streams: The streams, or one super stream.
        starting: Where the query starts in each stream: a word, an offset, or a time in ISO format. The key ``""``
            stands for all streams.
    """

    server: dict[str, Any]
    streams: tuple[str, ...]
    super_stream: bool
    starting: dict[str, str | int]
    most: int | None
    amqp: bool
    offset_name: str
    patience_s: float
    accept_lost: dict[str, int]

    def text(self) -> str:
        return json.dumps({name: getattr(self, name) for name in self.__slots__})

    @classmethod
    def parse(cls, text: str) -> StreamOptions:
        known = json.loads(text)
        return cls(**{**known, "streams": tuple(known["streams"])})

    def begin(self, stream: str, *, is_added: bool = False) -> str | int | datetime:
        """Returns where the query starts in a stream. A stream that was added later is read from its beginning."""
        given = self.starting.get(stream, "earliest" if is_added else self.starting.get("", "earliest"))
        if isinstance(given, int) or given in ("earliest", "latest"):
            return given
        return datetime.fromisoformat(given)


@dataclass
class StreamPartition(InputPartition):  # type: ignore[misc]
    """A partition of a batch."""

    part: StreamRange


class RabbitMQStreamSource(DataSource):  # type: ignore[misc]
    """The data source of `read_rabbitmq_stream`."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> str:
        return AMQP_SCHEMA if StreamOptions.parse(self.options[OPTION]).amqp else SCHEMA

    def streamReader(self, schema: object) -> StreamReader:  # noqa: ARG002, N802 - Spark's
        return StreamReader(StreamOptions.parse(self.options[OPTION]))


class StreamReader(Limited, DataSourceStreamReader):  # type: ignore[misc]
    """Plans batches on the driver, and reads their partitions in tasks. Spark pickles the unused reader."""

    def __init__(self, options: StreamOptions) -> None:
        super().__init__(options.most)
        self._options = options
        self._asked: StreamAsker | None = None
        self._streams: tuple[str, ...] = ()
        self._begin: Positions | None = None
        self._position: Positions | None = None
        self._target: Positions | None = None
        self._newest: Positions | None = None
        self._answered_at: float | None = None
        self._is_compared = False

    def initialOffset(self) -> Positions:  # noqa: N802 - Spark's
        """Returns the position at which the query starts, which is always the same within a process."""
        if self._begin is None:
            self._begin = self._since_begin({})
        return self._begin

    def latestOffset(self, start: Positions | None = None, limit: Any = None) -> Positions:  # noqa: N802 - Spark's
        """Returns the position up to which the next batch reads; the batch's start if nothing is new.

        Spark before 4.2 does not pass the start, which is then the end of the batch for which Spark last called
        `partitions`.
        """
        known = start if start is not None else self._position if self._position is not None else self.initialOffset()
        try:
            self._asker(_BRIEF_S if self._is_patient() else None)
            begun = self._since_begin(known)
            ends = self._asker().ends(self._all_streams()) if self._target is None else self._target
            found = self._asker().next_position(begun, ends, self.most_rows(limit))
        except OutageError as error:
            if not self._is_patient():
                raise
            logger.warning("%s", error)
            return known
        finally:
            self._asker(self._options.patience_s)
        self._newest, self._answered_at, self._position = ends, time.monotonic(), found
        return found

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's
        """Records each stream's end offset; the query reads up to there. Spark 4.2 and newer call this."""
        self._target = self._asker().ends(self._all_streams())

    def reportLatestOffset(self) -> Positions | None:  # noqa: N802 - Spark's
        """Returns the end offsets of the streams as of the last lookup, for the query's progress report."""
        return self._newest

    def partitions(self, start: Positions, end: Positions) -> list[StreamPartition]:
        """Returns the partitions of a batch. After a restart, Spark passes positions from the checkpoint."""
        from sparkonce_rabbitmq.stream.positions import ranges_of

        found = ranges_of(start, end)
        if found and not self._is_compared:
            self._asker().compare({part.stream: end[part.stream] for part in found})
            self._is_compared = True
        self._position = end
        return [StreamPartition(part) for part in found]

    def read(self, partition: StreamPartition) -> Iterator[pa.RecordBatch]:
        from sparkonce_rabbitmq.stream.reading import RangeReader

        part = partition.part
        reader = RangeReader(
            RabbitMQ(**self._options.server),
            part,
            patience_s=min(_TASK_PATIENCE_S, self._options.patience_s),
            accepted=self._options.accept_lost.get(part.stream, 0),
        )
        if not self._options.amqp:
            return reader.batches()
        from sparkonce_rabbitmq.stream.chunks import with_sections

        return map(with_sections, reader.batches())

    def commit(self, end: Positions) -> None:
        """Stores offsets on the server. Spark calls this when it plans the batch after this one."""
        if self._options.offset_name:
            self._asker().store(end, self._options.offset_name)

    def stop(self) -> None:
        if self._asked is not None:
            self._asked.close()

    def _asker(self, patience_s: float | None = None) -> StreamAsker:
        from sparkonce_rabbitmq.stream.asking import StreamAsker

        if self._asked is None:
            self._asked = StreamAsker(RabbitMQ(**self._options.server), patience_s=self._options.patience_s)
        self._asked.patience_s = patience_s or self._asked.patience_s
        return self._asked

    def _all_streams(self) -> tuple[str, ...]:
        if not self._streams:
            options = self._options
            self._streams = self._asker().partitions(options.streams[0]) if options.super_stream else options.streams
        return self._streams

    def _since_begin(self, known: Positions) -> Positions:
        """Returns a position extended by the streams that it does not include yet."""
        new = [stream for stream in self._all_streams() if stream not in known]
        begins = {stream: self._options.begin(stream, is_added=bool(known)) for stream in new}
        return known | {stream: self._asker().begin(stream, begin) for stream, begin in begins.items()}

    def _is_patient(self) -> bool:
        """Returns True if the server responded to this process recently enough that an outage is still tolerated."""
        return self._answered_at is not None and time.monotonic() - self._answered_at < self._options.patience_s
