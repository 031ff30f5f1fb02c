"""Three brokers. Only one of them has a partition of the target, and it is lost when the batch is decided."""

from __future__ import annotations

import pytest

from eventually import eventually
from integration.kafka_witness import Witness
from spark.harness import PARTITIONS, Job, hold_at
from sparkonce_lab.rig.kafka import Cluster

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(3600)]


def test_a_partition_without_a_leader_is_waited_for(tmp_path):
    with Cluster(nodes=3) as three:
        witness = Witness(three.bootstrap)
        job = Job(
            three.bootstrap, tmp_path / "job", rows=1_000, again=False, rows_per_batch=400, plan="spark.plans:stateless"
        )
        target = job.config.target
        witness.create_topic(PARTITIONS, 1, target, min_insync_replicas="1")

        def leader() -> int:
            return int(witness.admin.list_topics(target, timeout=30).topics[target].partitions[0].leader)

        with job:
            decided = hold_at("FINISHING", job, batch=1)
            run = job.start()
            decided.wait(run.check)
            (broker,) = [each for each in three.brokers if each.node_id == leader()]
            broker.kill()
            eventually(lambda: leader() == -1, "the partition has no leader")
            decided.release()
            eventually(lambda: "has a leader" in run.log.read_text(), "the query waits for the leader")
            broker.start()
            run.finish()
            assert job.judge() == ""
