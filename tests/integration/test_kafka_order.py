"""The order of the rows of one key in the topic: from batch to batch, through a replay, and through healing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from confluent_kafka import Producer

from integration.kafka_witness import LIMIT_S, Witness
from kafka_transactions import await_markers
from small_job import SmallJob
from sparkonce.protocol.state import Phase
from sparkonce.sinks.kafka.sink import KafkaSink
from sparkonce_lab.kafka import read_committed

pytestmark = pytest.mark.kafka

ROWS, KEYS = 60, 3
"""Of a slot in a batch, and to which keys they go in turn; no two slots have a key in common."""


def rows(batch: int, slot: int) -> pa.RecordBatch:
    numbers = range(batch * ROWS, (batch + 1) * ROWS)
    return pa.record_batch(
        {"key": [f"{slot}-{number % KEYS}" for number in numbers], "value": [str(number) for number in numbers]}
    )


def expected(batches: int) -> Mapping[str, Sequence[int]]:
    return {
        f"{slot}-{key}": [number for number in range(batches * ROWS) if number % KEYS == key]
        for slot in range(2)
        for key in range(KEYS)
    }


def found(bootstrap: str, topic: str) -> Mapping[str, Sequence[int]]:
    """What a reader finds of each key, in its partition's order."""
    await_markers(bootstrap)
    of_keys: dict[str, list[int]] = defaultdict(list)
    for record in read_committed(bootstrap, topic):
        of_keys[(record.key or b"").decode()].append(int(record.value or b""))
    return of_keys


def lose(job: SmallJob, bootstrap: str, batch: int, slots: Sequence[int]) -> None:
    """Whoever initialises an id anew aborts what is open under it."""
    for handle in job.decision(batch).handles:
        if handle.slot in slots:
            name = str(handle["transactional_id"])
            Producer({"bootstrap.servers": bootstrap, "transactional.id": name}).init_transactions(LIMIT_S)


@pytest.mark.slow
def test_rows_of_one_key_keep_their_order(witness: Witness, tmp_path: Path) -> None:
    topic = witness.create_topic(partitions=2)
    settings = {"bootstrap.servers": witness.bootstrap}
    job = SmallJob(tmp_path / "checkpoint", lambda: [KafkaSink(settings, topic=topic)], rows)
    job.run(0, 1)
    job.kill(2, Phase.DECIDING)
    job.run(2)  # replayed: its rows were written once before, and aborted
    job.kill(3, Phase.FINISHING)
    job.run(3)  # taken over as it was prepared
    for batch, lost in ((4, [0]), (5, [0, 1])):
        job.kill(batch, Phase.FINISHING)
        lose(job, witness.bootstrap, batch, lost)
        (done,) = job.run(batch)
        assert done.healed == len(lost)
    job.run(6)
    assert found(witness.bootstrap, topic) == expected(7)
