"""The source: a topic of orders that never ends until it is told to."""

from __future__ import annotations

import json
import random
import threading
import time
from typing import Any, NamedTuple

from sparkonce.lab.demo.errors import DemoFailedError

PARTITIONS = 4
CUSTOMERS = 100
WINDOW_MS = 1000
WATERMARK_DELAY_MS = 1000
LATEST_MS = 300
"""How much an order may lag behind the one before it. Less than the watermark's delay: no order may come too late."""

CLOSING = "closing"
"""The customer of the orders that only move the watermark on."""

_CLOSING_AHEAD_MS = 3_600_000
_ROUND_S = 0.05
_ROUND_MS_AT_MOST = 100
_FLUSH_S = 20.0


class Order(NamedTuple):
    """One order. The amount is in cents, the time in milliseconds since the epoch."""

    customer: str
    amount: int
    event_ms: int

    def encode(self) -> bytes:
        """As the value of a record: JSON."""
        return json.dumps(self._asdict(), separators=(",", ":")).encode()

    @classmethod
    def decode(cls, value: bytes) -> Order:
        """The order in a record's value."""
        fields = json.loads(value)
        return cls(fields["customer"], fields["amount"], fields["event_ms"])


class Orders:
    """Writes orders to a topic from a thread of its own.

    Event time runs with the orders, not with the clock. Orders are written in rounds of at most 100 ms of event time,
    and a round is acknowledged in all partitions before the next begins: however slow the machine is, partitions
    cannot drift apart by more than the watermark's delay, and Spark drops no order as too late.

    Args:
        bootstrap: ``bootstrap.servers``.
        topic: With 4 partitions.
        rows_per_second: How many.
        seed: Makes customers, amounts and delays the same again.

    Attributes:
        written: How many have been acknowledged.
    """

    def __init__(self, bootstrap: str, topic: str, *, rows_per_second: int, seed: int) -> None:
        from confluent_kafka import Producer

        self.written = 0
        self._topic = topic
        self._rate = rows_per_second
        self._random = random.Random(seed)  # noqa: S311 - the same orders again, nothing secret
        self._started_ms = time.time_ns() // 1_000_000
        self._newest_ms = self._started_ms
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "linger.ms": 1,
                "log_level": 3,  # a coordinator that is still loading is nothing to tell
                "partitioner": "murmur2_random",
            }
        )
        self._delivery_error: Any = None
        self._error: BaseException | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"orders to {topic}", daemon=True)

    @property
    def newest_ms(self) -> int:
        """The event time of the newest order."""
        return self._newest_ms

    def start(self) -> None:
        """Begins to write."""
        self._thread.start()

    def check(self) -> None:
        """Raises what went wrong in the thread, if anything did."""
        if self._error is not None:
            raise DemoFailedError(f"no orders can be written to {self._topic}: {self._error}") from self._error

    def stop(self) -> None:
        """Stops after the round at work. May be called again."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(2 * _FLUSH_S)
        self.check()

    def close_windows(self) -> None:
        """Writes one order far ahead into each partition, so that the watermark passes all windows before."""
        closing = Order(CLOSING, 0, self._newest_ms + _CLOSING_AHEAD_MS)
        for partition in range(PARTITIONS):
            self._producer.produce(
                self._topic, key=CLOSING, value=closing.encode(), partition=partition, on_delivery=self._delivered
            )
        self._flush()

    def _run(self) -> None:
        try:
            began = time.monotonic()
            while not self._stopping.wait(_ROUND_S):
                due = int((time.monotonic() - began) * self._rate) - self.written
                self._write(min(due, max(1, self._rate * _ROUND_MS_AT_MOST // 1000)))
        except Exception as error:  # noqa: BLE001 - whatever it is, `check` raises it where it is seen
            self._error = error

    def _write(self, count: int) -> None:
        for number in range(self.written, self.written + count):
            due_ms = self._started_ms + number * 1000 // self._rate
            order = Order(
                f"customer-{self._random.randrange(CUSTOMERS):03d}",
                self._random.randrange(100, 20_000),
                due_ms - self._random.randrange(LATEST_MS),
            )
            self._newest_ms = max(self._newest_ms, order.event_ms)
            self._producer.produce(self._topic, key=order.customer, value=order.encode(), on_delivery=self._delivered)
        self._flush()
        self.written += count

    def _flush(self) -> None:
        left = self._producer.flush(_FLUSH_S)
        if left or self._delivery_error is not None:
            raise DemoFailedError(
                f"{self._topic} did not take its orders: {self._delivery_error or f'{left} not acknowledged'}"
            )

    def _delivered(self, error: Any, _: Any) -> None:
        if error is not None:
            self._delivery_error = error
