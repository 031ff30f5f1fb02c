"""Orders and their payments. Some are sent twice, and some orders are paid too late or never."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, ClassVar

from sparkonce_lab.kafka import Record
from tryout.checkpoint import Batch
from tryout.sample import Message, Outcome, Row, iso_of, started_ms
from tryout.windows import NEVER_READ, reader

ORDERS, PAYMENTS, TARGET = "orders", "order-payments", "paid-orders"
KEYS = {ORDERS: "order_id", PAYMENTS: "payment_id"}
PARTITIONS = 4
STEP_MS = 1000
PAID_AFTER_MS = 5_000
PAID_TOO_LATE_AFTER_MS = 11 * 60 * 1000
SENT_AGAIN_AFTER_MS = 7_000
PAID_WITHIN = timedelta(minutes=10)


@dataclass(frozen=True, slots=True, kw_only=True)
class EnrichmentSample:
    """Orders over ten minutes, one per second, and their payments.

    Attributes:
        count: The number of orders.
    """

    count: int = 600
    sources: ClassVar[Mapping[str, int]] = {ORDERS: PARTITIONS, PAYMENTS: PARTITIONS}
    target: ClassVar[str] = TARGET
    options: ClassVar[Sequence[str]] = ("--checkpoint-every", "2")
    registry: ClassVar[bool] = False
    began_ms: int = field(default_factory=lambda: started_ms(STEP_MS))

    def messages(self, registry: str | None) -> Iterator[Message]:
        """Yields the messages in the order of their times."""
        timed = [each for number in range(self.count) for each in self._events(number)]
        for _, message in sorted(timed, key=lambda each: each[0]):
            yield message

    def closing(self, registry: str | None) -> Iterator[Message]:
        """Yields nothing, because a join emits a row as soon as it has both sides."""
        return iter(())

    def outcome(self, sources: Mapping[str, Sequence[Record]], batches: Sequence[Batch]) -> Outcome:
        """Expects each payment that was made within ten minutes of its order, joined with that order."""
        orders, payments = (_first_of_each(sources[topic], topic, key, batches) for topic, key in KEYS.items())
        rows: dict[Row, int] = {}
        for payment, paid_in in payments.values():
            order, ordered_in = orders.get(payment["order_id"], (None, 0))
            if order is None or not timedelta() <= _at(payment["paid_at"]) - _at(order["ordered_at"]) <= PAID_WITHIN:
                continue
            names = ("order_id", "customer", "amount", "payment_id", "method")
            value = {name: {**order, **payment}[name] for name in names}
            rows[Row(order["order_id"], json.dumps(value, separators=(",", ":")))] = max(ordered_in, paid_in)
        unread = sum(reader(topic, each, batches) == NEVER_READ for topic in KEYS for each in sources[topic])
        return Outcome(rows=rows, unread=unread, waiting=0)

    def _events(self, number: int) -> Iterator[tuple[int, Message]]:
        """Yields one order with its payment. Of 5 orders, one is sent twice and one is never paid.

        Of 6 payments, one is sent twice. Of 13 orders, one is paid late.
        """
        at_ms = self.began_ms + number * STEP_MS
        order_id = f"order-{number:05d}"
        order = {"customer": f"customer-{number % 50}", "amount": number % 97 + 1, "ordered_at": iso_of(at_ms)}
        ordered = Message(ORDERS, number % PARTITIONS, _json({"order_id": order_id, **order}))
        yield at_ms, ordered
        if number % 5 == 0:
            yield at_ms + SENT_AGAIN_AFTER_MS, ordered
        if number % 5 == 4:
            return
        paid_ms = at_ms + (PAID_TOO_LATE_AFTER_MS if number % 13 == 12 else PAID_AFTER_MS)
        payment = {"order_id": order_id, "method": ("card", "cash")[number % 2], "paid_at": iso_of(paid_ms)}
        paid = Message(PAYMENTS, number % PARTITIONS, _json({"payment_id": f"payment-{number:05d}", **payment}))
        yield paid_ms, paid
        if number % 6 == 0:
            yield paid_ms + SENT_AGAIN_AFTER_MS, paid


def _json(event: Mapping[str, Any]) -> bytes:
    return json.dumps(event).encode()


def _first_of_each(
    records: Sequence[Record], topic: str, key: str, batches: Sequence[Batch]
) -> dict[str, tuple[dict[str, Any], int]]:
    """Returns each event that was read, with the batch that read it first."""
    found: dict[str, tuple[dict[str, Any], int]] = {}
    for record in records:
        event, number = json.loads(record.value or b""), reader(topic, record, batches)
        if number != NEVER_READ:
            first = min(number, found.get(event[key], (event, number))[1])
            found[event[key]] = (event, first)
    return found


def _at(text: str) -> datetime:
    return datetime.fromisoformat(text.replace("Z", "+00:00"))
