"""Measures how the time of a Kafka commit grows with the number of transactions.

    python3 dev.py run python benchmarks/commits.py [--transactions 100] [--rounds 20]

Writes one row in each transaction, so that each has one partition of four, and commits them as a driver does. Commits
of one and of many transactions take turns. The result is the median of the ratios within a round.
"""

from __future__ import annotations

import argparse
import secrets
import time
from contextlib import closing
from statistics import median

import pyarrow as pa

from session import PARTITIONS
from sparkonce import KafkaSink
from sparkonce.protocol.handles import Handle, Outcome
from sparkonce.protocol.ownership import Token
from sparkonce.sink import Owner, WriterContext
from sparkonce.sinks.kafka.producer_pool import this_worker
from sparkonce_lab.kafka import create_topic
from sparkonce_lab.rig.kafka import Cluster

AIM = 20
TOPIC = "commits"
ROW = pa.record_batch({"value": ["a"]})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--transactions", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=20)
    given = parser.parse_args()
    with Cluster(heap="1g", jvm_flags=()) as broker:
        create_topic(broker.bootstrap, TOPIC, PARTITIONS)
        sink = KafkaSink({"bootstrap.servers": broker.bootstrap}, topic=TOPIC)
        query = secrets.token_hex(6)
        owner = Owner(query=query, token=Token(0, secrets.token_hex(4)), facts=sink.preflight(query, None))
        with closing(sink.committer()) as committer:
            ratios: list[float] = []
            took: dict[int, list[float]] = {1: [], given.transactions: []}
            for number in range(-3, given.rounds):  # the first rounds warm the broker
                for count in sorted(took, reverse=bool(number % 2)):
                    handles = [written(sink, owner, (number + 3) * 1000 + count, slot) for slot in range(count)]
                    this_worker().stop()  # ends the pool's background work
                    start = time.perf_counter()
                    ended = committer.commit(handles)
                    seconds = time.perf_counter() - start
                    if {one.outcome for one in ended} != {Outcome.COMMITTED}:
                        raise RuntimeError(f"not all were committed: {ended}")
                    took[count].append(seconds)
                if number >= 0:
                    ratios.append(took[given.transactions][-1] / took[1][-1])
    for count, all_seconds in took.items():
        print(f"{count} transactions: {median(all_seconds[3:]) * 1000:.1f} ms")
    print(f"ratio {median(ratios):.1f} ({min(ratios):.1f} to {max(ratios):.1f}); the aim is at most {AIM}")
    return 0


def written(sink: KafkaSink, owner: Owner, batch: int, slot: int) -> Handle:
    writer = sink.writer(WriterContext(owner=owner, batch=batch, slot=slot, copy=f"{slot}.0.0", columns=("value",)))
    try:
        writer.begin()
        writer.write(ROW)
        told = tuple(sorted(writer.prepare().items()))
    finally:
        writer.close()
    return Handle(sink=sink.name, slot=slot, rows=1, opened_ms=int(time.time() * 1000), transaction=told)


if __name__ == "__main__":
    raise SystemExit(main())
