"""A job: a query with its checkpoint, source and targets across its runs, and the verdict on its output."""

from __future__ import annotations

import json
import secrets
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from eventually import LIMIT_S
from kafka_transactions import await_aborted, await_markers, transactions_of
from spark.pipeline import KAFKA, PHASE, Config
from spark.processes import Run
from sparkonce.log import DecisionLog
from sparkonce.protocol.ownership import short_query
from sparkonce.protocol.view import LogView
from sparkonce.storage.local import LocalFiles
from sparkonce_lab.kafka import Record, Transaction, create_topic, produce, read_committed
from sparkonce_lab.rig.kafka.jars import spark_kafka_jars
from startup import jvm_flags
from striking.gate import Arrival, Gate

if TYPE_CHECKING:
    from typing_extensions import Self

    from sparkonce_lab.systems.base import VerifiedSystem

PARTITIONS = 4

Row = tuple[str, str]
"""The key and value of an output row, if the job specifies them."""

Rows = Counter[tuple[str, int]]
"""How often each row, given by its id, appears somewhere under a batch number."""

Message = tuple[bytes, bytes | None]
"""Key and value of a row of a source."""


def new_name(start: str) -> str:
    return f"{start}-{secrets.token_hex(4)}"


class Verdict(NamedTuple):
    """Counts the rows of a target that are right and wrong, and the query's open transactions."""

    expected: int
    rows: int
    missing: int
    doubled: int
    unexpected: int
    lingering: int

    @property
    def is_exactly_once(self) -> bool:
        return self.rows == self.expected > 0 == self.missing == self.doubled == self.unexpected == self.lingering


class AnyJob:
    """The sources, target systems and checkpoint of a query, and everything that runs on them.

    Use it as a context manager.

    Args:
        bootstrap: The bootstrap servers.
        folder: A new folder.
        sources: The number of source topics.
        settings: Additional settings of the Kafka sink.
        systems: Other target systems, already started, each with a table or folder with the columns ``id`` and
            ``batch``.
        config: Additional fields of `Config`.
    """

    def __init__(
        self,
        bootstrap: str,
        folder: Path,
        *,
        sources: int = 1,
        settings: Mapping[str, Any] | None = None,
        systems: Sequence[VerifiedSystem] = (),
        **config: Any,
    ) -> None:
        self.bootstrap = bootstrap
        self.folder = folder
        self.gate = Gate()
        self.runs: list[Run] = []
        self.systems = {system.name: system for system in systems}
        target = config.get("target") or new_name("target")
        kafka = {"settings": {"bootstrap.servers": bootstrap, **(settings or {})}, "topic": target}
        self.config = Config(
            **{
                "bootstrap": bootstrap,
                "sources": tuple(new_name("source") for _ in range(sources)),
                "target": target,
                "checkpoint": str(folder / "checkpoint"),
                "temporary": str(folder / "temporary"),
                "jars": () if config.get("files") else tuple(str(jar) for jar in spark_kafka_jars()),
                "jvm_flags": jvm_flags(),
                "gate": self.gate.address,
                "sinks": {KAFKA: kafka, **{name: system.arguments() for name, system in self.systems.items()}},
                **config,
            }
        )
        self._sent = [0] * sources

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        for topic in (*self.config.sources, self.config.target):
            create_topic(self.bootstrap, topic, PARTITIONS)
        self.gate.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        for run in self.runs:
            run.resume()
            run.kill()
        self.gate.__exit__()

    def send(self, messages: Sequence[Message], source: int = 0) -> None:
        """Sends messages to the partitions round-robin: message n of a source is number n // 4 in partition n % 4."""
        first, self._sent[source] = self._sent[source], self._sent[source] + len(messages)
        rows = (
            {"key": key, "value": value, "partition": number % PARTITIONS}
            for number, (key, value) in enumerate(messages, first)
        )
        produce(self.bootstrap, self.config.sources[source], rows, timeout_s=LIMIT_S)

    @property
    def checkpoint(self) -> Path:
        return Path(self.config.checkpoint)

    def start(self, **changed: Any) -> Run:
        """Starts the query on its checkpoint."""
        return start_together([self], self.folder / f"run-{len(self.runs)}.log", **changed)

    def log(self) -> LogView:
        return DecisionLog(LocalFiles(self.checkpoint)).read(LogView())

    def decided(self) -> int:
        """The last batch that the log has decided now, or -1. Batches are decided in order and without gaps."""
        newest = self.log().newest_decision if (self.checkpoint / "sparkonce").is_dir() else None
        return newest.batch if newest is not None else -1

    @property
    def query(self) -> str:
        """The short form of the query's id."""
        return short_query(str(json.loads((self.checkpoint / "metadata").read_text())["id"]))

    def phase(self) -> Arrival | None:
        """The last point that the newest run arrived at."""
        return self.gate.last(PHASE)

    def transactions(self, *states: str) -> dict[str, Transaction]:
        """Returns the query's own transactions on the broker, optionally only those in one of these states."""
        return transactions_of(self.bootstrap, self.query, *states)

    def await_aborted(self) -> None:
        """Waits until the broker has aborted the query's transactions that are past their timeout."""
        await_aborted(self.bootstrap, self.query)

    def records(self) -> list[Record]:
        """Reads the topic with read_committed, after waiting for the markers of all transactions that have ended."""
        await_markers(self.bootstrap, self.query)
        return read_committed(self.bootstrap, self.config.target, timeout_s=LIMIT_S)

    def row(self, record: Record) -> Row:
        """A record without the number of its batch, which `spark.pipeline` puts before its value."""
        return (record.key or b"").decode(), (record.value or b"").decode(errors="backslashreplace").partition(" ")[2]

    def visible(self) -> dict[str, Rows]:
        """Reads each system."""
        told = [((one.key or b"").decode(), (one.value or b"").split()[0]) for one in self.records()]
        found = {name: Counter(system.visible("id", "batch")) for name, system in self.systems.items()}
        return {KAFKA: Counter((key, int(batch)) for key, batch in told), **found}

    def open(self) -> dict[str, Sequence[str]]:
        """Queries each system for the query's transactions that are neither committed nor aborted."""
        known = (self.checkpoint / "metadata").exists()
        found = {name: system.left_open() for name, system in self.systems.items()}
        return {KAFKA: list(self.transactions("Ongoing")) if known else [], **found}

    def count(self, expected: Counter[Row]) -> Verdict:
        """Counts on the broker."""
        found = Counter(self.row(record) for record in self.records())
        return Verdict(**compared(found, expected), lingering=len(self.transactions("Ongoing")))


