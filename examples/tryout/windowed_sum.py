"""Payments of a few customers. Some of them are late, and some are too late."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import ClassVar

from sparkonce_lab.kafka import Record
from tryout.checkpoint import Batch
from tryout.sample import CLOSING, Message, Outcome, Row, iso_of, of_sample, started_ms, text_of
from tryout.windows import into_windows, milliseconds

SOURCE, TARGET = "payments", "sums"
PARTITIONS = 4
STEP_MS = 100
LATE_MS = 15_000
CUSTOMERS = 20
CLOSING_MS = 10 * 60 * 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class SumSample:
    """Three minutes of payments, ten per second.

    Attributes:
        clock: The example's ``--clock``.
        count: The number of payments.
        window: The example's ``--window``.
    """

    clock: str = "event"
    count: int = 1800
    window: str = "10 seconds"
    sources: ClassVar[Mapping[str, int]] = {SOURCE: PARTITIONS}
    target: ClassVar[str] = TARGET
    registry: ClassVar[bool] = False
    began_ms: int = field(default_factory=lambda: started_ms(10_000))

    @property
    def options(self) -> Sequence[str]:
        """Options that keep the test short. Event time runs faster in the sample, but processing time does not."""
        return ("--checkpoint-every", "2", *(("--lateness", "1 second") if self.clock == "processing" else ()))

    def messages(self, registry: str | None) -> Iterator[Message]:
        """Yields the payments. Every 19th is 15 s late. In the second half, every 97th belongs to the first window."""
        for number in range(self.count):
            at_ms = self.began_ms + number * STEP_MS
            if number % 19 == 18:
                at_ms = max(self.began_ms, at_ms - LATE_MS)
            if number % 97 == 50 and number > self.count // 2:
                at_ms = self.began_ms
            yield _message(number, at_ms)

    def closing(self, registry: str | None) -> Iterator[Message]:
        """Yields a payment that is later than all others."""
        yield _message(0, self.began_ms + self.count * STEP_MS + CLOSING_MS)._replace(key=CLOSING)

    def outcome(self, sources: Mapping[str, Sequence[Record]], batches: Sequence[Batch]) -> Outcome:
        """Expects the sum of each customer in each window that has closed."""
        windows = into_windows(
            SOURCE, sources[SOURCE], batches, time_ms=self._time_ms, size_ms=milliseconds(self.window)
        )
        rows: dict[Row, int] = {}
        for start, records in windows.closed.items():
            amounts: dict[str, list[int]] = defaultdict(list)
            for record in records:
                payment = json.loads(record.value or b"")
                amounts[payment["customer"]].append(payment["amount"])
            for customer, each in amounts.items():
                value = {"window": text_of(start), "sum": sum(each), "payments": len(each)}
                rows[Row(customer, json.dumps(value, separators=(",", ":")))] = windows.closed_by[start]
        return Outcome(
            rows=rows,
            unread=of_sample(windows.unread),
            waiting=sum(map(of_sample, windows.open.values())),
            late=len(windows.late),
        )

    def _time_ms(self, record: Record, batch: Batch) -> int:
        if self.clock == "processing":
            return batch.timestamp_ms
        at = datetime.fromisoformat(json.loads(record.value or b"")["at"].replace("Z", "+00:00"))
        return round(at.timestamp() * 1000)


def _message(number: int, at_ms: int) -> Message:
    payment = {"customer": f"customer-{number % CUSTOMERS}", "amount": number % 97 + 1, "at": iso_of(at_ms)}
    return Message(SOURCE, number % PARTITIONS, json.dumps(payment).encode())
