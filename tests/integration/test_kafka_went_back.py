"""A Kafka cluster is restored from a backup, or replaced.

Missing batches are reported instead of being silently lost.
"""

from __future__ import annotations

import logging
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from integration.kafka_witness import Witness
from small_job import SmallJob, one_row, values_of
from sparkonce.errors import PreflightError, StaleServerError
from sparkonce.sinks.kafka import committer as committer_module
from sparkonce.sinks.kafka.committer import KafkaCommitter
from sparkonce.sinks.kafka.sink import KafkaSink
from sparkonce_lab.rig.kafka import Cluster

pytestmark = pytest.mark.kafka

TOPIC = "totals"


class Place:
    """A cluster whose data can be saved and restored, and a query that writes to it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.cluster = Cluster(folder=folder / "cluster")
        self.sink: dict[str, Any] = {}
        self.bootstrap = self.cluster.bootstrap
        self.job = SmallJob(
            folder / "checkpoint",
            lambda: [KafkaSink({"bootstrap.servers": self.bootstrap}, topic=TOPIC, **self.sink)],
            one_row,
            deadline_s=60.0,
        )

    def save(self) -> None:
        self._move(self.cluster.folder, self.folder / "saved")

    def put_back(self) -> None:
        self._move(self.folder / "saved", self.cluster.folder)

    def visible(self) -> list[str]:
        return Witness(self.bootstrap).committed(TOPIC)

    def _move(self, source: Path, target: Path) -> None:
        self.cluster.close()
        subprocess.run(["rm", "-rf", str(target)], check=True)
        subprocess.run(["cp", "-a", str(source), str(target)], check=True)
        self.cluster.start()


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    with made.cluster:
        Witness(made.bootstrap).create_topic(name=TOPIC)
        yield made


@pytest.mark.slow
def test_a_cluster_that_was_restored_from_an_older_copy_is_found(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not know ids of commits that it should remember, since their runs began after the backup was made."""
    place.job.run(0)
    place.save()
    place.job.run(1)
    place.job.run(2)
    place.put_back()
    with pytest.raises(StaleServerError) as caught:
        place.job.run(3)
    assert caught.value.details["missing"] == {"kafka": [1, 2]}
    assert "accept_lost_batches={'kafka': 2}" in caught.value.next_step
    assert place.visible() == values_of(0)
    handles = [one for one in place.job.decision(2).handles if one.transaction]
    later_ms = max(one.opened_ms for one in handles)
    with closing(KafkaCommitter({"bootstrap.servers": place.bootstrap}, "kafka")) as committer:
        half_a_week_s = 7 * 24 * 3600 / 2
        for passed_s, missing in ((-1.0, []), (half_a_week_s - 60, handles), (half_a_week_s + 60, [])):
            now = later_ms * 1_000_000 + int(passed_s * 1e9)
            clock = SimpleNamespace(time_ns=lambda now=now: now, monotonic=time.monotonic)
            monkeypatch.setattr(committer_module, "time", clock)
            assert committer.missing(handles) == missing
    monkeypatch.undo()
    place.job.accept_lost = {"kafka": 2}
    place.job.run(3, 4)
    place.job.run(5)
    assert place.visible() == values_of(0, 3, 4, 5)


@pytest.mark.slow
def test_another_cluster_in_its_place_is_taken_when_it_is_named(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    place.job.run(0, 1)
    old = place.cluster.cluster_id
    with Cluster() as other:
        place.bootstrap = other.bootstrap
        Witness(other.bootstrap).create_topic(name=TOPIC)
        for named in ({}, {"former_cluster_id": other.cluster_id}):
            place.sink = named
            with pytest.raises(PreflightError) as caught:
                place.job.run(2)
            assert f"leads to the cluster {other.cluster_id!r}" in caught.value.message
            assert f"KafkaSink(..., former_cluster_id={old!r})" in caught.value.next_step
        place.sink = {"former_cluster_id": old}
        with caplog.at_level(logging.WARNING, "sparkonce"):
            place.job.run(2)
        assert f"This query wrote to the cluster {old!r} until now" in caplog.text
        assert "deleted and recreated" not in caplog.text
        place.job.run(3)
        assert place.visible() == values_of(2, 3)
        place.bootstrap = place.cluster.bootstrap
        with pytest.raises(PreflightError):
            place.job.run(4)
