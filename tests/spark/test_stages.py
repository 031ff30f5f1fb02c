"""Shuffle files are lost while their rows are written, so Spark runs the stages again, with tasks that already wrote.

Spark restarts the attempt numbers at 0, so the tasks cannot notice.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from pyspark.sql import DataFrame, SparkSession

from conformance.folder_sink import FolderSink
from eventually import eventually
from shared_servers import needs_postgres
from spark.in_process import LIMIT_S, MARKS
from sparkonce import ExactlyOnce, FilesSink, Guarantee, PostgresSink
from sparkonce.sink import SinkWriter, TwoPhaseCommitSink, WriterContext
from sparkonce_lab.forwarding import ForwardingSink, ForwardingWriter
from tryout.bulk import make_orders

pytestmark = [*MARKS, pytest.mark.usefixtures("travels")]

SLOTS, HELD = 3, (0, 1)
"""With three slots on two cores, the third has not read its rows when the first two have written theirs."""


class _HeldSink(ForwardingSink):
    """Wraps a sink. After the first attempts of two slots have written, they wait until they may continue.

    Args:
        real: The wrapped sink.
        folder: The folder in which attempts report that they have written, and that tells them to continue.
    """

    def __init__(self, real: TwoPhaseCommitSink, folder: Path) -> None:
        super().__init__(real)
        self._folder = folder

    def writer(self, context: WriterContext) -> SinkWriter:
        return _HeldWriter(super().writer(context), self._folder, context)


class _HeldWriter(ForwardingWriter):
    def __init__(self, real: SinkWriter, folder: Path, context: WriterContext) -> None:
        super().__init__(real)
        self._copy = folder / f"copy {context.slot} {context.copy}"
        self._wrote, self._go = folder / f"wrote-{context.slot}", folder / f"go-{context.slot}"
        self._held = context.slot in HELD

    def write(self, rows: pa.RecordBatch) -> None:
        self._real.write(rows)
        self._copy.touch()
        try:
            self._wrote.touch(exist_ok=False)
        except FileExistsError:
            return
        while self._held and not self._go.exists():
            time.sleep(0.01)


def spread(df: DataFrame) -> DataFrame:
    return df.repartition(SLOTS)


@contextmanager
def shuffle_files_lost(spark: SparkSession, folder: Path, *sinks: TwoPhaseCommitSink) -> Iterator[Callable[[], None]]:
    """Runs a query of three slots and deletes its shuffle files once two have written; then the second one continues.

    Yields:
        A function that waits for the end of the query.
    """
    rows = spark.readStream.schema("id bigint").json(str(folder / "orders")).withColumnRenamed("id", "number")
    # With no periodic sweeps, a sweep runs only if the run knows that there may be superseded attempts.
    never = {"sweep_every_s": 3600.0}
    once = ExactlyOnce(dict.fromkeys(sinks, spread), checkpoint=str(folder / "checkpoint"), display=False, **never)
    query = once.start(rows, trigger={"availableNow": True})

    def finish() -> None:
        assert query.awaitTermination(LIMIT_S)

    try:
        for slot in HELD:
            eventually((folder / f"wrote-{slot}").exists, f"slot {slot} has written")
        for file in Path(spark.conf.get("spark.local.dir")).rglob("shuffle_*"):
            file.unlink()
        (folder / "go-1").touch()
        eventually((folder / "wrote-2").exists, "slot 2 has written")
        yield finish
    finally:
        for slot in HELD:
            (folder / f"go-{slot}").touch()
        query.stop()
        gc.collect()


def test_rows_that_may_have_been_written_are_not_written_again_at_most_once(spark, tmp_path):
    sent = make_orders(tmp_path / "orders", files=2)
    once = FolderSink(tmp_path / "sink", guarantee=Guarantee.AT_MOST_ONCE)
    with shuffle_files_lost(spark, tmp_path, _HeldSink(once, tmp_path)) as finish:
        (tmp_path / "go-0").touch()
        finish()
    written = [int(line) for path in (tmp_path / "sink" / "committed").iterdir() for line in path.read_text().split()]
    assert sorted(written) == sent


@needs_postgres
def test_a_copy_whose_stage_was_run_again_leaves_nothing_behind(spark, postgres, tmp_path):
    """Slot 0's first attempt is held after its write until another one has replaced it and the batch is committed."""
    sent = make_orders(tmp_path / "orders", files=2)
    postgres.ask("CREATE TABLE numbers (number bigint)")
    table = PostgresSink(postgres.server.conninfo(), table="numbers", commit="two_phase")
    files = FilesSink(tmp_path / "files")
    held = _HeldSink(table, tmp_path)
    with shuffle_files_lost(spark, tmp_path, files, held) as finish:
        finish()
        assert len(list(tmp_path.glob("copy 0 *.0"))) == 2, "Spark has not run a stage again"
        for _ in range(2):
            assert sorted(number for (number,) in postgres.ask("SELECT number FROM numbers")) == sent
            assert sorted(ds.dataset(files.path).to_table()["number"].to_pylist()) == sent
            assert postgres.prepared() == []
            assert list((Path(files.path) / ".sparkonce" / "held").iterdir()) == []
            (tmp_path / "go-0").touch()
            eventually(lambda: not postgres.left_open(), "the losing copy is gone")
