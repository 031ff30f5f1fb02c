"""The record of a run: events in the order they were observed, and the rows that readers found at the end.

A record is a folder with ``history.jsonl`` (one event per line), ``expected.parquet``, ``undisturbed.parquet``, and one
``observed-<system>.parquet`` per system. Checkers and report read nothing else.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from sparkonce.errors import ConfigurationError

EVENTS = "history.jsonl"

ROWS = pa.schema(
    [
        ("kind", pa.string()),
        ("key", pa.int64()),
        ("number", pa.int64()),
        ("amount", pa.int64()),
        ("rows", pa.int64()),
    ]
)
"""The schema of expected rows.

``kind`` is ``row`` or ``sum``. A ``row`` has the key's sequence number and the row's amount; its ``rows`` is 1. A
``sum`` has, as ``number``, the start of a window of event time in milliseconds; as ``amount``, the sum of the key's
amounts in the window; and as ``rows``, the number of rows that it sums up.
"""

OBSERVED = pa.schema([*ROWS, ("batch", pa.int64()), ("partition", pa.int32()), ("offset", pa.int64())])
"""The schema of rows that a reader found in a system, with the batch that wrote them.

The rows also have a partition and an offset if the system preserves an order (Kafka); otherwise, both are -1. Anything
that cannot be read as a row has the kind ``strange``, and is an `sparkonce_lab.verdicts.Anomaly.UNEXPECTED`.
"""


class EventKind(str, Enum):
    """The kinds of events, with their fields in brackets.

    Times are in ``Event.at_ms``. Drivers are numbered from 1 in the order in which they started.
    """

    BEGAN = "began"
    """[seed, workload, systems, guarantee, versions, schedule, limits, rows, every_s, brokers, refuse_every,
    places, kafka_config]: the run as requested. ``places`` are the addresses of the user's own systems, without
    credentials. ``kafka_config`` names the settings that are used to connect to the user's Kafka."""
    START = "start"
    """[driver, pid, slots, master]: a driver was started."""
    PHASE = "phase"
    """[driver, phase, batch]: a driver entered a phase (by name) of a batch, and has not begun to carry it out."""
    BATCH = "batch"
    """[driver, batch, rows, transactions, recovered, healed, seconds]: a driver reported that a batch is committed.
    ``rows`` is by system, and ``seconds`` by phase."""
    LOG = "log"
    """[driver, level, message]: a warning or error logged by the product."""
    STOPPED = "stopped"
    """[driver, error, message]: a query stopped on its own; ``error`` is the name of the error's class."""
    ENDED = "ended"
    """[driver, code, asked]: the driver's process has ended. A negative code is a signal.

    ``asked`` is True if the verifier wanted it to end.
    """
    FAULT = "fault"
    """[step, fault, system, request, driver, phase, batch, aimed, held]: a fault was injected, and the driver's
    position at that time. ``aimed`` is the phase in the schedule. ``held`` is True if the driver was held there."""
    OVER = "over"
    """[step]: the outage, pause or slowness is over."""
    RECOVERED = "recovered"
    """[step, driver, batch]: the first batch that was finished after the fault was over."""
    SKIPPED = "skipped"
    """[step, fault, why]: the fault could not be injected."""
    SEEN = "seen"
    """[system, batch, decided]: a reader saw rows of a batch for the first time. ``decided`` is the newest batch
    that was decided according to the log, which was read after that."""
    FED = "fed"
    """[rows]: the number of rows in the source."""
    RESOURCES = "resources"
    """[driver, role, pid, rss_mib, handles]: resources of one of a driver's processes:

    ``driver``, ``jvm``, ``worker``.
    """
    FOLDER = "folder"
    """[name, files, bytes]: the size of the decision log or the checkpoint."""
    OPEN = "open"
    """[system, names]: transactions that are neither committed nor aborted in a system after the last recovery."""
    STATE = "state"
    """[disturbed, undisturbed]: the number of state rows that the query had at the end, and the number for an
    undisturbed query."""
    STUCK = "stuck"
    """[step, what]: something did not happen before its deadline, so the run was ended."""
    UNREAD = "unread"
    """[what, why]: something could not be read at the end, or was not available for comparison."""
    FINISHED = "finished"
    """[]: every step was carried out, and everything was read except for what is `UNREAD`."""


