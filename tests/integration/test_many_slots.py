"""A batch of many slots with one transaction each. The driver is killed before and in the middle of its commits."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from integration.kafka_witness import Witness
from small_job import Killed, SmallJob
from sparkonce.protocol.handles import Finished, Handle
from sparkonce.protocol.state import Phase
from sparkonce.sink import SinkCommitter
from sparkonce.sinks.kafka.sink import KafkaSink
from sparkonce_lab.forwarding import ForwardingCommitter
from sparkonce_lab.kafka import list_transactions

pytestmark = pytest.mark.kafka


@pytest.mark.parametrize("slots", [60, pytest.param(1000, marks=pytest.mark.slow)])
def test_many_slots_are_swept_committed_and_taken_over(witness: Witness, tmp_path: Path, slots: int) -> None:
    def rows(batch: int, slot: int) -> pa.RecordBatch:
        return pa.record_batch({"value": [f"{batch}.{slot:04}"]})

    class KilledHalfway(ForwardingCommitter):
        def commit(self, handles: Sequence[Handle]) -> Sequence[Finished]:
            super().commit(handles[: len(handles) // 2])
            raise Killed("half-way through the commits")

    class HalfwaySink(KafkaSink):
        def committer(self) -> SinkCommitter:
            return KilledHalfway(super().committer())

    partitions = 4
    topic = witness.create_topic(partitions)
    settings = {"bootstrap.servers": witness.bootstrap}

    def job(sink: type[KafkaSink]) -> SmallJob:
        made = SmallJob(tmp_path, lambda: [sink(settings, topic=topic)], rows, slots=slots, at_once=16)
        made.query = query
        return made

    query = SmallJob(tmp_path, list, rows).query
    prefix = f"sparkonce-{job(KafkaSink).short_query}."

    def count_open() -> int:
        return len(list_transactions(witness.bootstrap, states=["Ongoing"], prefix=prefix))

    job(KafkaSink).kill(0, Phase.DECIDING)
    assert count_open() == slots
    with pytest.raises(Killed):
        job(HalfwaySink).run(0)
    assert count_open() == slots - slots // 2, "those of the first run are swept"
    (done,) = job(KafkaSink).run(0)
    assert done.transactions == slots
    assert count_open() == 0
    assert witness.committed(topic) == [f"0.{slot:04}" for slot in range(slots)]
