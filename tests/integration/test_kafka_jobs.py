from __future__ import annotations

import logging
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import OffsetSpec

from eventually import LIMIT_S, eventually
from integration.kafka_witness import Witness, new_name
from small_job import Killed, SmallJob, one_row, values_of
from sparkonce.decision_log import DecisionLog
from sparkonce.errors import PreflightError, PrepareError, StaleLogError, StaleServerError, UnknownOutcomeError
from sparkonce.guarantees import Guarantee
from sparkonce.protocol.codec import decode_record
from sparkonce.protocol.handles import Finished, Handle
from sparkonce.protocol.ownership import PREFIX_LIMIT_BYTES
from sparkonce.protocol.state import Phase
from sparkonce.protocol.view import Void
from sparkonce.sink import SinkCommitter
from sparkonce.sinks.kafka import committer as committer_module
from sparkonce.sinks.kafka.committer import KafkaCommitter, transaction_of
from sparkonce.sinks.kafka.sink import KafkaSink
from sparkonce.sinks.kafka.writer import TopicLookup
from sparkonce.storage.local import LocalFiles
from sparkonce_lab.forwarding import ForwardingCommitter
from sparkonce_lab.kafka import list_transactions
from sparkonce_lab.rig.kafka import Cluster

pytestmark = pytest.mark.kafka


class KafkaJob(SmallJob):
    """A query into its own topic. The test may change `topic`, `settings` and `sink` between two runs.

    Attributes:
        sink: The sink's arguments.
    """

    def __init__(
        self, witness: Witness, folder: Path, rows: Any = one_row, *, topic: str = "", kind: Any = KafkaSink, **job: Any
    ) -> None:
        self.witness = witness
        self.topic = topic or witness.create_topic()
        self.settings: dict[str, Any] = {"bootstrap.servers": witness.bootstrap}
        self.sink: dict[str, Any] = {}
        super().__init__(
            folder / "checkpoint", lambda: [kind(self.settings, topic=self.topic, **self.sink)], rows, **job
        )

    def ids(self, *states: str) -> list[str]:
        prefix = self.sink.get("prefix", f"sparkonce-{self.short_query}")
        start = f"{prefix}.{self.short_query}."
        return list(list_transactions(self.witness.bootstrap, states=states, prefix=start))

    def open(self) -> list[str]:
        return self.ids("Ongoing")

    def visible(self) -> list[str]:
        return self.witness.committed(self.topic)


@pytest.fixture
def job(witness, tmp_path) -> KafkaJob:
    return KafkaJob(witness, tmp_path)


