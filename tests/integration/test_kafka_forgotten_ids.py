"""The broker forgets a transactional id before its last batch was finished, so its outcome is unknown forever."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from integration.kafka_witness import Witness, eventually
from small_job import SmallJob
from sparkonce.errors import UnknownOutcomeError
from sparkonce.protocol.state import Phase
from sparkonce.sinks.kafka.sink import KafkaSink
from sparkonce_lab.kafka import list_transactions
from sparkonce_lab.rig.kafka import Cluster

pytestmark = pytest.mark.kafka

FORGETFUL = {
    "transactional.id.expiration.ms": 3_000,
    "transaction.remove.expired.transaction.cleanup.interval.ms": 200,
}
"""The defaults are a week and an hour."""


@pytest.fixture(scope="module")
def witness() -> Iterator[Witness]:
    with Cluster(overrides=FORGETFUL) as cluster:
        yield Witness(cluster.bootstrap)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("killed_at", "visible", "timeout_ms"),
    [
        pytest.param(Phase.SWEEPING_OWN, (0, 1), 60_000, id="committed"),
        pytest.param(Phase.FINISHING, (0,), 5_000, id="timed out"),
    ],
)
def test_an_outcome_that_the_broker_has_forgotten_stays_unknown(
    witness: Witness, tmp_path: Path, killed_at: Phase, visible: tuple[int, ...], timeout_ms: int
) -> None:
    def batches(*numbers: int) -> list[str]:
        return [f"{number}.{slot}.{place}" for number in numbers for slot in range(2) for place in range(3)]

    def rows(batch: int, slot: int) -> pa.RecordBatch:
        return pa.record_batch({"value": [f"{batch}.{slot}.{number}" for number in range(3)]})

    topic = witness.create_topic()
    settings = {"bootstrap.servers": witness.bootstrap, "transaction.timeout.ms": timeout_ms}
    job = SmallJob(tmp_path, lambda: [KafkaSink(settings, topic=topic)], rows, deadline_s=0.5)
    job.run(0)
    job.kill(1, killed_at)
    prefix = f"sparkonce-{job.short_query}."
    eventually(lambda: list_transactions(witness.bootstrap, prefix=prefix), lambda known: not known)
    before = job.files()
    for _ in range(2):
        with pytest.raises(UnknownOutcomeError, match=r"INVALID_PRODUCER_ID_MAPPING.*look its rows up") as told:
            job.run(1)
        assert told.value.details["handles"] == (("kafka", 0), ("kafka", 1))
        assert witness.committed(topic) == batches(*visible), "nothing was written again, and nothing taken back"
    claims = [path for path in job.files() if path not in before]
    assert len(claims) == 2, "and nothing was decided"

    # An operator who has found or restored the batch's rows tells Spark that the batch is done.
    job.run(2)
    assert witness.committed(topic) == batches(*visible, 2)
