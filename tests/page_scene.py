"""A query with a real log written by the driver, and a timeline of generated batches."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from small_job import SmallJob
from sparkonce.decision_log import DecisionLog
from sparkonce.driver.start import read_log
from sparkonce.operate.systems import OperatorFile
from sparkonce.protocol.state import Phase
from sparkonce.sinks.memory import MemoryServer, MemorySink
from sparkonce.storage.local import LocalFiles
from sparkonce.ui.server import PageServer
from sparkonce.ui.watcher import PageWatcher
from sparkonce.watch.figures import InDoubt, WatchedBatch, WatchedEvent
from sparkonce.watch.timeline import BATCHES_A_SEGMENT, RunNow, TimelineSegment

NO_SYSTEMS = OperatorFile(path="", systems={}, sinks={})
USUAL = (
    (Phase.READING, 12),
    (Phase.WRITING, 620),
    (Phase.VALIDATING, 8),
    (Phase.DECIDING, 35),
    (Phase.FINISHING, 140),
    (Phase.CONCLUDING, 9),
    (Phase.REPORTING, 14),
)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def watched(number: int, began_ms: int, *, recovered: bool = False, healed: int = 0) -> WatchedBatch:
    """Returns a batch that differs slightly from its predecessor. Every 97th batch is slow."""
    factor = (60 + number * 37 % 80) / 100 * (6 if number % 97 == 96 else 1)
    phases = [(phase.value, max(1, int(took * factor))) for phase, took in USUAL]
    if recovered:
        phases.insert(2, (Phase.REPLAYING.value, 400))
    rows = 15_000 + number * 113 % 9_000
    return WatchedBatch(
        batch=number,
        rows={"kafka": rows, "orders": rows - 40},
        transactions=16,
        recovered=recovered,
        healed=healed,
        began_ms=began_ms,
        phases=phases,
    )


class PageScene:
    """A checkpoint with a log, Spark's files and a timeline.

    Attributes:
        path: The checkpoint.
        name: The query's name in its timeline.
        job: The query without Spark.
    """

    def __init__(self, path: Path, *, name: str = "totals") -> None:
        self.path, self.name = path, name
        server, batches = MemoryServer(), range(3)
        self.job = job = SmallJob(
            path,
            lambda: [MemorySink(server, name=one) for one in ("kafka", "orders")],
            lambda *_: pa.record_batch({"id": [0, 1, 2]}),
        )
        self.query = job.query
        path.mkdir(parents=True)
        (path / "metadata").write_text(json.dumps({"id": job.query}))
        for number in batches:
            self.plan(number)
        job.run(*batches)
        newest = read_log(DecisionLog(LocalFiles(path))).newest_run
        self.run = f"{newest.token.position}-{newest.token.nonce}"
        self.timeline = path / "sparkonce" / "timeline"
        self.timeline.mkdir()
        self.newest: TimelineSegment | None = None

    def plan(self, number: int) -> None:
        """Writes the files that Spark writes for a batch, and marks the batch as done."""
        for folder, text in (("offsets", f'v1\n{{}}\n{{"t":{{"0":{number}}}}}'), ("commits", "v1\n{}")):
            (self.path / folder).mkdir(exist_ok=True)
            (self.path / folder / str(number)).write_text(text)

    def write(
        self, batches: Sequence[WatchedBatch], events: Sequence[WatchedEvent] = (), *, run: str = "", **now: object
    ) -> None:
        """Rewrites the timeline of a run as its driver would. ``now`` sets fields of the newest segment's `RunNow`."""
        last = batches[-1] if batches else None
        standing = RunNow(
            written_ms=now_ms(),
            batch=last.batch if last else None,
            phase=Phase.IDLE.value,
            since_ms=last.began_ms + last.took_ms if last else now_ms(),
            in_doubt=InDoubt(),
        )
        parts = [batches[i : i + BATCHES_A_SEGMENT] for i in range(0, len(batches), BATCHES_A_SEGMENT)] or [[]]
        for number, part in enumerate(parts):
            self.newest = TimelineSegment(
                run=run or self.run,
                number=number,
                query=self.query,
                spark_run="8d0f5f0e-1d1b-4a53-9a3e-2f4a8a3c2a11",
                name=self.name,
                host="driver-3.example",
                timeout_ms={"kafka": 900_000},
                now=standing,
                batches=part,
                events=events,
            )
            self.put(self.newest)
        self.change(**now)

    def add(self, batch: WatchedBatch) -> None:
        """Writes another segment with one more batch."""
        self.newest = replace(self.newest, number=self.newest.number + 1, batches=[batch])
        self.change(batch=batch.batch)

    def change(self, events: Sequence[WatchedEvent] = (), **now: object) -> None:
        """Writes the newest segment again, with another state and more events."""
        standing = replace(self.newest.now, written_ms=now.pop("written_ms", now_ms()), **now)
        self.newest = replace(self.newest, now=standing, events=[*self.newest.events, *events])
        self.put(self.newest)

    def put(self, segment: TimelineSegment) -> None:
        position, _, nonce = segment.run.partition("-")
        path = f"{int(position):020d}-{nonce}.{segment.number:09d}.json"
        LocalFiles(self.timeline).replace(path, segment.encoded())


def many(number: int, until_ms: int, first: int = 0) -> list[WatchedBatch]:
    """Returns this many consecutive batches, the newest of which ended shortly before the given time."""
    found = [watched(first + i, 0) for i in range(number)]
    begin_ms = until_ms - sum(max(1100, one.took_ms + 40) for one in found)
    for i, one in enumerate(found):
        found[i] = replace(one, began_ms=begin_ms)
        begin_ms += max(1100, one.took_ms + 40)
    return found


@contextmanager
def served(*scenes: PageScene, file: OperatorFile = NO_SYSTEMS, host: str = "127.0.0.1") -> Iterator[PageServer]:
    """Runs the page's server in this process. It refreshes more often than the command does."""
    watcher = PageWatcher(
        {str(one.path): LocalFiles(one.path) for one in scenes},
        file,
        checkpoints_every_s=0.1,
        systems_every_s=0.1,
    )
    with PageServer(watcher, host, 0) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
            watcher.close()
