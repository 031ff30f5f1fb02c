"""A job: a query with its source, target and checkpoint, and the verdict on what came of it."""

from __future__ import annotations

import json
import secrets
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spark.desk import Desk, Visit
from spark.pipeline import ENDED, PHASE, REFUSED, Config
from spark.processes import LIMIT_S, Run, eventually
from spark.startup import jvm_flags
from spark.watching import Watcher
from sparkonce.embedded.jars import spark_kafka_jars
from sparkonce.log.base import DecisionLog
from sparkonce.log.local import LocalLogStore
from sparkonce.protocol.ownership import TransactionalId, short_query
from sparkonce.protocol.view import LogView
from sparkonce.testing.kafka import Record, Transaction, create_topic, list_transactions, produce, read_committed

if TYPE_CHECKING:
    from typing_extensions import Self

PARTITIONS = 4

Row = tuple[str, str]
"""Key and value of a row of the output, as far as a job says what they must be."""

Message = tuple[bytes, bytes | None]
"""Key and value of a row of a source."""


def new_name(start: str) -> str:
    return f"{start}-{secrets.token_hex(4)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What a job wrote, against what it had to. Everything is counted on the server."""

    expected: int
    rows: int
    missing: int
    doubled: int
    strange: int
    uncommitted_seen: int
    watched: int
    left_open: int

    def __str__(self) -> str:
        return (
            f"{self.rows:,} rows of {self.expected:,}: {self.missing} missing, {self.doubled} doubled, {self.strange} "
            f"that nobody sent; the reader saw {self.watched:,}, {self.uncommitted_seen} of them not committed; "
            f"{self.left_open} transactions left open"
        )

    @property
    def is_exactly_once(self) -> bool:
        return (
            self.rows == self.watched == self.expected > 0
            and self.missing == self.doubled == self.strange == self.uncommitted_seen == self.left_open == 0
        )


