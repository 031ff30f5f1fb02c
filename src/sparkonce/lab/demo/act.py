"""One query's story: orders flow, it is killed and started again on the same checkpoint, and its output is counted."""

from __future__ import annotations

import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparkonce.checkpoint import SparkCheckpoint
from sparkonce.lab.demo.count import compare, expected_totals
from sparkonce.lab.demo.crash import WHOLE_BATCHES, CrashPoint
from sparkonce.lab.demo.errors import DemoFailedError
from sparkonce.lab.demo.orders import PARTITIONS, WINDOW_MS, Orders
from sparkonce.lab.demo.proof import standing
from sparkonce.lab.demo.reader import LiveReader
from sparkonce.lab.demo.result import Kill, Variant
from sparkonce.lab.demo.show import Teller
from sparkonce.rig.child import Child, Event
from sparkonce.rig.process import POLL_S
from sparkonce.testing.kafka import create_topic, list_transactions, read_committed, read_uncommitted

_STEP_S = 120.0
"""Longest time for any one step. A start of Spark and a few batches take a tenth of it."""

_STOP_S = 30.0
_QUIET_S = 0.5
_CATCH_UP_S = 10.0
_WATCH_S = 0.005
_MISSES_AT_MOST = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """What every story needs.

    Attributes:
        bootstrap: ``bootstrap.servers`` of a broker that nothing else uses.
        folder: For checkpoint, logs and temporary files.
        jars: Of Spark's Kafka source.
        rows_per_second: Of the orders.
        seed: Of the orders.
        teller: Says what happens.
    """

    bootstrap: str
    folder: Path
    jars: Sequence[Path]
    rows_per_second: int
    seed: int
    teller: Teller


