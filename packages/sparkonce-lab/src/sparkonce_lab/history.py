"""The record of a run: events in the order in which they were observed, and the rows that readers found at the end.

It is a folder with ``history.jsonl`` (one event per line), ``expected.parquet``, ``undisturbed.parquet``, and one
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
"""Expected rows.

``kind`` is ``row``, with the key's sequence number and the row's amount; or ``sum``, with the start of a window of
event time in milliseconds, the sum of the key's amounts in it, and the number of rows that it sums up (1 for a
``row``).
"""

OBSERVED = pa.schema([*ROWS, ("batch", pa.int64()), ("partition", pa.int32()), ("offset", pa.int64())])
"""Rows as a reader of a system found them, with the batch that wrote them.

They also have the partition and offset if the system preserves an order (Kafka); otherwise these are -1. Anything that
cannot be read as a row has the kind ``strange``, and is an `sparkonce_lab.verdicts.Anomaly.UNEXPECTED`.
"""


class EventKind(str, Enum):
    """The kinds of events, with their fields in brackets.

    Times are in ``Event.at_ms``. Drivers are numbered from 1 in the order of their starts.
    """

    BEGAN = "began"
    """[seed, workload, systems, guarantee, versions, schedule, limits, rows, every_s, brokers, refuse_every,
    places, kafka_config]: what was asked for. ``places`` says where the user's own systems are, without credentials;
    ``kafka_config`` names the settings with which their Kafka is reached."""
    START = "start"
    """[driver, pid, slots, master]: a driver was started."""
    PHASE = "phase"
    """[driver, phase, batch]: a driver entered a phase (by name) of a batch, and has not done anything in it yet."""
    BATCH = "batch"
    """[driver, batch, rows, transactions, recovered, healed, seconds]: a driver says that a batch is committed.
    ``rows`` is by system, ``seconds`` by phase."""
    LOG = "log"
    """[driver, level, message]: a warning or error logged by the product."""
    STOPPED = "stopped"
    """[driver, error, message]: a query stopped on its own; ``error`` is the name of the error's class."""
    ENDED = "ended"
    """[driver, code, asked]: its process has ended; a negative code is a signal.

    ``asked``: True if it was supposed to end.
    """
    FAULT = "fault"
    """[step, fault, system, request, driver, phase, batch, aimed, held]: a fault happened, and where the driver was.
    ``aimed`` is the phase that the schedule names, ``held`` whether the driver was held there."""
    OVER = "over"
    """[step]: the outage, pause or slowness is over."""
    RECOVERED = "recovered"
    """[step, driver, batch]: the first batch that was finished after the fault was over."""
    SKIPPED = "skipped"
    """[step, fault, why]: the fault could not be injected."""
    SEEN = "seen"
    """[system, batch, decided]: a reader saw rows of a batch for the first time, and then read the log: the newest
    batch that was decided."""
    FED = "fed"
    """[rows]: the number of rows in the source."""
    RESOURCES = "resources"
    """[driver, role, pid, rss_mib, handles]: resources of one of a driver's processes:

    ``driver``, ``jvm``, ``worker``.
    """
    FOLDER = "folder"
    """[name, files, bytes]: the size of the decision log or the checkpoint."""
    OPEN = "open"
    """[system, names]: what a system holds, after the last recovery, that is neither committed nor aborted."""
    STATE = "state"
    """[disturbed, undisturbed]: the rows of state that the query has kept in the end, and those of an undisturbed
    query."""
    STUCK = "stuck"
    """[step, what]: something did not happen before its deadline. The run was ended."""
    UNREAD = "unread"
    """[what, why]: something could not be read at the end, or was not available for comparison."""
    FINISHED = "finished"
    """[]: everything was carried out, and read except for what is `UNREAD`."""


@dataclass(frozen=True, slots=True)
class Event:
    """One observation.

    Attributes:
        at_ms: Milliseconds since the run began.
        kind: What was observed.
        fields: See `EventKind`.
    """

    at_ms: int
    kind: EventKind
    fields: Mapping[str, Any] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Any:
        return self.fields[name]

    def to_json(self) -> str:
        return json.dumps({"at_ms": self.at_ms, "kind": self.kind.value, **self.fields})

    @classmethod
    def of_json(cls, line: str) -> Event:
        """Reads the output of `to_json`, with lists for tuples. Raises `ValueError` or `KeyError` for anything else."""
        fields = json.loads(line)
        if not isinstance(fields, dict) or not isinstance(fields.get("at_ms"), int):
            raise ValueError(f"no event with a time: {line}")
        return cls(fields.pop("at_ms"), EventKind(fields.pop("kind")), fields)


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """A whole run.

    Attributes:
        events: The events, in the order in which they were observed.
        expected: What every system must contain; see `ROWS`.
        observed: What each system contains; see `OBSERVED`.
        undisturbed: The rows that an undisturbed query produced from the same source (see `ROWS`); None if none was
            run.
    """

    events: Sequence[Event]
    expected: pa.Table
    observed: Mapping[str, pa.Table]
    undisturbed: pa.Table | None = None

    def of(self, *kinds: EventKind) -> Iterator[Event]:
        """Yields the events of these kinds, in order."""
        return (event for event in self.events if event.kind in kinds)

    def first(self, kind: EventKind) -> Event | None:
        return next(self.of(kind), None)

    @property
    def came_to_its_end(self) -> bool:
        """True if the query had all the time that it needed: nothing got stuck, and nothing was cut short.

        In any other run, a missing row may just not have been written yet.
        """
        return self.first(EventKind.FINISHED) is not None and self.first(EventKind.STUCK) is None


class Recorder:
    """Records a history while it happens. Thread-safe.

    Args:
        folder: A new folder, or one without a history.
        watch: Called with each event after it is recorded, in the thread that recorded it.

    Raises:
        ConfigurationError: If it contains a history.
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
    """Loads a history. A torn last line, left by a killed recorder, is ignored.

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
    # no newline at the end: its writer was killed, and the line is torn unless it can be read
    with suppress(ValueError):
        events += [Event.of_json(rest)] if rest else []
    return events


def _table(path: Path, schema: pa.Schema) -> pa.Table:
    try:
        return pq.read_table(path).select(schema.names).cast(schema)
    except (pa.ArrowException, KeyError) as error:
        raise ValueError(f"{path.name}: {error}") from error