@dataclass(frozen=True, slots=True)
class Event:
    """One observation. `at_ms` counts from the beginning of the run. See `EventKind` for the fields."""

    at_ms: int
    kind: EventKind
    fields: Mapping[str, Any] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Any:
        return self.fields[name]

    def to_json(self) -> str:
        return json.dumps({"at_ms": self.at_ms, "kind": self.kind.value, **self.fields})

    @classmethod
    def of_json(cls, line: str) -> Event:
        """Reads the output of `to_json`, with tuples as lists. Raises `ValueError` or `KeyError` for other input."""
        fields = json.loads(line)
        if not isinstance(fields, dict) or not isinstance(fields.get("at_ms"), int):
            raise ValueError(f"no event with a time: {line}")
        return cls(fields.pop("at_ms"), EventKind(fields.pop("kind")), fields)


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """A whole run.

    Attributes:
        events: The events, in the order they were observed.
        expected: The rows that every system must contain; see `ROWS`.
        observed: The rows that each system contains; see `OBSERVED`.
        undisturbed: The rows that an undisturbed query produced from the same source (see `ROWS`); None if there was no
            such query.
    """

    events: Sequence[Event]
    expected: pa.Table
    observed: Mapping[str, pa.Table]
    undisturbed: pa.Table | None = None

    def of(self, *kinds: EventKind) -> Iterator[Event]:
        return (event for event in self.events if event.kind in kinds)

    def first(self, kind: EventKind) -> Event | None:
        return next(self.of(kind), None)

    @property
    def came_to_its_end(self) -> bool:
        """True if the query had all the time that it needed: nothing got stuck, and the run was not cut short.

        In any other run, a missing row may simply not have been written yet.
        """
        return self.first(EventKind.FINISHED) is not None and self.first(EventKind.STUCK) is None


class Recorder:
    """Records a history in a folder while it happens. Thread-safe. The thread that recorded an event calls ``watch``.

    Raises:
        ConfigurationError: If the folder contains a history.
    """

    def __init__(self, folder: Path, watch: Callable[[Event], None] = lambda _: None) -> None:
        self.folder = folder
        self._watch = watch
        folder.mkdir(parents=True, exist_ok=True)
        try:
            self._file = (folder / EVENTS).open("x", encoding="utf-8")
        except FileExistsError:
            raise ConfigurationError(f"{folder} holds a history already.", next_step="Name a new folder.") from None
        self._began = time.monotonic()
        self._lock = threading.Lock()

    def note(self, kind: EventKind, **fields: Any) -> Event:
        with self._lock:
            event = Event(int((time.monotonic() - self._began) * 1000), kind, fields)
            self._file.write(event.to_json() + "\n")
            self._file.flush()
        self._watch(event)
        return event

    def keep(self, name: str, table: pa.Table) -> None:
        """Writes a table atomically: ``expected``, ``undisturbed`` or ``observed-<system>``."""
        temporary = self.folder / f".{name}.tmp"
        pq.write_table(table, temporary, compression="zstd")
        temporary.replace(self.folder / f"{name}.parquet")

    def close(self) -> None:
        self._file.close()


def load(folder: Path) -> History:
    """Loads a history. Ignores an incomplete last line, which a killed recorder may have left behind.

    Raises:
        ConfigurationError: If the folder contains no history, or some of it cannot be read.
    """
    expected = folder / "expected.parquet"
    undisturbed = folder / "undisturbed.parquet"
    observed = {path.stem.removeprefix("observed-"): path for path in sorted(folder.glob("observed-*.parquet"))}
    try:
        return History(
            events=_events((folder / EVENTS).read_text(encoding="utf-8")),
            expected=_table(expected, ROWS) if expected.exists() else ROWS.empty_table(),
            observed={name: _table(path, OBSERVED) for name, path in observed.items()},
            undisturbed=_table(undisturbed, ROWS) if undisturbed.exists() else None,
        )
    except (OSError, ValueError, KeyError) as error:
        raise ConfigurationError(
            f"{folder} holds no history that can be read: {error}",
            next_step="Name the folder of a run, and restore it from a copy if it was changed.",
        ) from error


def _events(text: str) -> list[Event]:
    *whole, rest = text.split("\n")
    events = [Event.of_json(line) for line in whole]
    # If the final newline is missing, the writer was killed. Its last line is complete only if it can be parsed.
    with suppress(ValueError):
        events += [Event.of_json(rest)] if rest else []
    return events


def _table(path: Path, schema: pa.Schema) -> pa.Table:
    try:
        return pq.read_table(path).select(schema.names).cast(schema)
    except (pa.ArrowException, KeyError) as error:
        raise ValueError(f"{path.name}: {error}") from error