class Act(ABC):
    """One story. Subclasses know how to kill their query.

    Args:
        stage: Where it plays.
    """

    sink: str
    """As `sparkonce.lab.demo.pipeline` takes it, and in the names of topics and folders."""
    title: str

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.teller = stage.teller
        self.folder = stage.folder / self.sink
        self.checkpoint = SparkCheckpoint(self.folder / "checkpoint")
        self.source, self.target = f"orders-{self.sink}", f"totals-{self.sink}"
        self.doing = ""
        self._starts = 0
        self._orders = Orders(stage.bootstrap, self.source, rows_per_second=stage.rows_per_second, seed=stage.seed)
        self._reader = LiveReader(stage.bootstrap, self.target)

    @abstractmethod
    def kills(self) -> list[Kill]:
        """Starts and kills the query as often as it is to be killed."""

    def take(self, event: Event) -> None:  # noqa: B027 - optional
        """Hears what the query tells."""

    def play(self) -> Variant:
        """The whole story.

        Raises:
            DemoFailedError: if it cannot be carried through.
        """
        began = time.monotonic()
        self.folder.mkdir(parents=True)
        for topic in (self.source, self.target):
            create_topic(self.stage.bootstrap, topic, PARTITIONS)
        self.teller.title(self.title)
        self.teller.say("query", f"{self.source} → sum for each customer and second → {self.target}")
        self._orders.start()
        self._reader.start()
        try:
            kills = self.kills()
            self._finish()
            return self._count(kills, began)
        finally:
            # Whatever failed first is what is told.
            for stop in (self._orders.stop, self._reader.stop):
                with suppress(DemoFailedError):
                    stop()

    def start(self, crash: CrashPoint | None = None) -> Child:
        """Starts the query on its checkpoint."""
        self._starts += 1
        self.doing = "Spark starts"
        child = Child(
            self._arguments(crash),
            log=self.folder / "pipeline.log",
            temporary=self.folder / "tmp",
            module="sparkonce.lab.demo.pipeline",
        )
        self.teller.say("start", f"number {self._starts}, process {child.pid}")
        return child

    def until(self, holds: Callable[[], bool], what: str, child: Child, *, may_end: bool = False) -> None:
        """Waits, and meanwhile looks after everything that moves.

        Args:
            holds: What is waited for.
            what: The same in words.
            child: The query.
            may_end: Whether the query may end meanwhile.

        Raises:
            DemoFailedError: if it does not hold in time, or something failed.
        """
        give_up_at = time.monotonic() + _STEP_S
        while True:
            self.look(child)
            if holds():
                return
            if not may_end:
                child.check_running()
            if time.monotonic() > give_up_at:
                raise DemoFailedError(
                    f"not in {_STEP_S:.0f} s: {what}. Last heard: {self.doing}",
                    next_step="run it again with --keep DIR while the machine has less to do.",
                )
            time.sleep(POLL_S)

    def look(self, child: Child) -> None:
        """Hears the query, and shows how far everything is."""
        for event in child.events():
            if event["event"] == "failed":
                raise DemoFailedError(f"the query failed: {event['error']}")
            self.take(event)
        self._orders.check()
        self._reader.check()
        self.teller.status(
            f"{self.doing} · {self._orders.written:,} orders · read_committed reader: {len(self._reader.seen):,} rows, "
            f"{self._reader.doubled:,} doubled"
        )

    def told_seen(self) -> str:
        """What the reader beside the query has seen so far."""
        return f"the reader has seen {len(self._reader.seen):,} rows, {self._reader.doubled:,} of them doubled"

    def _finish(self) -> None:
        child = self.start()
        try:
            enough = self.checkpoint.finished() + WHOLE_BATCHES
            self.until(lambda: self.checkpoint.finished() >= enough, "two batches after the last start", child)
            self._orders.stop()
            # Partitions are asked for their ends one after the other: no order may be younger than a closing one.
            time.sleep(_QUIET_S)
            self._orders.close_windows()
            self.teller.say("orders", f"stopped after {self._orders.written:,}; the last windows are closed")
            end_ms = self._orders.newest_ms + WINDOW_MS
            self.until(lambda: self.checkpoint.finished_watermark_ms() >= end_ms, "all windows closed", child)
            self.doing = "the query stops"
            self.look(child)
            child.stop(_STOP_S)
        finally:
            child.kill()

    def _count(self, kills: Sequence[Kill], began: float) -> Variant:
        bootstrap = self.stage.bootstrap
        self.teller.status("counting")
        expected = expected_totals(record.value or b"" for record in read_committed(bootstrap, self.source))
        rows = read_committed(bootstrap, self.target)
        everything = read_uncommitted(bootstrap, self.target)
        self._reader.wait_for(len(rows), _CATCH_UP_S)
        self._reader.stop()
        committed = {(record.partition, record.offset, record.value) for record in rows}
        left = list_transactions(bootstrap, states=["Ongoing"]).values()
        variant = Variant(
            title=self.title,
            kills=tuple(kills),
            count=compare(expected, [record.value or b"" for record in rows]),
            seen_live=len(self._reader.seen),
            seen_uncommitted=sum(place not in committed for place in self._reader.seen),
            left_open=sum(any(topic == self.target for topic, _ in one.partitions) for one in left),
            aborted_rows=len(everything) - len(rows),
            seconds=time.monotonic() - began,
        )
        count = variant.count
        self.teller.say(
            "counted",
            f"{count.expected:,} rows expected, {count.seen:,} seen: "
            f"{count.missing:,} missing, {count.doubled:,} doubled, {count.wrong:,} wrong",
            "green" if variant.exactly_once else "bold red",
        )
        return variant

    def _arguments(self, crash: CrashPoint | None) -> list[str]:
        folder = self.folder
        arguments = {
            "--bootstrap": self.stage.bootstrap,
            "--source": self.source,
            "--target": self.target,
            "--checkpoint": str(folder / "checkpoint"),
            "--temporary": str(folder / "tmp"),
            "--jars": ",".join(str(jar) for jar in self.stage.jars),
            "--sink": self.sink,
        }
        if crash is not None:
            arguments["--crash"] = crash.value
        return [word for pair in arguments.items() for word in pair]


class WithSparkonce(Act):
    """Killed from inside, at each point of the protocol once."""

    sink = "sparkonce"
    title = "with sparkonce"

    def __init__(self, stage: Stage) -> None:
        super().__init__(stage)
        self._crashed: Event | None = None
        self._recovering = False
        self._lines: list[str] = []

    def kills(self) -> list[Kill]:
        """One for each point."""
        return [self._kill(number, point) for number, point in enumerate(CrashPoint, start=1)]

    def take(self, event: Event) -> None:
        """Keeps what the last start did about what the one before had left."""
        if event["event"] == "phase":
            self.doing = f"batch {event['batch']}: {event['phase']}"
        elif event["event"] == "crash":
            self._crashed = event
        elif event["event"] == "log":
            self._lines.append(event["message"])
        elif event["event"] == "batch" and self._recovering:
            self._tell_recovery(event)

    def start(self, crash: CrashPoint | None = None) -> Child:
        """Also listens for what is recovered."""
        self._recovering, self._lines, self._crashed = self._starts > 0, [], None
        return super().start(crash)

    def _kill(self, number: int, point: CrashPoint) -> Kill:
        child = self.start(point)
        try:
            self.until(lambda: self._crashed is not None, f"a batch to be killed {point.words}", child)
            self.until(lambda: child.exit_code() is not None, "the driver is dead", child, may_end=True)
        finally:
            child.kill()
        batch = int((self._crashed or {})["batch"])
        found = standing(self.stage.bootstrap, self.folder / "checkpoint", batch)
        proved = found.proves(point) and child.exit_code() == -signal.SIGKILL
        kill = Kill(point=point.words, batch=batch, proved=proved, standing=found.words)
        self.teller.say(f"KILL {number}", f"batch {batch}, {kill.point}", "bold red")
        self.teller.detail(kill.standing if kill.proved else f"NOT WHERE IT WAS MEANT TO BE: {kill.standing}")
        self.teller.detail(self.told_seen())
        return kill

    def _tell_recovery(self, event: Event) -> None:
        self._recovering = False
        batch, recovered = event["batch"], event["recovered"]
        how = "was decided: its transactions are committed" if recovered else "was not decided: undone and run again"
        self.teller.say("recovered", f"batch {batch} {how}", "green")
        wanted = f"batch={batch} sink" if recovered else "swept "
        for line in self._lines:
            if line.startswith(wanted):
                self.teller.detail(line)


