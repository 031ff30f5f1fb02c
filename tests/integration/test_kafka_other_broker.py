"""A job on another implementation of the broker (franz-go's kfake), which refuses requests at random.

It proves nothing about Apache Kafka: it is a second opinion on what answers mean, and refuses what Kafka rarely does.
"""

from __future__ import annotations

import hashlib
import logging
import os
import random
import shutil
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pyarrow as pa
import pytest

from small_job import SmallJob
from sparkonce.driver import put
from sparkonce.errors import SparkonceError
from sparkonce.protocol.state import Phase
from sparkonce.rig.kafka.jars import cache_folder
from sparkonce.sinks.kafka.sink import KafkaSink
from sparkonce.testing.kafka import list_transactions, read_committed

pytestmark = pytest.mark.kafka

log = logging.getLogger(__name__)

SOURCE = Path(__file__).parents[1] / "kfake"
BATCHES, SLOTS, ROWS = 7, 2, 5
KILLED_AT = (Phase.WRITING, Phase.DECIDING, Phase.FINISHING, Phase.SWEEPING)
STARTS = 20


@cache
def program() -> Path:
    """Built once for each state of the source, and kept."""
    if shutil.which("go") is None:
        pytest.skip("Go is not installed")
    source = b"".join((SOURCE / name).read_bytes() for name in ("go.mod", "go.sum", "main.go"))
    built = cache_folder() / "bin" / f"kfake-{hashlib.sha256(source).hexdigest()[:16]}"
    if not built.exists():
        built.parent.mkdir(parents=True, exist_ok=True)
        mine = built.with_name(f"{built.name}.{os.getpid()}")
        subprocess.run(["go", "build", "-o", mine, "."], cwd=SOURCE, check=True, timeout=300)
        mine.replace(built)
    return built


class Other:
    """Brokers in one process.

    Attributes:
        bootstrap: Where they are.
    """

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        self._process, self._said = process, process.stdout
        self.bootstrap = self._said.readline().strip()

    def rest(self) -> str:
        """Refuses nothing from now on. Says how often what was refused."""
        self._process.send_signal(signal.SIGUSR1)
        return self._said.readline().strip()


@contextmanager
def other(level: str, brokers: int, rate: float, seed: int) -> Iterator[Other]:
    arguments = [f"--level={level}", f"--brokers={brokers}", f"--rate={rate}", f"--seed={seed}"]
    process = subprocess.Popen([program(), *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield Other(process)
    finally:
        process.communicate(timeout=30)


def rows(batch: int, slot: int) -> pa.RecordBatch:
    start = (batch * SLOTS + slot) * ROWS
    return pa.record_batch({"value": [str(number) for number in range(start, start + ROWS)]})


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    ("level", "brokers", "rate"),
    [
        ("4.4", 3, 0.15),
        pytest.param("4.4", 1, 0.3, marks=SLOW),
        pytest.param("4.0", 1, 0.3, marks=SLOW),
        pytest.param("3.7", 3, 0.15, marks=SLOW),
        pytest.param("3.0", 1, 0.3, marks=SLOW),
    ],
)
def test_each_row_is_there_once_whatever_is_refused(
    level: str,
    brokers: int,
    rate: float,
    tmp_path: Path,
    pytestconfig: pytest.Config,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # There is no second driver that the next claim would depose: many starts in a row wait minutes otherwise.
    monkeypatch.setattr(put, "LONGEST_BACK_OFF_S", 0.0)
    seed = int(pytestconfig.getoption("--seed"))
    dice = random.Random(seed)
    with other(level, brokers, rate, seed) as kafka:
        settings = {"bootstrap.servers": kafka.bootstrap, "message.timeout.ms": 10_000, "log_level": 0}
        job = SmallJob(
            tmp_path,
            lambda: [KafkaSink(settings, topic="out", prefix="job")],
            rows,
            slots=SLOTS,
            deadline_s=60.0,
        )
        for batch in range(BATCHES):
            if dice.randrange(2):
                kill(job, batch, dice.choice(KILLED_AT))
            run(job, batch)
        refused = kafka.rest()
        log.warning("refused: %s", refused)
        found = Counter(int(record.value or b"-1") for record in read_committed(kafka.bootstrap, "out"))
        assert found == Counter(range(BATCHES * SLOTS * ROWS))
        assert list_transactions(kafka.bootstrap, states=["Ongoing"]) == {}
        assert refused


def kill(job: SmallJob, batch: int, phase: Phase) -> None:
    """A run that dies there, if it comes there."""
    try:
        job.kill(batch, phase)
    except (SparkonceError, AssertionError) as error:
        log.warning("batch %d, to die while %s: %s", batch, phase.value, error)


def run(job: SmallJob, batch: int) -> None:
    """Starts the job until the batch is through: what was refused may have stopped it, and nothing else may."""
    for start in range(STARTS):
        if is_through(job, batch, start):
            return
    pytest.fail(f"batch {batch} was not through after {STARTS} starts")


def is_through(job: SmallJob, batch: int, start: int) -> bool:
    try:
        job.run(batch)
    except SparkonceError as error:
        log.warning("batch %d, start %d: %s: %s", batch, start, type(error).__name__, error)
        return False
    return True
