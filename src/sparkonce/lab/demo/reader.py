"""A read_committed reader that looks on the whole time."""

from __future__ import annotations

import threading
import time
from contextlib import closing
from typing import Any

from sparkonce.lab.demo.count import Cell, decode_row
from sparkonce.lab.demo.errors import DemoFailedError
from sparkonce.lab.demo.orders import PARTITIONS

Place = tuple[int, int, bytes]
"""Partition, offset and value of a record."""

_POLL_S = 0.1
_JOIN_S = 10.0


class LiveReader:
    """Reads a topic from its beginning, from a thread of its own, and counts.

    Args:
        bootstrap: ``bootstrap.servers``.
        topic: The query's output.

    Attributes:
        seen: Every record so far, in the order seen.
        doubled: How many of them came again.
    """

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.seen: list[Place] = []
        self.doubled = 0
        self._bootstrap = bootstrap
        self._topic = topic
        self._cells: set[Cell] = set()
        self._error: BaseException | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"reader of {topic}", daemon=True)

    def start(self) -> None:
        """Begins to read."""
        self._thread.start()

    def check(self) -> None:
        """Raises what went wrong in the thread, if anything did."""
        if self._error is not None:
            raise DemoFailedError(f"{self._topic} cannot be read: {self._error}") from self._error

    def wait_for(self, count: int, timeout_s: float) -> None:
        """Waits until so many records are seen, at most so many seconds."""
        give_up_at = time.monotonic() + timeout_s
        while len(self.seen) < count and time.monotonic() < give_up_at:
            self.check()
            time.sleep(_POLL_S)

    def stop(self) -> None:
        """Stops reading. May be called again."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(_JOIN_S)
        self.check()

    def _run(self) -> None:
        from confluent_kafka import Consumer, TopicPartition

        settings = {
            "bootstrap.servers": self._bootstrap,
            "group.id": "sparkonce-demo",  # required, and not used: partitions are assigned by hand
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": 100,
        }
        try:
            with closing(Consumer(settings)) as consumer:
                consumer.assign([TopicPartition(self._topic, partition, 0) for partition in range(PARTITIONS)])
                while not self._stopping.is_set():
                    for message in consumer.consume(1000, timeout=_POLL_S):
                        self._take(message)
        except Exception as error:  # noqa: BLE001 - whatever it is, `check` raises it where it is seen
            self._error = error

    def _take(self, message: Any) -> None:
        if message.error() is not None:
            raise DemoFailedError(str(message.error()))
        cell, _ = decode_row(message.value())
        self.doubled += cell in self._cells
        self._cells.add(cell)
        self.seen.append((message.partition(), message.offset(), message.value()))