class AnyJob:
    """Sources, a target, a checkpoint, and everything that runs on them. Use as a context manager.

    Args:
        bootstrap: The broker.
        folder: A new one.
        sources: How many topics are read.
        config: More of `Config`.
    """

    def __init__(self, bootstrap: str, folder: Path, *, sources: int = 1, **config: Any) -> None:
        self.bootstrap = bootstrap
        self.folder = folder
        self.desk = Desk()
        self.runs: list[Run] = []
        temporary = folder / "temporary"
        temporary.mkdir(parents=True)
        self.config = Config(
            **{
                "bootstrap": bootstrap,
                "sources": tuple(new_name("source") for _ in range(sources)),
                "target": new_name("target"),
                "checkpoint": str(folder / "checkpoint"),
                "temporary": str(temporary),
                "jars": tuple(str(jar) for jar in spark_kafka_jars()),
                "jvm_flags": jvm_flags(),
                "desk": self.desk.address,
                **config,
            }
        )
        self.watcher = Watcher(bootstrap, self.config.target, PARTITIONS, self.decided)
        self._sent = [0] * sources

    def __enter__(self) -> Self:
        for topic in (*self.config.sources, self.config.target):
            create_topic(self.bootstrap, topic, PARTITIONS)
        self.desk.__enter__()
        self.watcher.start()
        return self

    def __exit__(self, *_: object) -> None:
        for run in self.runs:
            run.resume()
            run.kill()
        self.watcher.stop()
        self.desk.__exit__()

    def send(self, messages: Sequence[Message], source: int = 0) -> None:
        """Sends to the partitions in turn: the n-th message of a source is number n // 4 of partition n % 4."""
        first, self._sent[source] = self._sent[source], self._sent[source] + len(messages)
        produce(
            self.bootstrap,
            self.config.sources[source],
            (
                {"key": key, "value": value, "partition": number % PARTITIONS}
                for number, (key, value) in enumerate(messages, first)
            ),
            timeout_s=LIMIT_S,
        )

    @property
    def checkpoint(self) -> Path:
        return Path(self.config.checkpoint)

    def start(self, **changed: Any) -> Run:
        """Starts the query on its checkpoint."""
        return start_together([self], self.folder / f"run-{len(self.runs)}.log", **changed)

    def log(self) -> LogView:
        return DecisionLog(LocalLogStore(self.checkpoint)).read(LogView())

    def decided(self) -> int:
        """The last batch that the log has decided now, or -1. Batches are decided in order and without gaps."""
        newest = self.log().newest_decision if (self.checkpoint / "sparkonce").is_dir() else None
        return newest.batch if newest is not None else -1

    def transactions(self, *states: str) -> dict[str, Transaction]:
        """The query's own transactions on the server, in one of these states, or in any."""
        query = self.query
        found = list_transactions(self.bootstrap, states=states)
        return {
            name: one
            for name, one in found.items()
            if (parsed := TransactionalId.parse(name)) is not None and parsed.query == query
        }

    @property
    def query(self) -> str:
        """The short form of its id."""
        return short_query(str(json.loads((self.checkpoint / "metadata").read_text())["id"]))

    def refusal(self) -> Visit | None:
        """The newest error of ours that stopped a batch."""
        return self.desk.last(REFUSED)

    def phase(self) -> Visit | None:
        """Where the newest run stood last."""
        return self.desk.last(PHASE)

    def ended(self) -> Visit | None:
        return self.desk.last(ENDED)

    def row(self, record: Record) -> Row:
        """A record without the number of its batch, which `spark.pipeline` puts before its value."""
        return (record.key or b"").decode(), (record.value or b"").decode(errors="backslashreplace").partition(" ")[2]

    def records(self) -> list[Record]:
        """What a read_committed reader finds in the target, once all that was to end there has ended.

        The broker answers a commit before it writes the markers, without which readers see nothing.
        """
        ending = ("PrepareCommit", "PrepareAbort")
        eventually(lambda: not self.transactions(*ending), "every transaction that was to end has ended")
        return read_committed(self.bootstrap, self.config.target, timeout_s=LIMIT_S)

    def count(self, expected: Counter[Row]) -> Verdict:
        """Counts on the server, once the watcher has caught up with it."""
        records = self.records()
        standing = {(record.partition, record.offset): record.key for record in records}
        found = Counter(self.row(record) for record in records)
        excess = found - expected
        strange = sum(count for row, count in excess.items() if row not in expected)
        self.watcher.catch_up(standing)
        return Verdict(
            expected=expected.total(),
            rows=len(records),
            missing=(expected - found).total(),
            doubled=excess.total() - strange,
            strange=strange,
            uncommitted_seen=self.watcher.too_early + self.watcher.not_among(standing),
            watched=len(self.watcher.seen),
            left_open=len(self.transactions("Ongoing")),
        )


def start_together(jobs: Sequence[AnyJob], log: Path, **changed: Any) -> Run:
    """Starts the jobs' queries in one process and one Spark.

    Args:
        jobs: The jobs.
        log: What the process prints.
        changed: More of `Config`, for this start.
    """
    run = Run([replace(job.config, **changed) for job in jobs], log)
    for job in jobs:
        job.runs.append(run)
    return run


def sent(ids: Sequence[str]) -> Iterator[str]:
    """The ids, every fifth of them once more when a quarter of all has gone by."""
    later = len(ids) // 4
    for number, each in enumerate(ids):
        yield each
        if number >= later and number % 5 == 0:
            yield ids[number - later]


class Job(AnyJob):
    """A job whose output is each id once.

    Args:
        bootstrap: The broker.
        folder: A new one.
        rows: How many different ids to send.
        again: Whether ids come again, see `sent`.
        config: More of `Config`.
    """

    def __init__(self, bootstrap: str, folder: Path, *, rows: int, again: bool = True, **config: Any) -> None:
        super().__init__(bootstrap, folder, **config)
        self.ids = [f"{number:08d}" for number in range(rows)]
        self._again = again

    def __enter__(self) -> Self:
        super().__enter__()
        self.send([(each.encode(), None) for each in (sent(self.ids) if self._again else self.ids)])
        return self

    def row(self, record: Record) -> Row:
        """Its id."""
        return (record.key or b"").decode(), ""

    def judge(self, *, expected: Iterable[str] | None = None) -> Verdict:
        return self.count(Counter((each, "") for each in set(self.ids if expected is None else expected)))

    def values(self) -> Mapping[str, list[str]]:
        """What a read_committed reader finds, by key."""
        found: dict[str, list[str]] = {}
        for record in self.records():
            found.setdefault((record.key or b"").decode(), []).append((record.value or b"").decode())
        return found
