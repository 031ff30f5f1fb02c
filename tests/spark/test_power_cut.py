"""A machine loses power, and the next start finds exactly what its disk contained at that moment.

The checkpoint and the target are on a separate ext4 file system. Its image is copied in a certain phase, as it is on
the device, so unsynced data in the kernel's memory is lost. The copy then replaces the disk, and the query is
restarted.
"""

from __future__ import annotations

import shlex
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException

from spark.harness import new_name
from spark.in_process import SPARK, CrashError, call_at, ended
from sparkonce import DeltaSink, ExactlyOnce, FilesSink
from sparkonce.errors import CheckpointMismatchError
from sparkonce.protocol.state import Phase
from sparkonce_lab.kafka import create_topic, produce
from sparkonce_lab.rig.disk import cannot_mount

pytestmark = [*SPARK, pytest.mark.skipif(bool(cannot_mount()), reason="disks cannot be mounted here")]

BATCHES = 3
CUT_IN = 2
"""The batch in which the power fails."""
FIRST = {(Phase.DECIDING, "json"), (Phase.FINISHING, "json")}
UNDECIDED = (Phase.WRITING, Phase.DECIDING)
"""In these phases, nothing that Spark has written for the batch is durable yet."""
STATE = "org.apache.spark.sql.execution.streaming.state"


class Disk:
    """A folder on a separate ext4 file system, in an image file."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._image, self._copy = folder / "disk", folder / "image", folder / "copy"
        self.folder.mkdir()
        subprocess.run(["truncate", "-s", "64M", self._image], check=True)
        subprocess.run(["mkfs.ext4", "-q", self._image], check=True)
        self.mount()

    def mount(self) -> None:
        subprocess.run(["mount", "-o", "loop", self._image, self.folder], check=True)

    def unmount(self) -> None:
        subprocess.run(["umount", "--lazy", self.folder], check=True)

    def cut(self) -> None:
        shutil.copyfile(self._image, self._copy)
        raise CrashError("the power is gone")

    def come_back(self) -> None:
        self.unmount()
        self._image = self._copy
        self.mount()


@pytest.fixture
def disk(tmp_path) -> Iterator[Disk]:
    made = Disk(tmp_path)
    yield made
    made.unmount()


CUTS = (Phase.WRITING, Phase.DECIDING, Phase.FINISHING, Phase.CONCLUDING, Phase.IDLE)


def cut_and_start_again(disk: Disk, phase: Phase, start: Callable[..., None], meanwhile: Callable[[], object]) -> None:
    """Cuts the power in the phase, restarts, and follows the instructions if the start is refused."""
    with pytest.raises(StreamingQueryException):
        start(listener=call_at(phase, CUT_IN, disk.cut))
    disk.come_back()
    meanwhile()
    refused = None
    try:
        start()
    except CheckpointMismatchError as error:
        refused = error
    if refused is not None:  # unless the kernel has already written Spark's files
        assert phase in UNDECIDED, f"a decided batch needs nobody's help: {refused}"
        subprocess.run(shlex.split(refused.next_step.partition("again: ")[2]), check=True)
        start()


@pytest.mark.parametrize(
    ("phase", "kind"),
    [
        pytest.param(phase, kind, marks=[] if (phase, kind) in FIRST else pytest.mark.slow, id=f"{phase.name}-{kind}")
        for phase in CUTS
        for kind in ("json", "delta", "delta-alone")
    ],
)
def test_each_row_is_there_once_after_a_power_cut(phase, kind, tables, disk, tmp_path):
    """Delta does not sync its versions, so the newest may be empty although it was noted as written.

    In other cases, only the table is on that disk, and the checkpoint is on one that loses nothing.
    """
    given = tmp_path / "input"
    given.mkdir()
    for number in range(BATCHES):
        (given / f"{number}.json").write_text(f'{{"id": {number}}}')
    checkpoint = (tmp_path if kind == "delta-alone" else disk.folder) / "checkpoint"
    target, read_as = disk.folder / "target", kind.partition("-")[0]

    if read_as == "delta":
        tables.createDataFrame([], "id long").write.format("delta").save(str(target))
        subprocess.run(["sync"], check=True)

    def start(**listening: Any) -> None:
        rows = tables.readStream.schema("id long").option("maxFilesPerTrigger", 1).json(str(given))
        sink = DeltaSink(str(target)) if read_as == "delta" else FilesSink(str(target), format="json")
        ended(ExactlyOnce(sink, checkpoint=str(checkpoint), **listening).start(rows, trigger={"availableNow": True}))

    def arrive() -> None:
        tables._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
        (given / f"{BATCHES}.json").write_text(f'{{"id": {BATCHES}}}')  # must not replace a decided file

    cut_and_start_again(disk, phase, start, arrive)
    found = tables.read.format(read_as).load(str(target)).select("id").collect()
    assert Counter(row.id for row in found) == Counter(range(BATCHES + 1))


@pytest.mark.slow
@pytest.mark.kafka
@pytest.mark.parametrize("state", [None, "HDFSBackedStateStoreProvider", "RocksDBStateStoreProvider"])
@pytest.mark.parametrize("phase", CUTS, ids=lambda phase: phase.name)
def test_offsets_of_kafka_and_state_survive_a_power_cut(phase, state, spark, kafka, disk):
    """Each batch repeats the key of the previous one, and only the query's state contains that key."""
    provider = "spark.sql.streaming.stateStore.providerClass"
    source = new_name("source")
    create_topic(kafka.bootstrap, source, 1)
    checkpoint, target = disk.folder / "checkpoint", disk.folder / "target"

    def send(*batches: int) -> None:
        keys = [key for batch in batches for key in (batch - 1, batch) if state or key == batch]
        produce(kafka.bootstrap, source, [{"value": f"{key}".encode()} for key in keys])

    def start(**listening: Any) -> None:
        reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", kafka.bootstrap)
        reader = reader.option("subscribe", source).option("startingOffsets", "earliest")
        rows = reader.option("maxOffsetsPerTrigger", 2 if state else 1).load().selectExpr("string(value) as id")
        rows = rows.dropDuplicates(["id"]) if state else rows
        once = ExactlyOnce(FilesSink(str(target), format="json"), checkpoint=str(checkpoint), **listening)
        ended(once.start(rows, trigger={"availableNow": True}))

    send(*range(BATCHES))
    if state:
        spark.conf.set(provider, f"{STATE}.{state}")
    try:
        cut_and_start_again(disk, phase, start, lambda: send(BATCHES))
    finally:
        spark.conf.unset(provider)
    found = Counter(int(row.id) for row in spark.read.json(str(target)).collect())
    assert found == Counter(range(-1 if state else 0, BATCHES + 1))
