"""A query's topic is mirrored by MirrorMaker 2, and the query moves to the mirror. Both clusters are asked."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from eventually import eventually
from integration.kafka_witness import LIMIT_S, Witness, new_name
from mirror_maker import EXACTLY_ONCE, READ_COMMITTED, SAME_NAMES, MirrorMaker
from small_job import SmallJob
from sparkonce.errors import PreflightError, UnknownOutcomeError
from sparkonce.protocol.state import Phase
from sparkonce.rig.kafka import Cluster
from sparkonce.sinks.kafka.sink import KafkaSink

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

COPIED_WITHIN_S = 180.0
"""MirrorMaker takes as long to start as a broker, and after a kill its group waits for what is gone."""


def values(*batches: int) -> list[str]:
    return sorted(f"{batch}.{slot}" for batch in batches for slot in range(2))


def test_a_query_whose_target_moves_goes_on_at_the_mirror(tmp_path: Path) -> None:
    topic, sink = new_name(), dict[str, Any]()
    with (
        Cluster() as old,
        Cluster() as new,
        closing(Witness(old.bootstrap)) as at_old,
        closing(Witness(new.bootstrap)) as at_new,
    ):
        cluster = old
        at_old.create_topic(name=topic)
        job = SmallJob(
            tmp_path / "checkpoint",
            lambda: [KafkaSink({"bootstrap.servers": cluster.bootstrap}, topic=topic, **sink)],
            lambda batch, slot: pa.record_batch({"value": [f"{batch}.{slot}"]}),
            deadline_s=10.0,
        )
        job.run(0)
        job.kill(1, Phase.DECIDING)
        with MirrorMaker(
            tmp_path / "mirror", old, new, topic, **READ_COMMITTED, **EXACTLY_ONCE, **SAME_NAMES
        ) as mirror:

            def await_copy(expected: list[str]) -> None:
                eventually(
                    lambda: (
                        topic in at_new.admin.list_topics(timeout=LIMIT_S).topics
                        and at_new.committed(topic) == expected
                    ),
                    f"the mirror has {expected}",
                    limit_s=COPIED_WITHIN_S,
                )

            await_copy(values(0))
            mirror.kill()
            mirror.start()
            job.run(1)  # the transactions of its first attempt are aborted, and not copied
            job.kill(2, Phase.FINISHING)
            cluster, sink = new, {"former_cluster_id": old.cluster_id}
            with pytest.raises(UnknownOutcomeError, match="INVALID_PRODUCER_ID_MAPPING"):
                job.run(2)
            cluster, sink = old, {"former_cluster_id": new.cluster_id}
            job.run(2)  # the old cluster finishes what is decided
            await_copy(values(0, 1, 2))
            assert mirror.stop(), "in order"
        cluster, sink = new, {}
        with pytest.raises(PreflightError, match=f"leads to the cluster '{new.cluster_id}'") as refused:
            job.run(3)
        assert f"former_cluster_id={old.cluster_id!r}" in refused.value.next_step
        assert at_new.committed(topic) == values(0, 1, 2)
        sink = {"former_cluster_id": old.cluster_id}
        job.run(3)
        job.kill(4, Phase.FINISHING)
        job.run(4, 5)
        assert at_new.committed(topic) == values(0, 1, 2, 3, 4, 5)
        assert at_old.committed(topic) == values(0, 1, 2)
