"""Measures the cost of a slot, and the savings from grouping partitions into fewer slots, on this machine.

    python3 dev.py run python benchmarks/slots.py [--partitions 1000] [--slots 16] [--rows 4000] [--rounds 3]

Writes the same small batch in three ways, in turn: to nowhere with Spark's own Python task, to Kafka with a slot for
each partition, and to Kafka with grouped partitions. Also commits each batch, and finally aborts one that was left
undecided. Ratios are computed within a round, and the result is their median. Prints a line of JSON for each write.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from statistics import median
from typing import Any, TypeAlias

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from bench import Bench, machine
from processes import CpuClock, memory_mib
from session import PARTITIONS
from sparkonce import KafkaSink
from sparkonce.protocol.codec import encode_record
from sparkonce.protocol.handles import Finished, Handle, Outcome
from sparkonce.protocol.ownership import Token
from sparkonce.protocol.view import Commit
from sparkonce.sink import Owner, SinkCommitter
from sparkonce.spark.python_worker import lighten_worker
from sparkonce.spark.views import shares, views_of
from sparkonce.spark.work import SparkWork
from sparkonce_lab.kafka import create_topic, list_transactions

QUERY = "0123456789ab"
TOPIC = "slots"
_SETTLED_WITHIN_S = 120.0
_ENDED = (Outcome.COMMITTED, Outcome.ABORTED)
Cost: TypeAlias = dict[str, float]
"""The seconds and the CPU seconds of a write."""


def main() -> int:
    given = _parse()
    with machine() as bench, CpuClock(bench.jvm_pid, bench.broker_pid).ticking() as clock:
        create_topic(bench.bootstrap, TOPIC, PARTITIONS)
        sink = KafkaSink({"bootstrap.servers": bench.bootstrap}, topic=TOPIC)
        facts = sink.preflight(QUERY, None)
        owner = Owner(query=QUERY, token=Token(0, secrets.token_hex(4)), facts=facts)
        batch = bench.spark.range(given.rows, numPartitions=given.partitions)
        rows = batch.select(F.col("id").cast("string").alias("value"))
        with closing(sink.committer()) as committer:
            seconds = [
                _round(number, given, _Measure(bench, clock, sink, owner, committer), rows)
                for number in range(given.rounds + 1)
            ]
            _sweep(sink, owner, committer, rows, 3 * len(seconds))
        ids = list_transactions(bench.bootstrap, prefix=facts["prefix"])
        driver, jvm = (round(memory_mib(pid, "VmRSS")) for pid in (os.getpid(), bench.jvm_pid))
        _say(ids_on_broker=len(ids), driver_mib=driver, jvm_mib=jvm)
    counted = seconds[1:] or seconds
    for unit in ("seconds", "cpu_seconds"):
        for kind in ("grouped", "nowhere"):
            _say(
                ratio=f"{kind} to each",
                of=unit,
                median=round(median(one[kind][unit] / one["each"][unit] for one in counted), 3),
            )
    return 0


class _Measure:
    """Writes batches, and measures their cost. CPU seconds are the measure that other load affects least."""

    def __init__(self, bench: Bench, clock: CpuClock, sink: KafkaSink, owner: Owner, committer: SinkCommitter) -> None:
        self._bench, self._clock, self._sink, self._owner = bench, clock, sink, owner
        self._committer = committer

    def nowhere(self, rows: DataFrame, partitions: int) -> Cost:
        return self._timed("nowhere", partitions, lambda: rows.mapInArrow(_nowhere, "value string").collect())[0]

    def kafka(self, kind: str, rows: DataFrame, batch: int, slots: int | None) -> Cost:
        work = SparkWork(rows, batch, shares(views_of(self._sink)), slots)
        cost, (handles, _) = self._timed(kind, slots, lambda: work.write({self._sink.name: self._owner}, None))
        prepared = [handle for handle in handles if handle.transaction]
        began = time.monotonic()
        _settle(self._committer.commit, prepared)
        record = Commit(
            token=self._owner.token, query=QUERY, batch=batch, offsets=("{}",), handles=tuple(sorted(handles))
        )
        _say(
            commit_s=round(time.monotonic() - began, 3),
            transactions=len(prepared),
            record_bytes=len(encode_record(record, at_ms=0)),
        )
        return cost

    def _timed(self, kind: str, slots: int | None, work: Callable[[], Any]) -> tuple[Cost, Any]:
        began = time.time()
        result = work()
        took_s = time.time() - began
        time.sleep(0.5)  # wait for the clock's next sample
        cpu = {name: round(used, 2) for name, used in self._clock.used(began, began + took_s).items()}
        _say(what=kind, slots=slots, seconds=round(took_s, 2), cpu_seconds=cpu, load=round(os.getloadavg()[0], 1))
        return {"seconds": took_s, "cpu_seconds": sum(cpu.values())}, result


def _round(number: int, given: argparse.Namespace, measure: _Measure, rows: DataFrame) -> dict[str, Cost]:
    """Runs one round. The first round only warms the compilers."""
    return {
        "nowhere": measure.nowhere(rows, given.partitions),
        "each": measure.kafka("each", rows, 3 * number, None),
        "grouped": measure.kafka("grouped", rows, 3 * number + 1, given.slots),
    }


def _sweep(sink: KafkaSink, owner: Owner, committer: SinkCommitter, rows: DataFrame, batch: int) -> None:
    """Leaves a batch undecided, as a killed driver does, and aborts it as the next run does."""
    SparkWork(rows, batch, shares(views_of(sink))).write({sink.name: owner}, None)
    began = time.monotonic()
    lingering = committer.list_lingering([owner])
    listed = time.monotonic()
    _settle(committer.abort, lingering)
    _say(swept=len(lingering), list_s=round(listed - began, 3), abort_s=round(time.monotonic() - listed, 3))


def _settle(end: Callable[[Sequence[Handle]], Sequence[Finished]], handles: Sequence[Handle]) -> None:
    """Ends the transactions, retrying while a broker has no final answer."""
    give_up_at = time.monotonic() + _SETTLED_WITHIN_S
    while (
        open_still := [done for done in end(handles) if done.outcome not in _ENDED]
    ) and time.monotonic() < give_up_at:
        time.sleep(0.05)
    if open_still:
        raise RuntimeError(f"{len(open_still)} transactions are not ended: {open_still[0]}")


def _nowhere(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    rows = sum(batch.num_rows for batch in batches)
    lighten_worker()
    yield pa.RecordBatch.from_pydict({"value": [str(rows)]})


def _say(**facts: Any) -> None:
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--partitions", type=int, default=1000)
    parser.add_argument("--slots", type=int, default=16)
    parser.add_argument("--rows", type=int, default=4000)
    parser.add_argument("--rounds", type=int, default=3)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