@pytest.mark.parametrize("slots", [60, pytest.param(1000, marks=pytest.mark.slow)])
def test_many_slots_are_swept_committed_and_taken_over(witness, tmp_path, slots):
    """The driver is killed before and in the middle of the commits of a batch with one transaction per slot."""

    class KilledHalfway(ForwardingCommitter):
        def commit(self, handles: Sequence[Handle]) -> Sequence[Finished]:
            super().commit(handles[: len(handles) // 2])
            raise Killed("half-way through the commits")

    class HalfwaySink(KafkaSink):
        def committer(self) -> SinkCommitter:
            return KilledHalfway(super().committer())

    job = KafkaJob(witness, tmp_path, slots=slots, at_once=16)
    halfway = KafkaJob(witness, tmp_path, topic=job.topic, kind=HalfwaySink, slots=slots, at_once=16)
    halfway.query = job.query
    job.kill(0, Phase.DECIDING)
    assert len(job.open()) == slots
    with pytest.raises(Killed):
        halfway.run(0)
    assert len(job.open()) == slots - slots // 2, "those of the first run are swept"
    (done,) = job.run(0)
    assert done.transactions == slots
    assert job.open() == []
    assert job.visible() == sorted(f"0.{slot}" for slot in range(slots))


# --- the prefix of transactional ids ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "odd",
    [
        pytest.param("\"'`\\ ;*?%s{}$1/<&:,=|(é𝄞數", id="signs and scripts"),
        pytest.param(".0123456789ab.7-0123abcd.0123456789ab-0", id="like our own ids", marks=pytest.mark.slow),
    ],
)
def test_the_longest_and_oddest_prefix(job, tmp_path, odd):
    name = new_name()
    text = name + odd * ((PREFIX_LIMIT_BYTES - len(name)) // len(odd.encode()))
    job.sink = {"prefix": text + "x" * (PREFIX_LIMIT_BYTES - len(text.encode()))}
    assert len(job.sink["prefix"].encode()) == PREFIX_LIMIT_BYTES
    job.run(0)
    job.kill(1, Phase.DECIDING)
    assert len(job.open()) == 2
    job.run(1)
    assert job.open() == []
    job.kill(2, Phase.FINISHING)
    assert len(job.open()) == 2
    shutil.copytree(job.checkpoint, tmp_path / "older")
    job.run(2, 3)
    assert job.open() == []
    assert job.visible() == values_of(*range(4))

    shutil.rmtree(job.checkpoint)
    (tmp_path / "older").rename(job.checkpoint)
    with pytest.raises(StaleLogError, match="has committed rows, its claim is at position"):
        job.run(2)
    assert job.visible() == values_of(*range(4))


def test_another_prefix_takes_over_what_the_old_one_has_left(job):
    first, second, third = ({"prefix": new_name(name)} for name in ("first", "second", "third"))
    job.sink = first
    job.run(0)
    job.kill(1, Phase.DECIDING)
    undecided = job.open()
    assert len(undecided) == 2

    job.sink = second
    job.kill(1, Phase.FINISHING)
    decided = job.open()
    assert len(decided) == 2
    job.sink = first
    assert job.open() == [], "the old prefix's transactions are found by the log, and aborted"
    assert set(undecided) <= set(job.ids("CompleteAbort"))

    job.sink = third
    job.run(1, 2)
    job.sink = second
    assert job.open() == []
    assert set(decided) <= set(job.ids("CompleteCommit"))
    assert job.visible() == values_of(*range(3))

    job.sink = first
    job.run(3)
    assert job.visible() == values_of(*range(4))


# --- a topic is deleted, or deleted and recreated: any resulting loss is reported -------------------------------------

WARNING = "was deleted and recreated since this query's last run"


class DeletedTopicJob(KafkaJob):
    """A query that calls `before` when the other slot is prepared, before the last slot of batch 1 is written."""

    def __init__(self, witness: Witness, folder: Path) -> None:
        super().__init__(witness, folder, self._with_strike)
        # By default, librdkafka waits 30 s for a missing topic to appear.
        self.settings["topic.metadata.propagation.max.ms"] = 500
        self.before: Callable[[], None] = lambda: None
        self.is_empty = False

    def _with_strike(self, batch: int, slot: int) -> pa.RecordBatch:
        rows = one_row(batch, slot)
        if (batch, slot) == (1, 1):
            self.before()
            self.before = lambda: None
            return rows.slice(0, 0) if self.is_empty else rows
        return rows

    def delete(self) -> None:
        self.witness.delete_topic(self.topic)

    def create(self) -> None:
        self.witness.create_topic(name=self.topic)

    def recreate(self) -> None:
        self.delete()
        self.create()


@pytest.fixture
def deleted(witness, tmp_path) -> DeletedTopicJob:
    return DeletedTopicJob(witness, tmp_path)


@pytest.fixture
def warnings(caplog) -> Callable[[], list[str]]:
    def taken() -> list[str]:
        ours = [record for record in caplog.records if record.name.startswith("sparkonce")]
        told = [record.getMessage() for record in ours if record.levelno >= logging.WARNING]
        caplog.clear()
        return told

    return taken


@pytest.mark.parametrize("last_slot", [pytest.param("with rows", marks=pytest.mark.slow), "without rows"])
def test_deleted_while_a_batch_is_written(deleted, warnings, last_slot):
    """If the last slot has no rows, no writer can notice."""
    deleted.run(0)
    deleted.before, deleted.is_empty = deleted.delete, last_slot == "without rows"
    with pytest.raises(PrepareError, match=deleted.topic):
        deleted.run(1)
    assert deleted.open() == []
    with pytest.raises(PreflightError, match=f"topic='{deleted.topic}' does not exist"):
        deleted.run(1)
    deleted.create()
    deleted.is_empty = False
    warnings()
    deleted.run(1)
    (told,) = warnings()
    assert deleted.topic in told
    assert WARNING in told
    assert deleted.visible() == values_of(1)


@pytest.mark.slow
def test_recreated_while_a_batch_is_written(deleted, warnings):
    """Both slots are acknowledged, but the first one's rows are gone. Half of the batch must not become visible."""
    deleted.run(0)
    deleted.before = deleted.recreate
    with pytest.raises(PrepareError, match=f"'{deleted.topic}' was deleted and recreated while this query ran"):
        deleted.run(1)
    assert deleted.open() == []
    assert deleted.visible() == []
    warnings()
    deleted.run(1, 2)
    assert [WARNING in told for told in warnings()] == [True]
    assert deleted.visible() == values_of(1, 2)
    deleted.run(3)
    assert warnings() == [], "it is said once"


@pytest.mark.slow
@pytest.mark.parametrize("again", [False, True], ids=["deleted", "recreated"])
def test_after_the_decision_the_next_batch_says_it(deleted, warnings, again):
    """A producer that still knows the deleted topic retries its rows forever, so the writer asks about the topic."""

    def strike(phase: Phase, number: int) -> None:
        if (phase, number) == (Phase.FINISHING, 1):
            deleted.delete()
            if again:
                deleted.create()

    words = "recreated while this query ran" if again else deleted.topic
    with pytest.raises(PrepareError, match=words) as told:
        deleted.run(0, 1, 2, listener=strike)
    assert told.value.details["batch"] == 2
    assert deleted.open() == []
    if not again:
        deleted.create()
    warnings()
    deleted.run(2)
    assert [WARNING in each for each in warnings()] == [True]
    assert deleted.visible() == values_of(2), "Kafka has called batch 1 committed, whose rows went with the old topic"


@pytest.mark.parametrize("again", [False, True], ids=["deleted", "recreated"])
def test_between_a_decision_and_the_next_start_that_start_says_it(deleted, warnings, again):
    deleted.run(0)
    deleted.kill(1, Phase.FINISHING)
    assert len(deleted.open()) == 2
    deleted.delete()
    if not again:
        with pytest.raises(PreflightError, match=f"topic='{deleted.topic}' does not exist"):
            deleted.run(1)
        assert len(deleted.open()) == 2, "what is decided stays as it is"
    deleted.create()
    warnings()
    deleted.run(1, 2)
    (told,) = warnings()
    assert WARNING in told
    assert "those of the last decided batch may be gone too" in told
    assert deleted.open() == []
    assert deleted.visible() == values_of(2)


def test_brokers_are_asked_which_topics_there_are(deleted):
    lookup = TopicLookup({"bootstrap.servers": deleted.witness.bootstrap}, is_transactional=True)
    deleted.run(0)  # creates Kafka's internal topic of transactions
    assert lookup.is_there([deleted.topic, "never-made", "not/a/name"]) == {deleted.topic: True, "never-made": False}
    deleted.delete()
    eventually(lambda: lookup.is_there([deleted.topic]) == {deleted.topic: False}, "it is gone", limit_s=LIMIT_S)


def test_weaker_guarantees_say_it_at_the_next_start(deleted, warnings):
    deleted.sink = {"guarantee": Guarantee.AT_LEAST_ONCE}
    deleted.run(0)
    deleted.recreate()
    warnings()
    deleted.run(1)
    assert [WARNING in told for told in warnings()] == [True]
    assert deleted.visible() == values_of(1)


def test_another_topic_is_not_the_same_one_recreated(job, warnings):
    job.run(0)
    job.topic = job.witness.create_topic()
    warnings()
    job.run(1)
    assert warnings() == []
    assert job.visible() == values_of(1)


# --- retention deletes rows of open transactions: if they are decided, they are written again -------------------------

SLOTS = 3


class ShortLivedJob(KafkaJob):
    """A query of three slots, each of which writes four rows to a separate partition."""

    def __init__(self, witness: Witness, folder: Path, **config: str) -> None:
        super().__init__(witness, folder, self._four_rows, topic=witness.create_topic(SLOTS, **config), slots=SLOTS)

    def _four_rows(self, batch: int, slot: int) -> pa.RecordBatch:
        values = [f"{batch}-{slot}-{number}" for number in range(4)]
        return pa.record_batch({"value": values, "partition": pa.array([slot] * 4, pa.int32())})

    def expected(self, *batches: int, slots: Sequence[int] = range(SLOTS)) -> list[str]:
        return sorted(f"{batch}-{slot}-{number}" for batch in batches for slot in slots for number in range(4))

    def delete_rows(self, *partitions: int, but: int = 0) -> None:
        for partition in partitions:
            spot = TopicPartition(self.topic, partition, self.offset(partition, OffsetSpec.latest()) - but)
            for done in self.witness.admin.delete_records([spot]).values():
                done.result(LIMIT_S)

    def offset(self, partition: int, which: OffsetSpec) -> int:
        spot = TopicPartition(self.topic, partition)
        return int(self.witness.admin.list_offsets({spot: which})[spot].result(LIMIT_S).offset)


@pytest.fixture
def short(witness, tmp_path) -> ShortLivedJob:
    return ShortLivedJob(witness, tmp_path)


@pytest.mark.parametrize("but", [0, 2], ids=["all rows", "the first rows"])
def test_what_is_deleted_of_a_decided_batch_is_written_again(short, but, caplog):
    short.kill(0, Phase.FINISHING)
    before = short.decision(0).handles
    short.delete_rows(1, but=but)
    short.run(0, 1)
    assert short.visible() == short.expected(0, 1)
    records = [decode_record(data) for data in DecisionLog(LocalFiles(short.checkpoint)).read_bytes(0)]
    (void,) = (one for one in records if isinstance(one, Void))
    assert void.void == (("kafka", 1),)
    kept = set(before) & set(short.decision(0).handles)
    assert {handle.slot for handle in kept} == {0, 2}, "what is whole is committed as it was decided"
    assert "has deleted rows of it" in caplog.text
    short.witness.await_state("CompleteAbort", next(handle for handle in before if handle.slot == 1))


def test_a_run_that_dies_before_the_abort_leaves_it_to_the_next(short, monkeypatch):
    """A later run need not notice that rows are gone, since according to the log, these handles are void."""

    def dies(*_: object) -> Sequence[Any]:
        raise KeyboardInterrupt

    short.kill(0, Phase.FINISHING)
    short.delete_rows(1)
    with monkeypatch.context() as patched:
        patched.setattr(KafkaCommitter, "abort", dies)
        with pytest.raises(KeyboardInterrupt):
            short.run(0)
    assert short.visible() == short.expected(0, slots=[0, 2])
    monkeypatch.setattr(committer_module.RetentionCheck, "find_damaged", lambda *_: (set(), {}))
    short.run(0, 1)
    assert short.visible() == short.expected(0, 1)


def test_what_was_deleted_before_the_transactions_is_not_missed(short, caplog):
    """Each partition begins exactly at the open transaction."""
    short.run(0)
    short.delete_rows(0, 1, 2)
    short.kill(1, Phase.FINISHING)
    before = short.decision(1).handles
    short.run(1)
    assert short.decision(1).handles == before
    assert short.visible() == short.expected(1)
    assert "deleted rows" not in caplog.text


@pytest.mark.slow
def test_retention_itself(tmp_path):
    """Rows of open transactions are deleted merely because of their age."""
    overrides = {"log.retention.check.interval.ms": 200, "log.initial.task.delay.ms": 200}
    with Cluster(overrides=overrides) as cluster:
        short = ShortLivedJob(Witness(cluster.bootstrap), tmp_path, retention_ms="1000")
        short.kill(0, Phase.FINISHING)
        earliest = OffsetSpec.earliest()
        eventually(lambda: all(short.offset(slot, earliest) for slot in range(SLOTS)), "retention deletes rows")
        (handle, *_) = short.decision(0).handles
        with closing(KafkaCommitter(short.settings, "kafka")) as committer:
            (told,) = committer.commit([handle])
        assert told.outcome.value == "damaged"
        short.witness.await_state("Ongoing", handle)
        assert transaction_of(handle).epoch == 0
        short.run(0)
        assert handle not in short.decision(0).handles


# --- a broker forgets ids, or is restored from a backup, or replaced --------------------------------------------------


@pytest.mark.slow
def test_an_outcome_that_the_broker_has_forgotten_stays_unknown(tmp_path):
    """It forgets a transactional id before the id's last batch was finished."""
    forgetful = {
        "transactional.id.expiration.ms": 3_000,
        "transaction.remove.expired.transaction.cleanup.interval.ms": 200,
    }
    with Cluster(overrides=forgetful) as cluster:
        for killed_at, visible, timeout_ms in (
            (Phase.SWEEPING_OWN, (0, 1), 60_000),  # committed
            (Phase.FINISHING, (0,), 5_000),  # timed out
        ):
            job = KafkaJob(Witness(cluster.bootstrap), tmp_path / killed_at.name, deadline_s=0.5)
            job.settings["transaction.timeout.ms"] = timeout_ms
            job.run(0)
            job.kill(1, killed_at)
            eventually(lambda job=job: not job.ids(), "the broker has forgotten them", limit_s=LIMIT_S)
            before = job.files()
            for _ in range(2):
                with pytest.raises(UnknownOutcomeError, match=r"INVALID_PRODUCER_ID_MAPPING.*look its rows up") as told:
                    job.run(1)
                assert told.value.details["handles"] == (("kafka", 0), ("kafka", 1))
                assert job.visible() == values_of(*visible), "nothing was written again, and nothing taken back"
            claims = [path for path in job.files() if path not in before]
            assert len(claims) == 2, "and nothing was decided"

            # An operator who has found or restored the batch's rows marks the batch as done in Spark's checkpoint.
            job.run(2)
            assert job.visible() == values_of(*visible, 2)


@pytest.mark.slow
def test_a_cluster_that_was_restored_from_an_older_copy_is_found(tmp_path, monkeypatch):
    """It does not know ids of commits that it should remember, since their runs began after the backup was made."""

    def copy(source: Path, target: Path) -> None:
        cluster.close()
        subprocess.run(["rm", "-rf", target], check=True)
        subprocess.run(["cp", "-a", source, target], check=True)
        cluster.start()

    with Cluster(folder=tmp_path / "cluster") as cluster:
        job = KafkaJob(Witness(cluster.bootstrap), tmp_path, deadline_s=60.0)
        job.run(0)
        copy(cluster.folder, tmp_path / "saved")
        job.run(1)
        job.run(2)
        copy(tmp_path / "saved", cluster.folder)
        with pytest.raises(StaleServerError) as caught:
            job.run(3)
        assert caught.value.details["missing"] == {"kafka": [1, 2]}
        assert "accept_lost_batches={'kafka': 2}" in caught.value.next_step
        assert job.visible() == values_of(0)
        handles = [one for one in job.decision(2).handles if one.transaction]
        later_ms = max(one.opened_ms for one in handles)
        with closing(KafkaCommitter(job.settings, "kafka")) as committer:
            half_a_week_s = 7 * 24 * 3600 / 2
            for passed_s, missing in ((-1.0, []), (half_a_week_s - 60, handles), (half_a_week_s + 60, [])):
                now = later_ms * 1_000_000 + int(passed_s * 1e9)
                clock = SimpleNamespace(time_ns=lambda now=now: now, monotonic=time.monotonic)
                monkeypatch.setattr(committer_module, "time", clock)
                assert committer.missing(handles) == missing
        monkeypatch.undo()
        job.accept_lost = {"kafka": 2}
        job.run(3, 4)
        job.run(5)
        assert job.visible() == values_of(0, 3, 4, 5)


@pytest.mark.slow
def test_another_cluster_in_its_place_is_taken_when_it_is_named(job, caplog, broker):
    job.run(0, 1)
    with Cluster() as other:
        job.settings["bootstrap.servers"] = other.bootstrap
        job.witness = Witness(other.bootstrap)
        job.witness.create_topic(name=job.topic)
        for named in ({}, {"former_cluster_id": other.cluster_id}):
            job.sink = named
            with pytest.raises(PreflightError) as caught:
                job.run(2)
            assert f"leads to the cluster {other.cluster_id!r}" in caught.value.message
            assert f"KafkaSink(..., former_cluster_id={broker.cluster_id!r})" in caught.value.next_step
        job.sink = {"former_cluster_id": broker.cluster_id}
        with caplog.at_level(logging.WARNING, "sparkonce"):
            job.run(2)
        assert f"This query wrote to the cluster {broker.cluster_id!r} until now" in caplog.text
        assert "deleted and recreated" not in caplog.text
        job.run(3)
        assert job.visible() == values_of(2, 3)
        job.settings["bootstrap.servers"] = broker.bootstrap
        with pytest.raises(PreflightError):
            job.run(4)
