"""The verifier, with the checkpoint in HDFS and in S3: it finds no anomalies, whichever fault strikes the store."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from shared_servers import USES_HDFS, hdfs_server
from sparkonce.protocol.state import Phase
from sparkonce_lab.faults import STORE, Fault
from sparkonce_lab.history import EventKind
from sparkonce_lab.schedule import Step
from sparkonce_lab.systems.files import FilesSystem
from sparkonce_lab.systems.kafka import KafkaSystem
from sparkonce_lab.systems.store import OWN, CheckpointStore
from sparkonce_lab.verdicts import passed
from verifying.trial import PARTITIONS, found, trial

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.timeout(1_800)]

Say = Callable[[str], None]


def check(folder: Path, say: Say, store: CheckpointStore, faults: Sequence[dict[str, Any]]) -> None:
    steps = [Step(number=number, **{**one, "phase": one["phase"].name}) for number, one in enumerate(faults, 1)]
    kafka = KafkaSystem(partitions=PARTITIONS)
    history, verdicts = trial(
        folder, say, source=kafka, systems=[kafka, FilesSystem()], store=store, schedule=steps, undisturbed=True
    )
    assert passed(verdicts), found(verdicts)
    assert [event["step"] for event in history.of(EventKind.FAULT)] == [step.number for step in steps]
    assert len(list(history.of(EventKind.RECOVERED))) == len(steps)
    kept = folder / "checkpoint" / "query"
    assert {path.name for path in kept.iterdir()} == {"metadata", "offsets", "commits", "sparkonce"}


@pytest.mark.slow
@USES_HDFS
def test_nothing_is_found_with_the_checkpoint_in_hdfs(tmp_path, say):
    in_hdfs: tuple[dict[str, Any], ...] = (
        {"fault": Fault.DRIVER_KILLED, "phase": Phase.FINISHING},
        {"fault": Fault.DRIVER_PAUSED, "phase": Phase.DECIDING},
    )
    store = CheckpointStore(f"{hdfs_server().url}/checkpoints", {})
    check(tmp_path / "run", say, store, in_hdfs)


@pytest.mark.slow
def test_nothing_is_found_with_the_checkpoint_in_s3(tmp_path, say):
    """Spark's own connector is half a gigabyte, which is fetched once."""
    in_s3: tuple[dict[str, Any], ...] = (
        {"fault": Fault.REPLY_LOST, "phase": Phase.DECIDING, "system": STORE, "request": "put"},
        {"fault": Fault.REQUEST_LATE, "phase": Phase.DECIDING, "system": STORE, "request": "put"},
        {"fault": Fault.DRIVER_KILLED, "phase": Phase.FINISHING},
        {"fault": Fault.CUT, "phase": Phase.CLAIMING, "system": STORE},
        {"fault": Fault.REPLIES_SWALLOWED, "phase": Phase.DECIDING, "system": STORE, "lasts_ms": 4_000},
        {"fault": Fault.BLACK_HOLE, "phase": Phase.WRITING, "system": STORE, "lasts_ms": 20_000},
        {"fault": Fault.SERVER_PAUSED, "phase": Phase.DECIDING, "system": STORE, "lasts_ms": 4_000},
        {"fault": Fault.SERVER_KILLED, "phase": Phase.FINISHING, "system": STORE},
        {"fault": Fault.DRIVER_PAUSED, "phase": Phase.DECIDING},
        {"fault": Fault.TWO_DRIVERS, "phase": Phase.WRITING},
    )
    check(tmp_path / "run", say, CheckpointStore(OWN, {}), in_s3)
