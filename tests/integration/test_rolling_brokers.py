"""Brokers are restarted one after another, and updated, under transactions that are open."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest

from integration.kafka_witness import Witness
from small_job import SmallJob
from sparkonce.protocol.state import Phase
from sparkonce.rig.kafka import Cluster
from sparkonce.sinks.kafka.sink import KafkaSink

pytestmark = pytest.mark.kafka

SLOTS = 6


class Query:
    """A query into a topic."""

    def __init__(self, bootstrap: str, folder: Path, topic: str) -> None:
        self.bootstrap = bootstrap
        self.topic = topic
        self.job = SmallJob(
            folder / "checkpoint",
            lambda: [KafkaSink({"bootstrap.servers": self.bootstrap}, topic=topic)],
            lambda batch, slot: pa.record_batch({"value": [f"{batch}.{slot}"]}),
            slots=SLOTS,
            deadline_s=120.0,
        )

    def check(self, *batches: int) -> None:
        with closing(Witness(self.bootstrap)) as witness:
            found = witness.committed(self.topic)
        assert found == sorted(f"{batch}.{slot}" for batch in batches for slot in range(SLOTS))


def await_open(query: Query, batch: int) -> None:
    """Waits until the coordinators tell that the batch's transactions are open, which they do once they are loaded."""
    with closing(Witness(query.bootstrap)) as witness:
        witness.await_state("Ongoing", *query.job.decision(batch).handles)


@pytest.fixture(scope="module")
def three() -> Iterator[Cluster]:
    with Cluster(nodes=3) as started:
        yield started


@pytest.fixture
def query(three: Cluster, tmp_path: Path) -> Query:
    with closing(Witness(three.bootstrap)) as witness:
        return Query(three.bootstrap, tmp_path, witness.create_topic(partitions=3, replicas=3))


def restart_one_by_one(cluster: Cluster) -> None:
    for broker in cluster.brokers:
        broker.restart()
        cluster.wait_ready()


@pytest.mark.slow
def test_a_decided_batch_outlives_a_rolling_restart_without_its_driver(three: Cluster, query: Query) -> None:
    query.job.run(0)
    query.job.kill(1, Phase.FINISHING)
    restart_one_by_one(three)
    await_open(query, 1)
    recovered, following = query.job.run(1, 2)
    assert (recovered.recovered, recovered.healed, following.healed) == (True, 0, 0)
    query.check(0, 1, 2)


@pytest.mark.slow
def test_a_run_goes_on_over_a_rolling_restart(three: Cluster, query: Query) -> None:
    """One broker is restarted while a batch is written, one before its decision, one before its commits."""
    due = dict(zip((Phase.WRITING, Phase.VALIDATING, Phase.FINISHING), three.brokers, strict=True))

    def listen(phase: Phase, batch: int) -> None:
        if batch == 1 and phase in due:
            due.pop(phase).restart()

    query.job.run(0, 1, 2, listener=listen)
    assert due == {}
    query.check(0, 1, 2)


@pytest.mark.slow
@pytest.mark.parametrize("before", ["3.9.1", "4.0.0"])
def test_a_broker_is_updated_under_a_decided_batch(before: str, tmp_path: Path) -> None:
    folder = tmp_path / "cluster"
    with Cluster(folder=folder, version=before) as old, closing(Witness(old.bootstrap)) as witness:
        query = Query(old.bootstrap, tmp_path, witness.create_topic())
        query.job.run(0)
        query.job.kill(1, Phase.FINISHING)
    with Cluster(folder=folder) as new:
        query.bootstrap = new.bootstrap
        await_open(query, 1)
        recovered, _ = query.job.run(1, 2)
        assert (recovered.recovered, recovered.healed) == (True, 0)
        query.check(0, 1, 2)
