"""Writes the golden files anew, with the code as it is: what a checkpoint, a sink and a server hold of a real query.

From the repository's root, with every server that the tests know::

    python3 dev.py run env PYTHONPATH=tests:examples python -m golden.make FOLDER

Files of a version that was released are never written anew: see `golden.kept`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import platform
import secrets
import shutil
import subprocess
import sys
import tempfile
import uuid
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

from pyspark.sql import DataFrame, SparkSession

from golden.kept import EMPTY, plain
from golden.places import Servers, sinks, started
from golden.said import said_by
from golden.story import QUERY, Losing, Story
from jvm import jars_beside_spark
from spark.conftest import table_libraries
from spark.pipeline import Config, session
from spark.table_job import table_session
from sparkonce import read_kafka
from sparkonce.driver import run as driver
from sparkonce.log.local import LocalLogStore
from sparkonce.protocol import horizon
from sparkonce.protocol.state import Phase
from sparkonce.protocol.view import LogView
from sparkonce.rig.kafka.jars import spark_kafka_jars
from sparkonce.sinks.files import committer as files
from sparkonce.sinks.files import handle as files_handle
from sparkonce.sinks.files import manifests
from sparkonce.sinks.files.handle import read_handle
from sparkonce.sinks.files.names import name_in
from sparkonce.sinks.kafka.producer_pool import this_worker
from sparkonce.sinks.write_ahead import committer as write_ahead
from sparkonce.spark.tables.iceberg import _IcebergTable
from sparkonce.testing.kafka import produce
from startup import jvm_flags

WORK = Path(tempfile.gettempdir()) / "sparkonce-golden"
"""The checkpoint's place is a part of what is written."""

BATCHES = 7
KILLED = 3
"""The batch that is undecided in one state, and decided in the other."""


def main(folder: Path, *, verified: bool = True) -> None:
    """Writes all of it; a run of the verifier takes some minutes more than the rest."""
    folder.mkdir(parents=True)
    WORK.mkdir()
    try:
        with _drawn_alike(), _tidied_soon(), _spark() as spark, started(WORK, spark) as servers:
            _read_by_spark(servers)
            _tell(servers, folder)
            this_worker().stop()
        if verified:
            _verify(folder / "verified")
    finally:
        shutil.rmtree(WORK)


def _tell(servers: Servers, folder: Path) -> None:
    """Brings the query from state to state, and keeps each."""
    checkpoint, spark = WORK / "checkpoint", WORK / "spark"
    story = Story(checkpoint, spark, sinks(servers))

    def keep(state: str, begun: int, finished: int) -> None:
        shutil.copytree(checkpoint, folder / state / "checkpoint")
        _spark_files(folder / state / "checkpoint", begun, finished)
        shutil.copytree(servers.folder / "files", folder / state / "files", ignore=_not_held_back)
        empty = [path for path in (folder / state).rglob("*") if path.is_dir() and not any(path.iterdir())]
        listed = "\n".join(sorted(path.relative_to(folder / state).as_posix() for path in empty))
        (folder / state / EMPTY).write_text(f"{listed}\n")
        said = json.dumps(said_by(servers, story), indent=1, ensure_ascii=False)
        (folder / state / "servers.json").write_text(f"{said}\n")
        log = json.dumps(plain(story.log().read(LogView())), indent=1)
        (folder / state / "expected.json").write_text(f"{log}\n")

    story.run(0, 1, 2)
    story.kill(KILLED, Phase.DECIDING)
    keep("undecided", KILLED, KILLED - 1)
    story.kill(KILLED, Phase.FINISHING)
    keep("decided", KILLED, KILLED - 1)
    _lose(servers, story)
    # Attempts that Iceberg has published, and whose branches nobody removes.
    with patch.object(_IcebergTable, "discard", lambda *_: None):
        story.run(*range(KILLED, BATCHES), store=Losing(LocalLogStore(checkpoint), KILLED + 2))
    keep("finished", BATCHES - 1, BATCHES - 1)


def _not_held_back(folder: str, names: list[str]) -> list[str]:
    """Files of sinks that hold nothing back are like any others; nobody asks for those of older batches in folders."""
    if Path(folder).name in ("direct", "once"):
        return [name for name in names if name.startswith("part-")]
    in_folders = [one for name in names if "=" in Path(folder).name and (one := name_in(name)) and one.batch < KILLED]
    return [name for name in names if name_in(name) in in_folders]


def _lose(servers: Servers, story: Story) -> None:
    """Somebody deletes a file that is held back: it is written again, and the decision amended."""
    lost = next(one for one in story.decision(KILLED).handles if one.key == ("files", 1))
    for one in read_handle(lost).files or ():
        (servers.folder / "files" / "plain" / ".sparkonce" / "held" / str(one["held"])).unlink()


# --- Spark's own -----------------------------------------------------------------------------------------------------


