"""A job on another implementation of the broker (franz-go's kfake), which rejects requests or loses replies.

This proves nothing about Apache Kafka. But it is a second opinion on the meaning of answers, and it rejects requests
that Kafka rarely rejects.
"""

from __future__ import annotations

import logging
import random
from collections import Counter

import pyarrow as pa
import pytest

from other_broker import OtherBroker
from small_job import SmallJob
from sparkonce.driver import put
from sparkonce.errors import SparkonceError
from sparkonce.protocol.state import Phase
from sparkonce.sinks.kafka.sink import KafkaSink
from sparkonce_lab.kafka import list_transactions, read_committed

pytestmark = pytest.mark.kafka

logger = logging.getLogger(__name__)

BATCHES, SLOTS, ROWS = 7, 2, 5
SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    ("level", "brokers", "rate"),
    [
        ("4.4", 3, 0.15),
        pytest.param("4.4", 3, 0.05, marks=SLOW),
        pytest.param("4.4", 1, 0.3, marks=SLOW),
        pytest.param("4.0", 1, 0.3, marks=SLOW),
        pytest.param("3.7", 3, 0.15, marks=SLOW),
        pytest.param("3.0", 1, 0.3, marks=SLOW),
    ],
)
def test_each_row_is_there_once_whatever_is_refused(level, brokers, rate, tmp_path, pytestconfig, monkeypatch):
    def rows(batch: int, slot: int) -> pa.RecordBatch:
        start = (batch * SLOTS + slot) * ROWS
        return pa.record_batch({"value": [str(number) for number in range(start, start + ROWS)]})

    killed_at = (Phase.WRITING, Phase.DECIDING, Phase.FINISHING, Phase.SWEEPING)
    # There is no second driver to be superseded, so claims need no pause. Otherwise, many starts in a row would wait
    # for minutes.
    monkeypatch.setattr(put, "LONGEST_BACK_OFF_S", 0.0)
    seed = int(pytestconfig.getoption("--seed"))
    dice = random.Random(seed)
    with OtherBroker(level, brokers, rate, seed) as kafka:
        settings = {"bootstrap.servers": kafka.bootstrap, "message.timeout.ms": 10_000, "log_level": 0}
        job = SmallJob(
            tmp_path, lambda: [KafkaSink(settings, topic="out", prefix="job")], rows, slots=SLOTS, deadline_s=60.0
        )
        for batch in range(BATCHES):
            if dice.randrange(2):
                phase = dice.choice(killed_at)
                try:  # a run that dies at that point, if it gets there
                    job.kill(batch, phase)
                except (SparkonceError, AssertionError) as error:
                    logger.warning("batch %d, to die while %s: %s", batch, phase.value, error)
            for start in range(20):  # only rejected requests may have stopped it
                try:
                    job.run(batch)
                    break
                except SparkonceError as error:
                    logger.warning("batch %d, start %d: %s: %s", batch, start, type(error).__name__, error)
            else:
                pytest.fail(f"batch {batch} was not through after 20 starts")
        refused = kafka.rest()
        logger.warning("refused: %s", refused)
        found = Counter(int(record.value or b"-1") for record in read_committed(kafka.bootstrap, "out"))
        assert found == Counter(range(BATCHES * SLOTS * ROWS))
        assert list_transactions(kafka.bootstrap, states=["Ongoing"]) == {}
        assert refused
