"""Writes a workload to the source's topic."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Mapping
from typing import Any

from sparkonce_lab.errors import RunFailedError
from sparkonce_lab.rig.background import Background
from sparkonce_lab.workload import CLOSING_KEY, Workload

_ROUND_S = 0.05
_ROUND_MS_AT_MOST = 200
"""The most event time of one round. It is less than the watermark's delay: no row may come too late."""
_FLUSH_S = 180.0
"""An outage of the source's broker is waited out: nothing of the workload may be lost or come twice."""
_PAUSE_EVERY_S = (8.0, 20.0)
_PAUSE_S = (1.5, 4.0)
_CLOSING_AHEAD_MS = 3_600_000

Row = tuple[int, int, int, int]


class Feeder(Background):
    """Writes rows until it is stopped.

    Rows are written in rounds of a fraction of a second of event time, and a round is acknowledged in all partitions
    before the next begins: partitions cannot drift apart by more than the query's watermark delay.

    Args:
        settings: librdkafka's, with ``bootstrap.servers``.
        topic: With as many partitions as the workload has.
        workload: The rows.
        pauses: Whether it now and then pauses for seconds, so that the query has nothing to read.

    Attributes:
        written: How many rows have been acknowledged.
    """

    def __init__(self, settings: Mapping[str, Any], topic: str, workload: Workload, *, pauses: bool = True) -> None:
        from confluent_kafka import Producer

        super().__init__(f"rows to {topic}", _FLUSH_S + 1)
        self.written = 0
        self._topic = topic
        self._workload = workload
        self._pauses = pauses
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

    def failed(self, error: BaseException) -> BaseException:
        """Returns an error that names the topic."""
        return RunFailedError(
            f"No rows can be written to {self._topic}: {error}", next_step="Check that its Kafka answers."
        )

    def close_windows(self) -> None:
        """Writes one row far ahead into each partition, so that the watermark passes all windows before."""
        at = self._workload.event_ms(self.written) + _CLOSING_AHEAD_MS
        for partition in range(self._workload.partitions):
            self._send(partition, (CLOSING_KEY, partition, 0, at))
        self._flush()

    def closed_at_ms(self) -> int:
        """Returns the watermark at which every window has come out, in milliseconds since the epoch."""
        return self._workload.event_ms(self.written) + self._workload.window_ms

    def work(self) -> None:
        """Writes until it is stopped."""
        rate = self._workload.rows_per_second
        rows = self._rows()
        dice = random.Random(self._workload.seed)  # noqa: S311 - pauses, nothing secret
        most = max(1, rate * _ROUND_MS_AT_MOST // 1000)
        began = time.monotonic()
        pause_at = began + dice.uniform(*_PAUSE_EVERY_S)
        while not self.stopping.wait(_ROUND_S):
            if self._pauses and time.monotonic() >= pause_at:
                pause_s = dice.uniform(*_PAUSE_S)
                self.stopping.wait(pause_s)
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
            raise RunFailedError(
                f"{self._topic} did not take its rows: {self._delivery_error or f'{left} not acknowledged'}.",
                next_step="See whether the source's brokers are up, and run it again.",
            )

    def _delivered(self, error: Any, _: Any) -> None:
        if error is not None:
            self._delivery_error = error