def _read_by_spark(servers: Servers) -> None:
    """A query of Spark's that reads as many batches and does nothing with them. Its id is given."""
    settings = {"bootstrap.servers": servers.kafka.bootstrap}
    for number in range(2 * BATCHES):
        produce(settings["bootstrap.servers"], "orders", [{"key": b"k", "value": b"v", "partition": number % 2}])
    (WORK / "spark").mkdir()
    (WORK / "spark" / "metadata").write_text(json.dumps({"id": QUERY}, separators=(",", ":")))

    def nothing(_: DataFrame, __: int) -> None:
        return None

    rows = read_kafka(servers.spark, settings, topics="orders", starting="earliest", max_offsets_per_trigger=2)
    writer = rows.writeStream.foreachBatch(nothing).option("checkpointLocation", str(WORK / "spark"))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    assert query.lastProgress["batchId"] == BATCHES - 1, query.lastProgress


def _spark_files(checkpoint: Path, begun: int, finished: int) -> None:
    """Spark's files as they are once one batch has begun and another is the last that is finished."""
    spark = WORK / "spark"
    shutil.copy(spark / "metadata", checkpoint)
    shutil.copytree(spark / "sources", checkpoint / "sources")
    for log, last in (("offsets", begun), ("commits", finished)):
        (checkpoint / log).mkdir()
        for batch in range(last + 1):
            for name in (str(batch), f".{batch}.crc"):
                shutil.copy(spark / log / name, checkpoint / log)


@contextmanager
def _spark() -> Iterator[SparkSession]:
    tables = [jar for library in table_libraries() for jar in jars_beside_spark(library)]
    config = Config(
        sources=(),
        jars=tuple(str(jar) for jar in [*spark_kafka_jars(), *tables]),
        jvm_flags=jvm_flags(),
        temporary=str(WORK),
        spark={"spark.python.daemon.module": "pyspark.daemon"},
        **dict.fromkeys(("bootstrap", "target", "checkpoint", "gate"), ""),
    )
    plain = session(config)
    try:
        with table_session(plain, WORK / "warehouse") as made:
            yield made
    finally:
        plain.stop()


# --- always alike ----------------------------------------------------------------------------------------------------


@contextmanager
def _drawn_alike() -> Iterator[None]:
    """Makes what each module draws the same each time, as far as its threads draw in order; so are host and process."""
    drawn: defaultdict[str, Iterator[int]] = defaultdict(count)

    def draw(module: str, nbytes: int) -> str:
        return hashlib.sha256(f"{module} {next(drawn[module])}".encode()).hexdigest()[: 2 * nbytes]

    def token_hex(nbytes: int = 32) -> str:
        return draw(sys._getframe(1).f_globals["__name__"], nbytes)

    def uuid4() -> uuid.UUID:
        return uuid.UUID(hex=draw(sys._getframe(1).f_globals["__name__"], 16), version=4)

    host = SimpleNamespace(gethostname=lambda: "driver.example")
    process = SimpleNamespace(getpid=lambda: 4711)
    with (
        patch.object(secrets, "token_hex", token_hex),
        patch.object(uuid, "uuid4", uuid4),
        patch.object(driver, "socket", host),
        patch.object(driver, "os", process),
    ):
        yield


@contextmanager
def _tidied_soon() -> Iterator[None]:
    """A few batches are enough for a floor, for merged manifests and lists, and for what is forgotten."""
    with (
        patch.object(horizon, "KEEP_BATCHES", 3),
        patch.object(horizon, "TIDY_EVERY_BATCHES", 3),
        patch.object(files_handle, "LONGEST_BYTES", 700),
        patch.object(files, "KEPT_BATCHES", 4),
        patch.object(files, "TIDY_EVERY", 1),
        patch.object(manifests, "MERGED", 2),
        patch.object(write_ahead, "KEEP_BATCHES", 4),
        patch.object(write_ahead, "TIDY_EVERY_BATCHES", 1),
    ):
        yield


# --- a run of the verifier -------------------------------------------------------------------------------------------


def _verify(folder: Path) -> None:
    """Keeps what a short run has recorded, which is read again by ``--judge`` and ``--replay``."""
    made = WORK / "verified"
    asked = ["--system", "files", "--rows", "2000", "--rate", "50", "--faults", "2", "--seed", "7", "--out", str(made)]
    command = [sys.executable, "-c", "from sparkonce.cli.main import app; app()", "verify", *asked]
    subprocess.run(command, check=True)
    folder.mkdir()
    for path in made.glob("*.parquet"):
        shutil.copy(path, folder)
    history = (made / "history.jsonl").read_text()
    (folder / "history.jsonl").write_text(history.replace(platform.platform(), "Linux"))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--without-verified", action="store_true")
    asked = parser.parse_args()
    main(asked.folder.absolute(), verified=not asked.without_verified)
