"""A query's scenario: orders flow, it is killed and started again on its checkpoint, and its output is counted."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from sparkonce.storage.spark import SparkCheckpoint
from sparkonce_lab.checkpoint import open_place
from sparkonce_lab.child import Driver
from sparkonce_lab.demo.console import Console
from sparkonce_lab.demo.result import Kill, Variant, compare
from sparkonce_lab.errors import RunFailedError
from sparkonce_lab.feed import Feeder
from sparkonce_lab.kafka import LiveReader, create_topic, list_transactions, read_committed, read_uncommitted
from sparkonce_lab.query import QueryConfig
from sparkonce_lab.rig.child import Event
from sparkonce_lab.rig.process import POLL_S
from sparkonce_lab.systems.observed import of_texts
from sparkonce_lab.workload import Workload

WHOLE_BATCHES = 2
"""The batches that a start finishes before it is killed: the one that it recovers and one more."""
CUSTOMERS = 100

STEP_S = 120.0
"""Longest time for any one step. A start of Spark and a few batches take a tenth of it."""
_STOP_S = 30.0
_QUERY_STOPS_WITHIN_S = 25.0
_QUIET_S = 0.5
_CATCH_UP_S = 10.0


def new_workload(rows_per_second: int, seed: int) -> Workload:
    """Makes the orders: a customer, an amount in cents and an event time each, for windows of one second."""
    return Workload(seed=seed, keys=CUSTOMERS, skew=0.0, rows_per_second=rows_per_second, window_ms=1_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """The broker, the orders, and the rest that every scenario needs.

    Attributes:
        bootstrap: ``bootstrap.servers`` of a broker that nothing else uses.
        folder: For checkpoint, logs and temporary files.
        jars: Of Spark's Kafka source.
        workload: The orders.
        console: Shows what happens.
        checkpoints: Where the checkpoints are; in the folder if it is empty.
        conf: Spark's settings of their store.
    """

    bootstrap: str
    folder: Path
    jars: Sequence[Path]
    workload: Workload
    console: Console
    checkpoints: str = ""
    conf: Mapping[str, str] = field(default_factory=dict)


class _DemoReader(LiveReader):
    """Keeps every record of the output, and counts those that come again."""

    def __init__(self, bootstrap: str, topic: str, partitions: int) -> None:
        super().__init__(bootstrap, topic, partitions)
        self.seen: list[tuple[int, int, bytes]] = []
        self.doubled = 0
        self._sums: set[bytes] = set()

    def take(self, messages: Sequence[Any]) -> None:
        for message in messages:
            self.seen.append((message.partition(), message.offset(), message.value()))
            key_and_window = message.value().rsplit(b",", 3)[0]
            self.doubled += key_and_window in self._sums
            self._sums.add(key_and_window)


class Scenario(ABC):
    """One query, killed and counted. A subclass knows how to kill it.

    Args:
        context: The broker, the orders, and the rest.
    """

    sink: str
    """The sink's part of the names of topics and folders."""
    title: str

    def __init__(self, context: Context) -> None:
        self.context = context
        self.console = context.console
        self.folder = context.folder / self.sink
        place = f"{context.checkpoints}/{self.sink}" if context.checkpoints else str(self.folder / "checkpoint")
        self.checkpoint = SparkCheckpoint(open_place(place, context.conf))
        self.source, self.target = f"orders-{self.sink}", f"totals-{self.sink}"
        self.doing = ""
        self._starts = 0
        workload = context.workload
        self._feeder = Feeder({"bootstrap.servers": context.bootstrap}, self.source, workload, pauses=False)
        self._reader = _DemoReader(context.bootstrap, self.target, workload.partitions)

    @abstractmethod
    def kills(self) -> list[Kill]:
        """Starts and kills the query as often as it is to be killed."""

    @abstractmethod
    def config(self) -> QueryConfig:
        """Returns the query's configuration."""

    def take(self, event: Event) -> None:  # noqa: B027 - optional
        """Hears one event of the query."""

    def play(self) -> Variant:
        """Carries it out and counts.

        Raises:
            RunFailedError: if it cannot be carried through.
        """
        began = time.monotonic()
        self.folder.mkdir(parents=True)
        for topic in (self.source, self.target):
            create_topic(self.context.bootstrap, topic, self.context.workload.partitions)
        self.console.title(self.title)
        self.console.say("query", f"{self.source} → sum for each customer and second → {self.target}")
        self._feeder.start()
        self._reader.start()
        try:
            kills = self.kills()
            self._finish()
            return self._count(kills, began)
        finally:
            # The first failure is the one that is told.
            for stop in (self._feeder.stop, self._reader.stop):
                with suppress(Exception):
                    stop()

    def start(self) -> Driver:
        """Starts the query on its checkpoint."""
        self._starts += 1
        self.doing = "Spark starts"
        driver = Driver(
            self._starts,
            self.config().to_json(),
            log=self.folder / "query.log",
            temporary=self.folder / "tmp",
            module="sparkonce_lab.demo.query",
        )
        self.console.say("start", f"number {self._starts}, process {driver.pid}")
        return driver

    def until(self, holds: Callable[[], bool], what: str, driver: Driver) -> None:
        """Waits for something, and meanwhile looks after everything that moves.

        Args:
            holds: Tells whether it has come.
            what: The same in words.
            driver: The query.

        Raises:
            RunFailedError: if it does not come in time, or something failed.
        """
        give_up_at = time.monotonic() + STEP_S
        while True:
            self.look(driver)
            if holds():
                return
            driver.check_running()
            if time.monotonic() > give_up_at:
                raise RunFailedError(
                    f"It did not come within {STEP_S:.0f} s: {what}. Last heard: {self.doing}.",
                    next_step="Run it again with --keep DIR while the machine has less to do.",
                )
            time.sleep(POLL_S)

    def look(self, driver: Driver) -> None:
        """Hears the query, and shows how far everything is."""
        for event in driver.news():
            if event["event"] in ("stop", "failed"):
                raise RunFailedError(
                    f"The query failed with {event['error']}: {event['message']}",
                    next_step="Run it again with --keep DIR and read query.log there.",
                )
            self.take(event)
        self._feeder.check()
        self._reader.check()
        self.console.status(f"{self.doing} · {self._feeder.written:,} orders · read_committed reader: {self.seen()}")

    def seen(self) -> str:
        """Describes what the reader beside the query has seen so far."""
        return f"{len(self._reader.seen):,} rows, {self._reader.doubled:,} doubled"

    def common_config(self) -> dict[str, Any]:
        """Returns what all scenarios have in their configurations."""
        return {
            "source": {"bootstrap.servers": self.context.bootstrap},
            "topic": self.source,
            "checkpoint": self.checkpoint.files.location,
            "conf": self.context.conf,
            "temporary": str(self.folder / "tmp"),
            "jars": tuple(str(jar) for jar in self.context.jars),
            "window_ms": self.context.workload.window_ms,
            "trigger": "1 second",
            "shuffle_partitions": self.context.workload.partitions,
            "log_level": "INFO",
            "stop_within_s": _QUERY_STOPS_WITHIN_S,
        }

    def _finish(self) -> None:
        driver = self.start()
        try:
            enough = self.checkpoint.finished() + WHOLE_BATCHES
            self.until(lambda: self.checkpoint.finished() >= enough, "two batches after the last start", driver)
            self._feeder.stop()
            # Spark asks one partition after the other for its end: no order may come after a closing one.
            time.sleep(_QUIET_S)
            self._feeder.close_windows()
            self.console.say("orders", f"stopped after {self._feeder.written:,}; the last windows are closed")
            end_ms = self._feeder.closed_at_ms()
            self.until(lambda: self.checkpoint.finished_watermark_ms() >= end_ms, "all windows closed", driver)
            self.doing = "the query stops"
            self.look(driver)
            driver.stop(_STOP_S)
        finally:
            driver.kill()

    def _count(self, kills: Sequence[Kill], began: float) -> Variant:
        bootstrap = self.context.bootstrap
        self.console.status("counting")
        expected = self.context.workload.expected(self._feeder.written)
        rows = read_committed(bootstrap, self.target)
        everything = read_uncommitted(bootstrap, self.target)
        if not self._reader.wait_for(lambda: len(self._reader.seen) >= len(rows), _CATCH_UP_S):
            raise RunFailedError(
                f"The live reader saw {len(self._reader.seen)} of {len(rows)} committed rows in {_CATCH_UP_S:.0f} s.",
                next_step="Run it again; if that repeats, look at the broker's log with --keep.",
            )
        self._reader.stop()
        committed = {(record.partition, record.offset, record.value) for record in rows}
        left = list_transactions(bootstrap, states=["Ongoing"]).values()
        variant = Variant(
            title=self.title,
            kills=tuple(kills),
            count=compare(_sums(expected), of_texts([record.value for record in rows])),
            seen_live=len(self._reader.seen),
            seen_uncommitted=sum(place not in committed for place in self._reader.seen),
            left_open=sum(any(topic == self.target for topic, _ in one.partitions) for one in left),
            aborted_rows=len(everything) - len(rows),
            seconds=time.monotonic() - began,
        )
        count = variant.count
        self.console.say(
            "counted",
            f"{count.expected:,} rows expected, {count.seen:,} seen: "
            f"{count.missing:,} missing, {count.doubled:,} doubled, {count.wrong:,} wrong",
            "green" if variant.exactly_once else "bold red",
        )
        return variant

    def _tell_kill(self, number: int, kill: Kill) -> Kill:
        self.console.say(f"KILL {number}", f"batch {kill.batch}, {kill.point}", "bold red")
        self.console.detail(kill.standing if kill.proved else f"NOT WHERE IT WAS MEANT TO BE: {kill.standing}")
        self.console.detail(f"the reader has seen {self.seen()}")
        return kill


def _sums(rows: pa.Table) -> pa.Table:
    return rows.filter(pc.equal(rows["kind"], "sum"))