class WithSparksOwn(Act):
    """Killed from outside: as soon as rows of a batch stand in the topic that Spark has not recorded as done.

    Spark's own sink knows no prepare and no decision, so there is one gap to hit and not three: from the first row
    written to ``commits/N`` in the checkpoint. Each kill hits it.
    """

    sink = "spark"
    title = "with Spark's own Kafka sink"

    def __init__(self, stage: Stage) -> None:
        super().__init__(stage)
        self._misses = 0
        self._finished_before = -1

    def kills(self) -> list[Kill]:
        """As many as with sparkonce."""
        return [self._kill(number) for number in range(1, len(CrashPoint) + 1)]

    def start(self, crash: CrashPoint | None = None) -> Child:
        """Also notes which batch the checkpoint stands at: this query tells nothing by itself."""
        self._finished_before = self.checkpoint.finished()
        return super().start(crash)

    def look(self, child: Child) -> None:
        """Also looks at the checkpoint."""
        finished = self.checkpoint.finished()
        if finished > self._finished_before:
            self.doing = f"batch {finished} is recorded"
        super().look(child)

    def _kill(self, number: int) -> Kill:
        while (kill := self._try_to_kill()) is None:
            self._misses += 1
            self.teller.say("missed", "Spark recorded the batch before it was dead; once more")
            if self._misses > _MISSES_AT_MOST:
                raise DemoFailedError(
                    f"Spark's own sink could not be hit between rows and record, {self._misses} times",
                    next_step="run it again, or with --no-compare.",
                )
        self.teller.say(f"KILL {number}", f"batch {kill.batch}, {kill.point}", "bold red")
        self.teller.detail(kill.standing)
        self.teller.detail(self.told_seen())
        return kill

    def _try_to_kill(self) -> Kill | None:
        child = self.start()
        try:
            enough = self.checkpoint.finished() + WHOLE_BATCHES
            self.until(lambda: self.checkpoint.finished() >= enough, "two whole batches", child)
            batch, rows = self._wait_for_unrecorded_rows(child)
        finally:
            child.kill()
        if not self.checkpoint.is_unrecorded(batch):
            return None
        return Kill(
            point="after its first rows, before Spark's record of it",
            batch=batch,
            proved=True,
            standing=f"checkpoint: offsets/{batch} and no commits/{batch}; topic: at least {rows:,} rows of the batch",
        )

    def _wait_for_unrecorded_rows(self, child: Child) -> tuple[int, int]:
        """Watches checkpoint and topic closely; a batch, and how far the topic has grown since it began."""
        from confluent_kafka.admin import AdminClient

        admin = AdminClient({"bootstrap.servers": self.stage.bootstrap, "log_level": 3})
        give_up_at = time.monotonic() + _STEP_S
        watched, before = self.checkpoint.begun(), -1
        while time.monotonic() < give_up_at:
            begun = self.checkpoint.begun()
            now = self._end(admin)
            if begun != watched:
                watched, before = begun, now
            elif 0 <= before < now and self.checkpoint.is_unrecorded(watched):
                return watched, now - before
            child.check_running()
            self.look(child)
            time.sleep(_WATCH_S)
        raise DemoFailedError(f"no rows of an unrecorded batch in {self.target} in {_STEP_S:.0f} s")

    def _end(self, admin: Any) -> int:
        """The ends of all partitions, added up."""
        from confluent_kafka import TopicPartition
        from confluent_kafka.admin import OffsetSpec

        asked = {TopicPartition(self.target, partition): OffsetSpec.latest() for partition in range(PARTITIONS)}
        return sum(int(found.result(_CATCH_UP_S).offset) for found in admin.list_offsets(asked).values())
