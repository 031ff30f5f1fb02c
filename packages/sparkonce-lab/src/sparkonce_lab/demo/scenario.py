"""The whole demo: orders flow, a query is killed and restarted on its checkpoint, and its output is counted.

This is done once with sparkonce, and once with Spark's own Kafka sink. Each scenario knows how to kill its query.
"""

from __future__ import annotations

import shutil
import signal
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from sparkonce.errors import ConfigurationError
from sparkonce.protocol.state import Phase
from sparkonce.storage.spark import SparkCheckpoint
from sparkonce_lab.checkpoint import check_place, new_folder, open_place, with_connector
from sparkonce_lab.child import Driver
from sparkonce_lab.demo.console import Console
from sparkonce_lab.demo.result import CrashPoint, Kill, Result, Variant, compare, standing
from sparkonce_lab.errors import RunFailedError
from sparkonce_lab.kafka import LiveReader, create_topic, list_transactions, read_committed, read_uncommitted
from sparkonce_lab.query import QueryConfig
from sparkonce_lab.rig.child import Event
from sparkonce_lab.rig.kafka import KAFKA_VERSION, Cluster, spark_kafka_jars
from sparkonce_lab.rig.process import POLL_S, end_on_signals
from sparkonce_lab.systems.kafka import KafkaSystem
from sparkonce_lab.systems.observed import of_texts
from sparkonce_lab.workload import Feeder, Workload

WHOLE_BATCHES = 2
"""How many batches a start finishes before it is killed: the one that it recovers, and one more."""
CUSTOMERS = 100
STEP_S = 120.0
"""The longest time for any one step. Starting Spark and running a few batches take a tenth of it."""
_STOP_S = 30.0
_QUERY_STOPS_WITHIN_S = 25.0
_QUIET_S = 0.5
_CATCH_UP_S = 10.0


