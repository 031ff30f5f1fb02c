from __future__ import annotations

from pathlib import Path

import pytest

from integration.kafka_witness import Witness
from small_job import SmallJob, one_row, values_of
from sparkonce.protocol.state import Phase
from sparkonce.sinks.kafka.sink import KafkaSink
from sparkonce_lab.rig.kafka import Cluster

pytestmark = [pytest.mark.kafka, pytest.mark.slow]


def job_into(cluster: Cluster, topic: str, folder: Path) -> SmallJob:
    return SmallJob(
        folder / "checkpoint",
        lambda: [KafkaSink({"bootstrap.servers": cluster.bootstrap}, topic=topic)],
        one_row,
        deadline_s=120.0,
    )


def test_a_rolling_restart_under_a_run_and_under_a_decided_batch(tmp_path):
    """One broker is restarted while a batch is written, one before its decision, one before its commits."""
    with Cluster(nodes=3) as cluster:
        witness = Witness(cluster.bootstrap)
        topic = witness.create_topic(partitions=3, replicas=3)
        job = job_into(cluster, topic, tmp_path)
        due = dict(zip((Phase.WRITING, Phase.VALIDATING, Phase.FINISHING), cluster.brokers, strict=True))
        job.run(0, 1, listener=lambda phase, batch: due.pop(phase).restart() if batch and phase in due else None)
        assert due == {}
        job.kill(2, Phase.FINISHING)
        for broker in cluster.brokers:
            broker.restart()
            cluster.wait_ready()
        witness.await_state("Ongoing", *job.decision(2).handles)
        recovered, following = job.run(2, 3)
        assert (recovered.recovered, recovered.healed, following.healed) == (True, 0, 0)
        assert witness.committed(topic) == values_of(0, 1, 2, 3)


@pytest.mark.parametrize("before", ["3.9.1", "4.0.0"])
def test_a_broker_is_updated_under_a_decided_batch(before, tmp_path):
    folder = tmp_path / "cluster"
    with Cluster(folder=folder, version=before) as old:
        witness = Witness(old.bootstrap)
        topic = witness.create_topic()
        job = job_into(old, topic, tmp_path)
        job.run(0)
        job.kill(1, Phase.FINISHING)
        decided = job.decision(1).handles
    with Cluster(folder=folder) as new:
        witness = Witness(new.bootstrap)
        job_now = job_into(new, topic, tmp_path)
        job_now.query = job.query
        witness.await_state("Ongoing", *decided)
        recovered, _ = job_now.run(1, 2)
        assert (recovered.recovered, recovered.healed) == (True, 0)
        assert witness.committed(topic) == values_of(0, 1, 2)
