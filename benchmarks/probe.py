"""Writes rows at a steady rate in a separate process, and measures when a read_committed reader sees them.

``latency.py`` starts this program, which prints one line of JSON. Producer and reader use the clock of the same host.

Rows of the first and last seconds are checked but not timed. A query has to warm up. When no more rows arrive, Spark's
source delays the last ones by up to half a second per task, in a fetch that waits for more.
"""

from __future__ import annotations

import argparse
import json
import struct
import sys
import threading
import time

from confluent_kafka import Consumer, Producer, TopicPartition

SETTLE_S = 30.0
TAIL_S = 3
_TICKS_PER_S = 100
_ROW = struct.Struct(">Qd")


def main() -> int:
    given = _parse()
    seen: dict[int, float] = {}
    doubled = 0
    first, last = given.rate * given.warm_s, given.rate * (given.warm_s + given.measured_s)
    total = last + given.rate * TAIL_S
    reader = Consumer(
        {
            "bootstrap.servers": given.bootstrap,
            "group.id": "probe",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
        }
    )
    reader.assign([TopicPartition(given.target, number, 0) for number in range(given.partitions)])
    producing = threading.Thread(target=_produce, args=(given, total), daemon=True)
    producing.start()
    give_up_at = time.monotonic() + total / given.rate + SETTLE_S
    while len(seen) < total and time.monotonic() < give_up_at:
        for message in reader.consume(1000, 0.02):
            if message.error():
                continue
            now = time.time()
            number, produced = _ROW.unpack(message.value()[: _ROW.size])
            doubled += number in seen
            seen[number] = now - produced
    reader.close()
    counted = sorted(seen[number] * 1000 for number in seen if first <= number < last)
    print(
        json.dumps(
            {
                "rows": len(counted),
                "missing": total - len(seen),
                "doubled": doubled,
                "p50_ms": _quantile(counted, 0.50),
                "p99_ms": _quantile(counted, 0.99),
                "max_ms": _quantile(counted, 1.0),
            }
        )
    )
    return 0


def _produce(given: argparse.Namespace, total: int) -> None:
    producer = Producer({"bootstrap.servers": given.bootstrap, "linger.ms": 0})
    began = time.monotonic()
    for tick in range(total * _TICKS_PER_S // given.rate):
        time.sleep(max(0.0, began + tick / _TICKS_PER_S - time.monotonic()))
        each = given.rate // _TICKS_PER_S
        for number in range(tick * each, (tick + 1) * each):
            value = _ROW.pack(number, time.time()).ljust(given.row_bytes, b"x")
            producer.produce(given.source, value, partition=number % given.partitions)
        producer.poll(0)
    producer.flush(SETTLE_S)


def _quantile(ordered: list[float], share: float) -> float | None:
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else None


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--source", required=True)
    parser.add_argument("--target", required=True)
    parser.add_argument("--partitions", required=True, type=int)
    parser.add_argument("--rate", required=True, type=int, help="rows per second, a multiple of 100")
    parser.add_argument("--row-bytes", required=True, type=int)
    parser.add_argument("--warm-s", required=True, type=int)
    parser.add_argument("--measured-s", required=True, type=int)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
