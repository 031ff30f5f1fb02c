"""The verifier with rows that Kafka rejects, which it has to find among the dead letters."""

import pytest

from sparkonce.protocol.state import Phase
from sparkonce_lab.faults import Fault
from sparkonce_lab.history import EventKind
from sparkonce_lab.systems.files import NAME, read_dead_letters
from sparkonce_lab.systems.kafka import KafkaSystem
from sparkonce_lab.systems.postgres import PostgresSystem
from sparkonce_lab.verdicts import Anomaly
from verifying.trial import PARTITIONS, found, struck, trial

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(1_800)]


def test_accepted_and_refused_rows_are_the_input(tmp_path, say):
    steps = struck(
        (Fault.DRIVER_KILLED, Phase.FINISHING),
        (Fault.DRIVER_KILLED, Phase.DECIDING),
        (Fault.TWO_DRIVERS, Phase.WRITING),
    )
    kafka = KafkaSystem(partitions=PARTITIONS, refuse_every=5)
    history, verdicts = trial(tmp_path / "run", say, source=kafka, systems=[kafka, PostgresSystem()], schedule=steps)
    assert found(verdicts) == {}
    assert len(list(history.of(EventKind.RECOVERED))) == len(steps)
    refused = sum(event["rows"].get(NAME, 0) for event in history.of(EventKind.BATCH))
    assert refused > 60


def test_a_lost_letter_is_found(tmp_path, say, monkeypatch):
    """Hides one dead letter from the reader. The row is then in neither place, so it must be reported as missing."""
    monkeypatch.setattr(
        "sparkonce_lab.systems.kafka.read_dead_letters", lambda folder: read_dead_letters(folder).slice(1)
    )
    kafka = KafkaSystem(partitions=PARTITIONS, refuse_every=5)
    _, verdicts = trial(tmp_path / "run", say, source=kafka, systems=[kafka], schedule=[])
    assert {one.anomaly: one.count for one in verdicts if one.count} == {Anomaly.MISSING: 1}
