"""Messages with identity numbers, some of which are invalid, and some of which are repeated."""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, ClassVar

import fastavro

from sparkonce_lab.kafka import Record
from tryout.checkpoint import Batch
from tryout.sample import CLOSING, Message, Outcome, Row, of_sample, started_ms, text_of
from tryout.windows import into_windows, milliseconds

SOURCE, TARGET = "flink-identify", "suibianfade"
PARTITIONS = 5
STEP_MS = 100
CLOSING_MS = 40 * 60 * 1000
"""The time of the closing records: far enough in the future to test a wrong clock, but accepted by a broker."""
SCHEMA = {
    "type": "record",
    "name": "Message",
    "fields": [
        {"name": "id", "type": "int"},
        {"name": "name", "type": ["null", "string"], "default": None},
        {"name": "identifyNumber", "type": ["null", "string"], "default": None},
    ],
}
MESSAGE = json.dumps(SCHEMA)
_HEADER = struct.Struct(">bI")
"""Confluent's wire format: a zero byte, and the schema's id in four bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EtlSample:
    """Two minutes of messages, ten per second.

    Attributes:
        clock: The example's ``--clock``.
        count: The number of messages.
        window: The example's ``--window``.
    """

    clock: str = "record"
    count: int = 1200
    window: str = "20 seconds"
    sources: ClassVar[Mapping[str, int]] = {SOURCE: PARTITIONS}
    target: ClassVar[str] = TARGET
    options: ClassVar[Sequence[str]] = ("--checkpoint-every", "5", "--lateness", "5 seconds")
    registry: ClassVar[bool] = True
    began_ms: int = field(default_factory=lambda: started_ms(20_000))

    def messages(self, registry: str | None) -> Iterator[Message]:
        """Yields the messages. Of 15, two have a number of 15 digits and one has none. Every ninth repeats a number."""
        for number in range(self.count):
            person: dict[str, Any] = {"id": number, "name": None if number % 7 == 0 else f"name {number}"}
            person["identifyNumber"] = _identity(number - 6 if number % 9 == 8 else number)
            yield self._message(registry, number, person, self.began_ms + number * STEP_MS)

    def closing(self, registry: str | None) -> Iterator[Message]:
        """Yields a closing message, with a time that is later than all others and than the current time."""
        person = {"id": -1, "name": "closing", "identifyNumber": "c" * 18}
        at_ms = self.began_ms + self.count * STEP_MS + CLOSING_MS
        yield self._message(registry, 0, person, at_ms)._replace(key=CLOSING)

    def outcome(self, sources: Mapping[str, Sequence[Record]], batches: Sequence[Batch]) -> Outcome:
        """Expects each number of length 18 once in each window that has closed."""
        kept = [record for record in sources[SOURCE] if len(identity_number(record) or "") == 18]
        windows = into_windows(SOURCE, kept, batches, time_ms=self._time_ms, size_ms=milliseconds(self.window))
        rows = {
            Row(text_of(start), identity_number(record) or ""): windows.closed_by[start]
            for start, records in windows.closed.items()
            for record in records
        }
        return Outcome(
            rows=rows,
            unread=of_sample(windows.unread),
            waiting=sum(map(of_sample, windows.open.values())),
            late=len(windows.late),
        )

    def _time_ms(self, record: Record, batch: Batch) -> int:
        return min(record.timestamp_ms, batch.timestamp_ms) if self.clock == "record" else batch.timestamp_ms

    def _message(self, registry: str | None, number: int, person: Mapping[str, Any], at_ms: int) -> Message:
        value = io.BytesIO()
        value.write(_HEADER.pack(0, _register(registry or "")))
        fastavro.schemaless_writer(value, SCHEMA, person)
        return Message(SOURCE, number % PARTITIONS, value.getvalue(), None, at_ms)


def identity_number(record: Record) -> str | None:
    """Returns the identity number of the message in a source record."""
    value = io.BytesIO((record.value or b"")[_HEADER.size :])
    message: dict[str, Any] = fastavro.schemaless_reader(value, SCHEMA, None)
    return message["identifyNumber"]


def _identity(number: int) -> str | None:
    if number % 15 == 14:
        return None
    return f"{number:015d}" if number % 15 in (3, 8) else f"{number:018d}"


@cache
def _register(registry: str) -> int:
    """Returns the id of the message's schema. The first call registers the schema."""
    from confluent_kafka.schema_registry import Schema, SchemaRegistryClient

    client = SchemaRegistryClient({"url": registry})
    return int(client.register_schema(f"{SOURCE}-value", Schema(MESSAGE, "AVRO")))
