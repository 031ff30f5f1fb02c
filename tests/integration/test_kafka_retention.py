"""Brokers delete rows of open transactions.

If the rows are decided, they are written again instead of committed as they are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import OffsetSpec

from eventually import eventually
from integration.kafka_witness import LIMIT_S, Witness, new_name
from small_job import SmallJob
from sparkonce.log import DecisionLog
from sparkonce.protocol.codec import decode_record
from sparkonce.protocol.state import Phase
from sparkonce.protocol.view import Void
from sparkonce.sinks.kafka import committer
from sparkonce.sinks.kafka.committer import KafkaCommitter, transaction_of
from sparkonce.sinks.kafka.sink import KafkaSink
from sparkonce.storage.local import LocalFiles
from sparkonce_lab.kafka import read_committed
from sparkonce_lab.rig.kafka import Cluster

pytestmark = pytest.mark.kafka

SLOTS = 3


class Job:
    """A job of three slots, each of which writes to a partition of its own."""

    def __init__(self, folder: Path, bootstrap: str, witness: Witness, **config: str) -> None:
        self.bootstrap, self.witness = bootstrap, witness
        self.topic = witness.create_topic(SLOTS, **config)
        prefix = new_name("job")
        self.job = SmallJob(
            folder / "checkpoint",
            lambda: [KafkaSink({"bootstrap.servers": bootstrap}, topic=self.topic, prefix=prefix)],
            self._rows,
            slots=SLOTS,
        )

    def _rows(self, batch: int, slot: int) -> pa.RecordBatch:
        values = [f"{batch}-{slot}-{number}" for number in range(4)]
        return pa.record_batch({"value": values, "partition": pa.array([slot] * 4, pa.int32())})

    def seen(self) -> Counter[str]:
        return Counter((record.value or b"").decode() for record in read_committed(self.bootstrap, self.topic))

    def await_seen(self, rows: Counter[str]) -> None:
        """Waits for the commit markers, which brokers write after they have answered."""
        eventually(lambda: self.seen() == rows, f"readers see {rows}")

    def expected(self, batches: int, slots: Sequence[int] = range(SLOTS)) -> Counter[str]:
        return Counter(f"{batch}-{slot}-{number}" for batch in range(batches) for slot in slots for number in range(4))

    def delete_rows(self, *partitions: int, but: int = 0) -> None:
        """Deletes all but the last rows of these partitions, as retention does."""
        for partition in partitions:
            spot = TopicPartition(self.topic, partition, self.offset(partition, OffsetSpec.latest()) - but)
            for done in self.witness.admin.delete_records([spot]).values():
                done.result(LIMIT_S)

    def offset(self, partition: int, which: OffsetSpec) -> int:
        spot = TopicPartition(self.topic, partition)
        return int(self.witness.admin.list_offsets({spot: which})[spot].result(LIMIT_S).offset)

    def records(self) -> list[Any]:
        return [decode_record(data) for data in DecisionLog(LocalFiles(self.job.checkpoint)).read_bytes(0)]


@pytest.fixture
def job(tmp_path: Path, broker: Cluster, witness: Witness) -> Job:
    return Job(tmp_path, broker.bootstrap, witness)


@pytest.mark.parametrize("but", [0, 2], ids=["all rows", "the first rows"])
def test_what_is_deleted_of_a_decided_batch_is_written_again(
    job: Job, but: int, caplog: pytest.LogCaptureFixture
) -> None:
    job.job.kill(0, Phase.FINISHING)
    before = job.job.decision(0).handles
    job.delete_rows(1, but=but)
    job.job.run(0, 1)
    job.await_seen(job.expected(2))
    (void,) = (one for one in job.records() if isinstance(one, Void))
    assert void.void == (("kafka", 1),)
    kept = set(before) & set(job.job.decision(0).handles)
    assert {handle.slot for handle in kept} == {0, 2}, "what is whole is committed as it was decided"
    assert "has deleted rows of it" in caplog.text
    job.witness.await_state("CompleteAbort", next(handle for handle in before if handle.slot == 1))


def test_a_run_that_dies_before_the_abort_leaves_it_to_the_next(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """A later run need not notice that rows are gone, since the log says that these handles are void."""

    def _dies(*_: object) -> Sequence[Any]:
        raise KeyboardInterrupt

    job.job.kill(0, Phase.FINISHING)
    job.delete_rows(1)
    with monkeypatch.context() as patched:
        patched.setattr(KafkaCommitter, "abort", _dies)
        with pytest.raises(KeyboardInterrupt):
            job.job.run(0)
    job.await_seen(job.expected(1, [0, 2]))
    monkeypatch.setattr(committer.RetentionCheck, "find_damaged", lambda *_: (set(), {}))
    job.job.run(0, 1)
    job.await_seen(job.expected(2))


def test_what_was_deleted_before_the_transactions_is_not_missed(job: Job, caplog: pytest.LogCaptureFixture) -> None:
    """One partition begins exactly at the open transaction, and another has an older one of another application."""
    job.job.run(0)
    job.delete_rows(0, 1, 2)
    job.job.kill(1, Phase.FINISHING)
    before = job.job.decision(1).handles
    job.job.run(1)
    assert job.job.decision(1).handles == before
    job.await_seen(job.expected(2) - job.expected(1))
    assert "deleted rows" not in caplog.text


@pytest.mark.slow
def test_retention_itself(tmp_path: Path) -> None:
    """Rows of open transactions are deleted merely because of their age."""
    overrides = {"log.retention.check.interval.ms": 200, "log.initial.task.delay.ms": 200}
    with Cluster(overrides=overrides) as cluster:
        witness = Witness(cluster.bootstrap)
        short = Job(tmp_path, cluster.bootstrap, witness, retention_ms="1000")
        short.job.kill(0, Phase.FINISHING)
        eventually(
            lambda: all(short.offset(slot, OffsetSpec.earliest()) for slot in range(SLOTS)), "retention deletes rows"
        )
        (handle, *_) = short.job.decision(0).handles
        with closing(KafkaCommitter({"bootstrap.servers": cluster.bootstrap}, "kafka")) as committer:
            (told,) = committer.commit([handle])
        assert told.outcome.value == "damaged"
        witness.await_state("Ongoing", handle)
        assert transaction_of(handle).epoch == 0
        short.job.run(0)
        assert all(one not in short.job.decision(0).handles for one in [handle])
