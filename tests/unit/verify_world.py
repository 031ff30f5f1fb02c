"""A small run without anomalies, as lists that a test can alter: two systems, and four batches, one of them empty."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from sparkonce_lab.checkers import judge
from sparkonce_lab.history import OBSERVED, ROWS, Event, EventKind, History, Recorder
from sparkonce_lab.verdicts import Anomaly, Verdict
from sparkonce_lab.workload import Workload

SYSTEMS = ("kafka", "postgres")
BATCHES = (0, 1, 3)
"""The batches with rows. Batch 2 has none."""
PARTITIONS = 2

Row = dict[str, Any]


@dataclass
class Run:
    """The parts of a `History`. Kafka preserves the order, and PostgreSQL does not."""

    events: list[Event]
    expected: list[Row]
    observed: dict[str, list[Row]]
    undisturbed: list[Row] | None

    def history(self) -> History:
        return History(
            events=self.events,
            expected=pa.Table.from_pylist(self.expected, schema=ROWS),
            observed={name: pa.Table.from_pylist(rows, schema=OBSERVED) for name, rows in self.observed.items()},
            undisturbed=None if self.undisturbed is None else pa.Table.from_pylist(self.undisturbed, schema=ROWS),
        )

    def record(self, folder: Path) -> None:
        history, recorder = self.history(), Recorder(folder)
        for event in history.events:
            recorder.note(event.kind, **event.fields)
        recorder.keep("expected", history.expected)
        if history.undisturbed is not None:
            recorder.keep("undisturbed", history.undisturbed)
        for system, rows in history.observed.items():
            recorder.keep(f"observed-{system}", rows)
        recorder.close()

    def judge(self) -> tuple[Verdict, ...]:
        return judge(self.history())

    def found(self) -> dict[tuple[Anomaly, str], int]:
        return {(verdict.anomaly, verdict.system): verdict.count for verdict in self.judge() if verdict.count}

    def verdict(self, anomaly: Anomaly, system: str = "") -> Verdict:
        (one,) = (each for each in self.judge() if (each.anomaly, each.system) == (anomaly, system))
        return one

    def place(self, kind: EventKind, **fields: Any) -> int:
        return next(
            at
            for at, event in enumerate(self.events)
            if event.kind is kind and fields.items() <= dict(event.fields).items()
        )

    def insert(self, at: int, *events: Event) -> None:
        self.events[at:at] = events

    def drop(self, kind: EventKind, **fields: Any) -> None:
        self.events = [
            event for event in self.events if event.kind is not kind or not fields.items() <= dict(event.fields).items()
        ]


def noted(kind: EventKind, at_ms: int = 1_000, **fields: Any) -> Event:
    return Event(at_ms, kind, fields)


def good_run(rows: int = 40, seed: int = 1, keys: int = 3) -> Run:
    """Returns a run without anomalies, in which every checker has something to check."""
    # Windows are so short that some sums cover few rows and are negative.
    workload = Workload(seed=seed, partitions=PARTITIONS, keys=keys, rows_per_second=1_000, window_ms=4)
    expected = workload.expected(rows).to_pylist()
    return Run(
        events=good_events(),
        expected=expected,
        observed={"kafka": observed(expected, ordered=True), "postgres": observed(expected, ordered=False)},
        undisturbed=list(reversed(expected)),
    )


def observed(expected: Sequence[Row], *, ordered: bool) -> list[Row]:
    offsets = [0] * PARTITIONS
    found = []
    for at, row in enumerate(expected):
        partition = row["key"] % PARTITIONS
        where = {"partition": partition, "offset": offsets[partition]} if ordered else {"partition": -1, "offset": -1}
        offsets[partition] += 1
        found.append({**row, "batch": BATCHES[at * len(BATCHES) // len(expected)], **where})
    return found


def good_events() -> list[Event]:
    return [
        noted(EventKind.BEGAN, 0, seed=1, systems=list(SYSTEMS)),
        noted(EventKind.START, driver=1, pid=11, slots=2, master="local[2]"),
        *(noted(EventKind.SEEN, system=name, batch=0, decided=0) for name in SYSTEMS),
        batch(1, 0),
        noted(EventKind.FAULT, step=1, fault="driver-killed", system="", driver=1, phase="WRITING", batch=1),
        noted(EventKind.ENDED, driver=1, code=-9),
        noted(EventKind.START, driver=2, pid=12, slots=2, master="local[2]"),
        noted(EventKind.OVER, step=1),
        batch(2, 1),
        noted(EventKind.RECOVERED, step=1, driver=2, batch=1),
        *(noted(EventKind.SEEN, system=name, batch=1, decided=1) for name in SYSTEMS),
        batch(2, 2),
        batch(2, 3),
        *(noted(EventKind.SEEN, system=name, batch=3, decided=3) for name in SYSTEMS),
        *(resources(at, rss_mib=600.0 + at % 7, handles=90) for at in range(60)),
        noted(EventKind.FOLDER, name="log", files=7, bytes=9_000),
        *(noted(EventKind.OPEN, system=name, names=[]) for name in SYSTEMS),
        noted(EventKind.STATE, disturbed=12, undisturbed=12),
        noted(EventKind.ENDED, driver=2, code=0),
        noted(EventKind.FINISHED, 1_900_000),
    ]


def batch(driver: int, number: int, healed: int = 0) -> Event:
    return noted(EventKind.BATCH, driver=driver, batch=number, healed=healed)


def resources(sample: int, *, rss_mib: float, handles: int, role: str = "jvm", every_ms: int = 30_000) -> Event:
    return noted(EventKind.RESOURCES, sample * every_ms, driver=2, role=role, pid=12, rss_mib=rss_mib, handles=handles)
