"""The verifier with a Delta table next to Kafka, with appended rows and killed drivers."""

import pytest

from sparkonce.protocol.state import Phase
from sparkonce_lab.faults import Fault
from sparkonce_lab.history import EventKind
from sparkonce_lab.systems.delta import DeltaSystem
from sparkonce_lab.systems.kafka import KafkaSystem
from verifying.trial import PARTITIONS, found, struck, trial

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(1_800)]


def test_a_table_has_each_row_once(tmp_path, say):
    steps = struck(
        (Fault.DRIVER_KILLED, Phase.FINISHING),
        (Fault.DRIVER_KILLED, Phase.DECIDING),
        (Fault.DRIVER_KILLED, Phase.IDLE),
        (Fault.TWO_DRIVERS, Phase.WRITING),
    )
    kafka = KafkaSystem(partitions=PARTITIONS)
    history, verdicts = trial(tmp_path / "run", say, source=kafka, systems=[kafka, DeltaSystem()], schedule=steps)
    assert found(verdicts) == {}
    assert len(list(history.of(EventKind.RECOVERED))) == len(steps)