def new_workload(rows_per_second: int, seed: int) -> Workload:
    """Generates the orders, each with a customer, an amount in cents and an event time, for windows of one second."""
    return Workload(seed=seed, keys=CUSTOMERS, skew=0.0, rows_per_second=rows_per_second, window_ms=1_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """The broker, the orders, and everything else that every scenario needs.

    Attributes:
        bootstrap: The ``bootstrap.servers`` of a broker that nothing else uses.
        folder: The folder for checkpoint, logs and temporary files.
        jars: The jars of Spark's Kafka source.
        workload: The orders.
        console: Shows what happens.
        checkpoints: Where the checkpoints are; empty for inside the folder.
        conf: Spark's settings for their store.
    """

    bootstrap: str
    folder: Path
    jars: Sequence[Path]
    workload: Workload
    console: Console
    checkpoints: str = ""
    conf: Mapping[str, str] = field(default_factory=dict)


class _DemoReader(LiveReader):
    """Collects every record of the output, and counts repetitions."""

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
        context: The broker, the orders, and everything else.
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
        """Starts and kills the query as often as required."""

    @abstractmethod
    def config(self) -> QueryConfig:
        """Returns the query's configuration."""

    def take(self, event: Event) -> None:  # noqa: B027 - optional
        """Handles one event of the query."""

    def play(self) -> Variant:
        """Carries it out and counts.

        Raises:
            RunFailedError: If it cannot be completed.
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
            # Only the first failure is reported.
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
        """Waits for something, serving everything else meanwhile.

        Args:
            holds: Returns True once it has happened.
            what: A description of it.
            driver: The query.

        Raises:
            RunFailedError: If it does not happen in time, or something failed.
        """
        give_up_at = time.monotonic() + STEP_S
        while True:
            self.poll(driver)
            if holds():
                return
            driver.check_running()
            if time.monotonic() > give_up_at:
                raise RunFailedError(
                    f"It did not come within {STEP_S:.0f} s: {what}. Last heard: {self.doing}.",
                    next_step="Run it again with --keep DIR while the machine has less to do.",
                )
            time.sleep(POLL_S)

    def poll(self, driver: Driver) -> None:
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
        """Describes what the concurrent reader has seen so far."""
        return f"{len(self._reader.seen):,} rows, {self._reader.doubled:,} doubled"

    def common_config(self) -> dict[str, Any]:
        """Returns the settings that all scenarios share."""
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
            # Spark fetches the end offsets of the partitions one by one: no order may arrive after a closing one.
            time.sleep(_QUIET_S)
            self._feeder.close_windows()
            self.console.say("orders", f"stopped after {self._feeder.written:,}; the last windows are closed")
            end_ms = self._feeder.closed_at_ms()
            self.until(lambda: self.checkpoint.finished_watermark_ms() >= end_ms, "all windows closed", driver)
            self.doing = "the query stops"
            self.poll(driver)
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


FEWEST_TRANSACTIONS = 2
"""A batch with fewer open transactions has no halfway point, and shows little."""
_ANSWERS_WITHIN_S = 10.0
_WATCH_S = 0.005
_MISSES_AT_MOST = 3


class WithSparkonce(Scenario):
    """Killed once at each point of the protocol."""

    sink = "sparkonce"
    title = "with sparkonce"

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._finished = 0
        self._lines: list[str] = []

    def config(self) -> QueryConfig:
        """Returns the configuration with sparkonce's Kafka sink."""
        to = {"bootstrap.servers": self.context.bootstrap}
        sink = {"settings": to, "topic": self.target, "prefix": "sparkonce"}
        return QueryConfig(sinks={KafkaSystem.name: sink}, **self.common_config())

    def kills(self) -> list[Kill]:
        """Kills it at each point."""
        return [self._kill(number, point) for number, point in enumerate(CrashPoint, start=1)]

    def take(self, event: Event) -> None:
        """Shows how the newest start recovered from the previous one."""
        if event["event"] == "phase":
            self.doing = f"batch {event['batch']}: {Phase[event['phase']].value}"
        elif event["event"] == "log":
            self._lines.append(event["message"])
        elif event["event"] == "batch":
            self._finished += 1
            if self._finished == 1 < self._starts:
                self._tell_recovery(event)

    def start(self) -> Driver:
        """Starts the query, and listens for its recovery."""
        self._finished, self._lines = 0, []
        return super().start()

    def _kill(self, number: int, point: CrashPoint) -> Kill:
        driver = self.start()
        try:
            self.until(lambda: self._finished >= WHOLE_BATCHES, "two whole batches", driver)
            self._bring_to(point, driver)
        finally:
            driver.kill()
        found = standing(self.context.bootstrap, self.checkpoint.files, driver.batch)
        proved = found.proves(point) and driver.exit_code() == -signal.SIGKILL
        return self._tell_kill(number, Kill(point=point.words, batch=driver.batch, proved=proved, standing=found.words))

    def _bring_to(self, point: CrashPoint, driver: Driver) -> None:
        """Holds the driver at the point, in a batch with enough open transactions."""
        while True:
            driver.hold_at(point.value)
            self.until(lambda: driver.held == point.value, f"a batch {point.words}", driver)
            if point is CrashPoint.HALFWAY:  # half of them are committed, and there were two at least
                return
            if len(list_transactions(self.context.bootstrap, states=["Ongoing"])) >= FEWEST_TRANSACTIONS:
                return
            driver.go()

    def _tell_recovery(self, event: Event) -> None:
        batch, recovered = event["batch"], event["recovered"]
        how = "was decided: its transactions are committed" if recovered else "was not decided: undone and run again"
        self.console.say("recovered", f"batch {batch} {how}", "green")
        wanted = f"batch={batch} sink" if recovered else "Swept "
        for line in self._lines:
            if line.startswith(wanted):
                self.console.detail(line)


class WithSparksOwn(Scenario):
    """Killed as soon as the topic has rows of a batch that Spark has not recorded as done.

    Spark's own sink has no prepare and no decision, so there is only one gap to hit instead of three: from the first
    row written to ``commits/N`` in the checkpoint. Every kill hits it.
    """

    sink = "spark"
    title = "with Spark's own Kafka sink"

    def config(self) -> QueryConfig:
        """Returns the configuration with Spark's own sink."""
        return QueryConfig(sinks={}, plain_to=self.target, **self.common_config())

    def kills(self) -> list[Kill]:
        """Kills it as often as with sparkonce."""
        return [self._kill(number) for number in range(1, len(CrashPoint) + 1)]

    def poll(self, driver: Driver) -> None:
        """Shows the checkpoint too, since this query tells nothing by itself."""
        if self.checkpoint.finished() >= 0:
            self.doing = f"batch {self.checkpoint.finished()} is recorded"
        super().poll(driver)

    def _kill(self, number: int) -> Kill:
        for _ in range(_MISSES_AT_MOST + 1):
            kill = self._try_to_kill()
            if kill is not None:
                return self._tell_kill(number, kill)
            self.console.say("missed", "Spark recorded the batch before it was dead; once more")
        raise RunFailedError(
            f"Spark's own sink could not be killed between rows and record, {_MISSES_AT_MOST + 1} times.",
            next_step="Run it again, or with --no-compare.",
        )

    def _try_to_kill(self) -> Kill | None:
        driver = self.start()
        try:
            enough = self.checkpoint.finished() + WHOLE_BATCHES
            self.until(lambda: self.checkpoint.finished() >= enough, "two whole batches", driver)
            batch, rows = self._wait_for_unrecorded_rows(driver)
        finally:
            driver.kill()
        if not self.checkpoint.is_unrecorded(batch):
            return None
        return Kill(
            point="after its first rows, before Spark's record of it",
            batch=batch,
            proved=True,
            standing=f"checkpoint: offsets/{batch} and no commits/{batch}; topic: at least {rows:,} rows of the batch",
        )

    def _wait_for_unrecorded_rows(self, driver: Driver) -> tuple[int, int]:
        """Polls checkpoint and topic closely. Returns a batch, and the topic's growth since it began."""
        from confluent_kafka.admin import AdminClient

        admin = AdminClient({"bootstrap.servers": self.context.bootstrap, "log_level": 3})
        give_up_at = time.monotonic() + STEP_S
        watched, before = self.checkpoint.begun(), -1
        while time.monotonic() < give_up_at:
            begun = self.checkpoint.begun()
            now = self._end(admin)
            if begun != watched:
                watched, before = begun, now
            elif 0 <= before < now and self.checkpoint.is_unrecorded(watched):
                return watched, now - before
            driver.check_running()
            self.poll(driver)
            time.sleep(_WATCH_S)
        raise RunFailedError(
            f"The topic {self.target} got no rows of an unrecorded batch within {STEP_S:.0f} s.",
            next_step="Run it again, or with --no-compare.",
        )

    def _end(self, admin: Any) -> int:
        """Adds up the end offsets of all partitions."""
        from confluent_kafka import TopicPartition
        from confluent_kafka.admin import OffsetSpec

        partitions = range(self.context.workload.partitions)
        asked = {TopicPartition(self.target, partition): OffsetSpec.latest() for partition in partitions}
        return sum(int(found.result(_ANSWERS_WITHIN_S).offset) for found in admin.list_offsets(asked).values())


def run(
    console: Console,
    *,
    rows_per_second: int,
    seed: int,
    keep: Path | None,
    compare: bool,
    checkpoint: str | None = None,
    conf: Mapping[str, str] | None = None,
) -> Result:
    """Runs the demo.

    Args:
        console: Shows what happens.
        rows_per_second: The rate of the orders.
        seed: The same seed generates the same orders.
        keep: A new or empty folder in which broker, checkpoints and logs are kept; None for a temporary one.
        compare: True to kill a query with Spark's own Kafka sink as well.
        checkpoint: A folder of the user's in which a new one is created for checkpoints; None for a temporary local
            one.
        conf: Spark's settings for its store.

    Raises:
        ConfigurationError: If Java or PySpark is missing, the folder to keep is not empty, or no checkpoint can be
            written.
        PreflightError: If the broker's or Spark's jars cannot be downloaded.
        RunFailedError: If the demo cannot be completed.
        ChildError: If the query's process exits on its own, or cannot be ended.
    """
    began = time.monotonic()
    with end_on_signals(), _folder(keep) as folder:
        away = new_folder(checkpoint, "demo") if checkpoint else ""
        console.status("fetching jars (the first time only)")
        jars, more = spark_kafka_jars(), dict(conf or {})
        if away:
            check_place(open_place(away, more))
            more = with_connector(away, more)
        console.status("a broker starts")
        with Cluster(folder=folder / "kafka") as cluster:
            workload = new_workload(rows_per_second, seed)
            console.say("broker", f"Kafka {KAFKA_VERSION} on {cluster.bootstrap}")
            console.say("engine", f"Spark {version('pyspark')}, two cores, {workload.partitions} shuffle partitions")
            console.say("orders", f"{rows_per_second:,} a second, in {workload.partitions} partitions; seed {seed}")
            if away:
                console.say("checkpoints", f"in {away}; delete it when you need it no more")
            context = Context(
                bootstrap=cluster.bootstrap,
                folder=folder,
                jars=jars,
                workload=workload,
                console=console,
                checkpoints=away,
                conf=more,
            )
            try:
                with_sparkonce = WithSparkonce(context).play()
                without = WithSparksOwn(context).play() if compare else None
            finally:
                if keep is None:
                    cluster.brokers[0].kill()  # its data is deleted anyway
    return Result(with_sparkonce=with_sparkonce, without=without, seconds=time.monotonic() - began)


@contextmanager
def _folder(keep: Path | None) -> Iterator[Path]:
    if keep is None:
        folder = Path(tempfile.mkdtemp(prefix="sparkonce-demo-"))
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        return
    if keep.exists() and (not keep.is_dir() or any(keep.iterdir())):
        raise ConfigurationError(f"--keep {keep} is not an empty folder.", next_step="Name a new one.")
    keep.mkdir(parents=True, exist_ok=True)
    yield keep.absolute()
