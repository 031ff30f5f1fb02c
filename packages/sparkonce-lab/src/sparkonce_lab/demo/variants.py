"""The scenario's two variants: with sparkonce, and with Spark's own Kafka sink. Each knows how to kill its query."""

from __future__ import annotations

import signal
import time
from typing import Any

from sparkonce.protocol.state import Phase
from sparkonce_lab.child import Driver
from sparkonce_lab.demo.proof import CrashPoint, standing
from sparkonce_lab.demo.result import Kill
from sparkonce_lab.demo.scenario import STEP_S, WHOLE_BATCHES, Context, Scenario
from sparkonce_lab.errors import RunFailedError
from sparkonce_lab.kafka import list_transactions
from sparkonce_lab.query import QueryConfig
from sparkonce_lab.rig.child import Event
from sparkonce_lab.systems.kafka import KafkaSystem

FEWEST_TRANSACTIONS = 2
"""A batch with fewer open transactions has no half-way point, and shows little."""

_ANSWERS_WITHIN_S = 10.0
_WATCH_S = 0.005
_MISSES_AT_MOST = 3


class WithSparkonce(Scenario):
    """Killed at each point of the protocol once."""

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
        """Shows how the newest start recovered from the one before."""
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

    Spark's own sink knows no prepare and no decision, so there is one gap to hit and not three: from the first row
    written to ``commits/N`` in the checkpoint. Each kill hits it.
    """

    sink = "spark"
    title = "with Spark's own Kafka sink"

    def config(self) -> QueryConfig:
        """Returns the configuration with Spark's own sink."""
        return QueryConfig(sinks={}, plain_to=self.target, **self.common_config())

    def kills(self) -> list[Kill]:
        """Kills it as often as with sparkonce."""
        return [self._kill(number) for number in range(1, len(CrashPoint) + 1)]

    def look(self, driver: Driver) -> None:
        """Shows the checkpoint too, since this query tells nothing by itself."""
        if self.checkpoint.finished() >= 0:
            self.doing = f"batch {self.checkpoint.finished()} is recorded"
        super().look(driver)

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
        """Watches checkpoint and topic closely. Returns a batch, and the topic's growth since it began."""
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
            self.look(driver)
            time.sleep(_WATCH_S)
        raise RunFailedError(
            f"The topic {self.target} got no rows of an unrecorded batch within {STEP_S:.0f} s.",
            next_step="Run it again, or with --no-compare.",
        )

    def _end(self, admin: Any) -> int:
        """Adds up the ends of all partitions."""
        from confluent_kafka import TopicPartition
        from confluent_kafka.admin import OffsetSpec

        partitions = range(self.context.workload.partitions)
        asked = {TopicPartition(self.target, partition): OffsetSpec.latest() for partition in partitions}
        return sum(int(found.result(_ANSWERS_WITHIN_S).offset) for found in admin.list_offsets(asked).values())
