"""The record of a run: events in the order in which they were seen, and the rows that every reader found in the end.

A folder holds it: ``history.jsonl`` with one event a line, ``expected.parquet``, ``undisturbed.parquet``, and one
``observed-<system>.parquet`` for each system. Checkers and report read nothing else.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
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
"""Rows as they must be.

``kind`` is ``row``, with the key's sequence number and the row's amount; or ``sum``, with the start of a window of
event time in milliseconds, the sum of the key's amounts in it, and how many rows they are of (1 for a ``row``)."""

OBSERVED = pa.schema([*ROWS, ("batch", pa.int64()), ("partition", pa.int32()), ("offset", pa.int64())])
"""Rows as a reader of a system found them: with the batch that wrote them, and where the system keeps an order (Kafka)
with partition and offset, -1 elsewhere. What cannot be read as a row has the kind ``strange``, and the anomaly
`sparkonce_lab.verdicts.Anomaly.UNEXPECTED`."""


class EventKind(str, Enum):
    """The kinds of events. In brackets: their fields.

    Times are ``Event.at_ms``. A driver is known by its number, from 1 in the order of their starts.
    """

    BEGAN = "began"
    """[seed, workload, systems, guarantee, versions, schedule, limits, rows, every_s, brokers, refuse_every,
    places, kafka_config]: what was asked for. ``places`` says where the user's own systems are, without credentials;
    ``kafka_config`` names the settings with which their Kafka is reached."""
    START = "start"
    """[driver, pid, slots, master]: a driver was started."""
    PHASE = "phase"
    """[driver, phase, batch]: a driver came to a phase (its name) of a batch; nothing of it was done yet."""
    BATCH = "batch"
    """[driver, batch, rows, transactions, recovered, healed, seconds]: a driver says that a batch is committed.
    ``rows`` is by system, ``seconds`` by phase."""
    LOG = "log"
    """[driver, level, message]: a warning, or worse, of the product's own."""
    STOPPED = "stopped"
    """[driver, error, message]: a query stopped by itself; ``error`` is the name of the error's class."""
    ENDED = "ended"
    """[driver, code, asked]: its process has ended; a negative code is a signal. ``asked``: whether it was to end."""
    FAULT = "fault"
    """[step, fault, system, request, driver, phase, batch, aimed, held]: a fault happened, and where the driver was.
    ``aimed`` is the phase that the schedule names, ``held`` whether the driver was held there."""
    OVER = "over"
    """[step]: the outage, pause or slowness is over."""
    RECOVERED = "recovered"
    """[step, driver, batch]: the first batch that was finished after it was over."""
    SKIPPED = "skipped"
    """[step, fault, why]: it could not be injected."""
    SEEN = "seen"
    """[system, batch, decided]: a reader saw rows of a batch for the first time, and then read the log: the newest
    batch that was decided."""
    FED = "fed"
    """[rows]: how many rows the source has."""
    RESOURCES = "resources"
    """[driver, role, pid, rss_mib, handles]: of one process of a driver: ``driver``, ``jvm``, ``worker``."""
    FOLDER = "folder"
    """[name, files, bytes]: how large the decision log or the checkpoint is."""
    OPEN = "open"
    """[system, names]: what a system holds, after the last recovery, that is neither committed nor aborted."""
    STATE = "state"
    """[disturbed, undisturbed]: the rows of state that the query has kept in the end, and those of an undisturbed
    query."""
    STUCK = "stuck"
    """[step, what]: something did not happen before its deadline. The run was ended."""
    UNREAD = "unread"
    """[what, why]: could not be read in the end, or could not be had to compare with."""
    FINISHED = "finished"
    """[]: all was carried out, and read but for what is `UNREAD`."""


@dataclass(frozen=True, slots=True)
class Event:
    """One observation.

    Attributes:
        at_ms: Milliseconds since the run began.
        kind: What it tells.
        fields: See `EventKind`.
    """

    at_ms: int
    kind: EventKind
    fields: Mapping[str, Any] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Any:
        return self.fields[name]

    def to_json(self) -> str:
        """Returns one line of JSON."""
        return json.dumps({"at_ms": self.at_ms, "kind": self.kind.value, **self.fields})

    @classmethod
    def of_json(cls, line: str) -> Event:
        """Reads what `to_json` wrote; tuples are lists then. Raises `ValueError` or `KeyError` for anything else."""
        fields = json.loads(line)
        if not isinstance(fields, dict) or not isinstance(fields.get("at_ms"), int):
            raise ValueError(f"no event with a time: {line}")
        return cls(fields.pop("at_ms"), EventKind(fields.pop("kind")), fields)


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """A whole run.

    Attributes:
        events: In the order in which they were seen.
        expected: What every system must hold, see `ROWS`.
        observed: What it holds, by system, see `OBSERVED`.
        undisturbed: The rows that an undisturbed query has made of the same source, see `ROWS`; None if none was run.
    """

    events: Sequence[Event]
    expected: pa.Table
    observed: Mapping[str, pa.Table]
    undisturbed: pa.Table | None = None

    def of(self, *kinds: EventKind) -> Iterator[Event]:
        """Yields the events of some kinds, in their order."""
        return (event for event in self.events if event.kind in kinds)

    def first(self, kind: EventKind) -> Event | None:
        """Returns the first event of a kind."""
        return next(self.of(kind), None)

    @property
    def came_to_its_end(self) -> bool:
        """Tells whether the query was given all the time that it needed: nothing got stuck, and nothing broke off.

        In another run a row that is not there may only not have been written yet.
        """
        return self.first(EventKind.FINISHED) is not None and self.first(EventKind.STUCK) is None


class Recorder:
    """Writes a history down while it happens. Its methods may be called from several threads.

    Args:
        folder: A new one, or one without a history.

    Raises:
        ConfigurationError: if there is a history in it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        try:
            self._file = (folder / EVENTS).open("x", encoding="utf-8")
        except FileExistsError:
            raise ConfigurationError(f"{folder} holds a history already.", next_step="Name a new folder.") from None
        self._began = time.monotonic()
        self._lock = threading.Lock()

    def note(self, kind: EventKind, **fields: Any) -> Event:
        """Writes one event down."""
        with self._lock:
            event = Event(int((time.monotonic() - self._began) * 1000), kind, fields)
            self._file.write(event.to_json() + "\n")
            self._file.flush()
            return event

    def keep(self, name: str, table: pa.Table) -> None:
        """Writes a table, whole or not at all: ``expected``, ``undisturbed`` or ``observed-<system>``."""
        temporary = self.folder / f".{name}.tmp"
        pq.write_table(table, temporary, compression="zstd")
        temporary.replace(self.folder / f"{name}.parquet")

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


def load(folder: Path) -> History:
    """Reads a history, also one whose recorder was killed: a last line that is torn is left out.

    Raises:
        ConfigurationError: if the folder does not hold one, or something of it cannot be read.
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
    with suppress(ValueError):  # no line ends there: its writer was killed, and it is torn unless it can be read
        events += [Event.of_json(rest)] if rest else []
    return events


def _table(path: Path, schema: pa.Schema) -> pa.Table:
    try:
        return pq.read_table(path).select(schema.names).cast(schema)
    except (pa.ArrowException, KeyError) as error:
        raise ValueError(f"{path.name}: {error}") from error
