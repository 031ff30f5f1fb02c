"""Rows with a known correct result, and the feeder that writes them to the source topic.

Rows are numbered within each key, and summed by key and window of event time. A `Workload` and the number of rows
determine everything, including the expected output.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparkonce_lab.errors import RunFailedError
from sparkonce_lab.history import ROWS
from sparkonce_lab.rig.process import Background

if TYPE_CHECKING:
    import numpy.typing as npt

    Numbers = npt.NDArray[np.int64]


CHUNK_ROWS = 2_000
"""Rows are generated and written in chunks of this size. The last chunk may be incomplete."""
CLOSING_KEY = -1
"""The key of rows that only advance the watermark."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """The rows that are written to the source.

    Attributes:
        seed: The same seed generates the same rows.
        partitions: The number of the source's partitions. Key k is in partition k modulo this number.
        keys: The number of keys.
        skew: The exponent of the keys' frequencies. At 0, all keys are equally frequent; at 1, they follow Zipf's law.
        rows_per_second: The rate at which rows are written. Event time passes at the same rate.
        window_ms: The width of the windows of event time, in milliseconds.
        started_ms: The event time of the first row, in milliseconds since the epoch; a multiple of ``window_ms``.
    """

    seed: int
    partitions: int = 4
    keys: int = 64
    skew: float = 0.8
    rows_per_second: int = 2_000
    window_ms: int = 10_000
    started_ms: int = 1_700_000_000_000

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def event_ms(self, row: int) -> int:
        return self.started_ms + row * 1000 // self.rows_per_second

    def chunks(self, rows: int | None = None) -> Iterator[pa.RecordBatch]:
        """Yields the rows in order, in batches of at most `CHUNK_ROWS` rows; without end if ``rows`` is None.

        The columns are key, number, amount and event_ms.
        """
        weights = 1.0 / np.arange(1, self.keys + 1) ** self.skew
        # Rank the keys in random order, so that the frequent keys are not all in the first partitions.
        ranks = np.random.default_rng([self.seed, 0]).permutation(self.keys)
        next_number = np.zeros(self.keys, dtype=np.int64)
        begun = 0
        while rows is None or begun < rows:
            dice = np.random.default_rng([self.seed, 1, begun])
            size = CHUNK_ROWS
            keys = ranks[dice.choice(self.keys, size=size, p=weights / weights.sum())].astype(np.int64)
            amounts = dice.integers(-1_000, 10_000, size=size, dtype=np.int64)
            if rows is not None and begun + size > rows:
                size = rows - begun
                keys, amounts = keys[:size], amounts[:size]
            numbers = next_number[keys] + _times_before(keys)
            next_number += np.bincount(keys, minlength=self.keys)
            at = self.started_ms + (begun + np.arange(size, dtype=np.int64)) * 1000 // self.rows_per_second
            columns = {"key": keys, "number": numbers, "amount": amounts, "event_ms": at}
            yield pa.record_batch({name: pa.array(values) for name, values in columns.items()})
            begun += size

    def expected(self, rows: int) -> pa.Table:
        """Returns the expected output for this many rows, with all windows closed; see `sparkonce_lab.history.ROWS`."""
        batches = list(self.chunks(rows))
        if not batches:
            return ROWS.empty_table()
        written = pa.Table.from_batches(batches)
        single = pa.table(
            {
                "kind": pa.repeat("row", len(written)),
                "key": written["key"],
                "number": written["number"],
                "amount": written["amount"],
                "rows": pa.repeat(pa.scalar(1, pa.int64()), len(written)),
            }
        ).cast(ROWS)
        at = written["event_ms"].to_numpy()
        windows = written.append_column("window", pa.array(at // self.window_ms * self.window_ms))
        sums = windows.group_by(["key", "window"]).aggregate([("amount", "sum"), ("amount", "count")])
        summed = pa.table(
            {
                "kind": pa.repeat("sum", len(sums)),
                "key": sums["key"],
                "number": sums["window"],
                "amount": sums["amount_sum"],
                "rows": pc.cast(sums["amount_count"], pa.int64()),
            }
        ).cast(ROWS)
        return pa.concat_tables([single, summed])


def _times_before(keys: Numbers) -> Numbers:
    """Returns, for each position, how often its key occurs at earlier positions."""
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
    lengths = np.diff(np.r_[starts, len(ordered)])
    found = np.empty(len(keys), dtype=np.int64)
    found[order] = np.arange(len(ordered)) - np.repeat(starts, lengths)
    return found


_ROUND_S = 0.05
_ROUND_MS_AT_MOST = 200
"""The longest event time of one round, in milliseconds. It is below the watermark's delay, so that no row is late."""
_FLUSH_S = 180.0
"""The longest wait for an outage of the source's broker, in seconds. Rows must be neither lost nor duplicated."""
_PAUSE_EVERY_S = (8.0, 20.0)
_PAUSE_S = (1.5, 4.0)
_CLOSING_AHEAD_MS = 3_600_000
Row = tuple[int, int, int, int]