def compared(found: Counter[Any], expected: Counter[Any]) -> dict[str, int]:
    """The first fields of a `Verdict`."""
    excess = found - expected
    unexpected = sum(count for row, count in excess.items() if row not in expected)
    missing, doubled = (expected - found).total(), excess.total() - unexpected
    rows = {"expected": expected.total(), "rows": found.total()}
    return {**rows, "missing": missing, "doubled": doubled, "unexpected": unexpected}


def start_together(jobs: Sequence[AnyJob], log: Path, **changed: Any) -> Run:
    """Starts the jobs' queries in one process and one Spark.

    Args:
        jobs: The jobs.
        log: What the process prints.
        changed: Additional fields of `Config` for this start.
    """
    run = Run([replace(job.config, **changed) for job in jobs], log)
    for job in jobs:
        job.runs.append(run)
    return run


def sent(ids: Sequence[str]) -> Iterator[str]:
    """Yields the ids, and repeats every fifth of them a quarter of the total later."""
    later = len(ids) // 4
    for number, each in enumerate(ids):
        yield each
        if number >= later and number % 5 == 0:
            yield ids[number - later]


class Job(AnyJob):
    """A job whose output contains each id exactly once.

    Args:
        bootstrap: The bootstrap servers.
        folder: A new folder.
        rows: The number of different ids to send.
        again: True to repeat ids, see `sent`.
        more: Additional arguments of `AnyJob`.
    """

    def __init__(self, bootstrap: str, folder: Path, *, rows: int, again: bool = True, **more: Any) -> None:
        super().__init__(bootstrap, folder, **more)
        self.ids = [f"{number:08d}" for number in range(rows)]
        self._again = again

    def __enter__(self) -> Self:
        super().__enter__()
        ids = list(sent(self.ids) if self._again else self.ids)
        if not self.config.files:
            self.send([(each.encode(), None) for each in ids])
            return self
        Path(self.config.files).mkdir()
        rows = self.config.rows_per_batch // 2  # a batch has two files
        for first in range(0, len(ids), rows):
            lines = [json.dumps({"id": each}) for each in ids[first : first + rows]]
            Path(self.config.files, f"{first:08d}.json").write_text("\n".join(lines))
        return self

    def row(self, record: Record) -> Row:
        """Returns the id of a record as a row."""
        return (record.key or b"").decode(), ""

    def judge(self) -> Verdict:
        """Counts the rows in the topic."""
        return self.count(Counter((each, "") for each in self.ids))
