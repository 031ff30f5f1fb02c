"""Writes a workload to the source's topic, until it is told to stop."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

from sparkonce.lab.errors import VerifyFailedError
from sparkonce.lab.workload import CLOSING_KEY, Workload

_ROUND_S = 0.05
_ROUND_MS_AT_MOST = 200
"""Of event time in one round. Less than the query's watermark delay: no row may come too late."""
_FLUSH_S = 180.0
"""An outage of the source's broker is waited out: nothing of the workload may be lost or come twice."""
_PAUSE_EVERY_S = (8.0, 20.0)
_PAUSE_S = (1.5, 4.0)
_CLOSING_AHEAD_MS = 3_600_000

Row = tuple[int, int, int, int]


class Feeder:
    """Writes rows from a thread of its own.

    Rows are written in rounds of a fraction of a second of event time, and a round is acknowledged in all partitions
    before the next begins: partitions cannot drift apart by more than the query's watermark delay. Now and then it
    pauses for seconds, so that the query has nothing to read.

    Args:
        settings: librdkafka's, with ``bootstrap.servers``.
        topic: With as many partitions as the workload has.
        workload: What is written.

    Attributes:
        written: How many rows have been acknowledged.
    """

    def __init__(self, settings: Mapping[str, Any], topic: str, workload: Workload) -> None:
        from confluent_kafka import Producer

        self.written = 0
        self._topic = topic
        self._workload = workload
        self._producer = Producer(
            {
                **settings,
                "enable.idempotence": True,
                "message.timeout.ms": int(_FLUSH_S * 1000),
                "linger.ms": 1,
                "log_level": 0,  # brokers go away here, and that is nothing to tell
            }
        )
        self._delivery_error: Any = None
        self._error: BaseException | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"rows to {topic}", daemon=True)

    def start(self) -> None:
        """Begins to write."""
        self._thread.start()

    def check(self) -> None:
        """Raises what went wrong in the thread, if anything did."""
        if self._error is not None:
            raise VerifyFailedError(f"no rows can be written to {self._topic}: {self._error}") from self._error

    def stop(self) -> None:
        """Stops after the round at work. May be called again."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(_FLUSH_S + 1)
        self.check()

    def close_windows(self) -> None:
        """Writes one row far ahead into each partition, so that the watermark passes all windows before."""
        at = self._workload.event_ms(self.written) + _CLOSING_AHEAD_MS
        for partition in range(self._workload.partitions):
            self._send(partition, (CLOSING_KEY, partition, 0, at))
        self._flush()

    def closed_at_ms(self) -> int:
        """The watermark at which every window has been given out."""
        return self._workload.event_ms(self.written) + self._workload.window_ms

    def _run(self) -> None:
        try:
            self._feed()
        except Exception as error:  # noqa: BLE001 - whatever it is, `check` raises it where it is seen
            self._error = error

    def _feed(self) -> None:
        rate = self._workload.rows_per_second
        rows = self._rows()
        dice = random.Random(self._workload.seed)  # noqa: S311 - pauses, nothing secret
        most = max(1, rate * _ROUND_MS_AT_MOST // 1000)
        began = time.monotonic()
        pause_at = began + dice.uniform(*_PAUSE_EVERY_S)
        while not self._stopping.wait(_ROUND_S):
            if time.monotonic() >= pause_at:
                pause_s = dice.uniform(*_PAUSE_S)
                self._stopping.wait(pause_s)
                began += pause_s
                pause_at = time.monotonic() + dice.uniform(*_PAUSE_EVERY_S)
            due = int((time.monotonic() - began) * rate) - self.written
            count = min(due, most)
            for _ in range(count):
                row = next(rows)
                self._send(row[0] % self._workload.partitions, row)
            self._flush()
            self.written += max(count, 0)

    def _rows(self) -> Iterator[Row]:
        for chunk in self._workload.chunks():
            yield from zip(*(column.to_pylist() for column in chunk.columns), strict=True)

    def _send(self, partition: int, row: Row) -> None:
        key, *rest = row
        self._producer.produce(
            self._topic,
            key=str(key),
            value=",".join(map(str, rest)),
            partition=partition,
            on_delivery=self._delivered,
        )

    def _flush(self) -> None:
        left = self._producer.flush(_FLUSH_S)
        if left or self._delivery_error is not None:
            raise VerifyFailedError(
                f"{self._topic} did not take its rows: {self._delivery_error or f'{left} not acknowledged'}"
            )

    def _delivered(self, error: Any, _: Any) -> None:
        if error is not None:
            self._delivery_error = error