class Feeder(Background):
    """Writes rows until it is stopped, and counts the acknowledged rows in `written`.

    Rows are written in rounds of a fraction of a second of event time. A round is acknowledged in all partitions before
    the next one begins, so partitions cannot drift apart by more than the query's watermark delay. The feeder sometimes
    pauses for seconds, which leaves the query with nothing to read.
    """

    def __init__(self, settings: Mapping[str, Any], topic: str, workload: Workload) -> None:
        from confluent_kafka import Producer

        super().__init__(f"rows to {topic}", _FLUSH_S + 1)
        self.written = 0
        self._topic = topic
        self._workload = workload
        self._producer = Producer(
            {
                **settings,
                "enable.idempotence": True,
                "message.timeout.ms": int(_FLUSH_S * 1000),
                "linger.ms": 1,
                "log_level": 0,  # Brokers are taken down on purpose.
            }
        )
        self._delivery_error: Any = None

    def failed(self, error: BaseException) -> BaseException:
        return RunFailedError(
            f"No rows can be written to {self._topic}: {error}", next_step="Check that its Kafka answers."
        )

    def close_windows(self) -> None:
        """Writes one row far in the future into each partition, so that the watermark passes all earlier windows."""
        at = self._workload.event_ms(self.written) + _CLOSING_AHEAD_MS
        for partition in range(self._workload.partitions):
            self._send(partition, (CLOSING_KEY, partition, 0, at))
        self._flush()

    def closed_at_ms(self) -> int:
        """Returns the watermark at which all windows have been emitted, in milliseconds since the epoch."""
        return self._workload.event_ms(self.written) + self._workload.window_ms

    def work(self) -> None:
        rate = self._workload.rows_per_second
        rows = (
            row
            for chunk in self._workload.chunks()
            for row in zip(*(column.to_pylist() for column in chunk.columns), strict=True)
        )
        dice = random.Random(self._workload.seed)  # noqa: S311 - for pauses, not for secrets
        most = max(1, rate * _ROUND_MS_AT_MOST // 1000)
        began = time.monotonic()
        pause_at = began + dice.uniform(*_PAUSE_EVERY_S)
        while not self.stopping.wait(_ROUND_S):
            if time.monotonic() >= pause_at:
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

    def _send(self, partition: int, row: Row) -> None:
        key, *rest = row
        self._producer.produce(
            self._topic, key=str(key), value=",".join(map(str, rest)), partition=partition, on_delivery=self._delivered
        )

    def _flush(self) -> None:
        left = self._producer.flush(_FLUSH_S)
        if left or self._delivery_error is not None:
            raise RunFailedError(
                f"{self._topic} did not accept its rows: {self._delivery_error or f'{left} not acknowledged'}.",
                next_step="Check whether the source's brokers are up, and run it again.",
            )

    def _delivered(self, error: Any, _: Any) -> None:
        if error is not None:
            self._delivery_error = error
