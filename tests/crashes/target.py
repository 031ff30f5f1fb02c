"""What the crash matrix needs to know about a sink, in addition to its `sparkonce_lab.systems.base.System`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from sparkonce.sink import TwoPhaseCommitSink
from sparkonce_lab.faults import Fault
from sparkonce_lab.rig.disk import cannot_mount
from sparkonce_lab.rig.proxy import FaultProxy, Request
from sparkonce_lab.systems.base import System
from zygote import LIMIT_S

PREPARE, COMMIT, ABORT = "prepare", "commit", "abort"
DISK_FULL, MEMORY_FULL = "target disk full", "target memory full"


def plain_rows(start: int, count: int) -> pa.RecordBatch:
    """Rows with one column, ``number``."""
    return pa.record_batch({"number": pa.array(range(start, start + count), pa.int64())})


@dataclass(eq=False)
class Target:
    """A sink and its system. The cells of a target share the system, in which each job has its own table or topic.

    Attributes:
        name: The name in the table and in test names.
        make: Creates the system.
        columns: The columns of its table.
        options: The sink's arguments. Short deadlines keep the matrix fast.
        server: Targets with the same server name use it one after the other. By default, each has its own.
        preload: Modules that a child needs in addition to this one, imported once for all children.
        requests: How the proxy recognizes requests to prepare, commit and abort, where they exist.
        marks: pytest marks.
        cannot: Faults that cannot be injected into the system.
        ends_sessions: Kinds of requests whose connection the server itself has closed by the time the next run has
            recovered.
        changes_late: Kinds of requests that change something even then, without harm.
        faults: The faults that it is meant for; empty for all.
        choice: The cells that are worth running, as a name in `crashes.cells.CHOICES`.
        rows: Returns numbered rows. A module-level function, because it is pickled.
        while_s: How long a black hole, a paused server, or a full disk or memory lasts.
        waits: Constants of the product, as ``module:NAME``, that are shorter here.
        run_within_s: How long a run may take to reach a point, or its end.
        shows_within_s: How long committed rows may take to become visible.
        gone_within_s: How long aborted rows may take to disappear.
    """

    name: str
    make: Callable[[], System]
    columns: Sequence[str] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    server: str = ""
    preload: Sequence[str] = ()
    requests: Mapping[str, Request] = field(default_factory=dict)
    marks: Sequence[pytest.MarkDecorator] = ()
    cannot: Collection[str] = ()
    ends_sessions: Collection[str] = ()
    changes_late: Collection[str] = ()
    faults: Collection[str] = ()
    choice: str = "core"
    rows: Callable[[int, int], pa.RecordBatch] = plain_rows
    while_s: float = 0.75
    waits: Mapping[str, int] = field(default_factory=dict)
    run_within_s: float = LIMIT_S
    shows_within_s: float = 0.5
    gone_within_s: float = 5.0
    system: Any = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.server = self.server or self.name

    def missing(self) -> str:
        """Why it cannot run on this machine; empty if it can."""
        return self.make().missing()

    def start(self, folder: Path) -> None:
        self.system = self.make()
        self.system.start(folder)

    def stop(self) -> None:
        self.system.stop()

    @property
    def proxy(self) -> FaultProxy | None:
        """The proxy between sink and server; None if they do not use TCP."""
        return getattr(self.system, "proxy", None)

    def new_place(self) -> None:
        """Creates an empty table, topic or folder, which `make_sink` and `visible` use from now on."""
        if self.proxy is not None:
            self.proxy.requests = self.requests
        self.system.place(*self.columns)

    def make_sink(self) -> TwoPhaseCommitSink:
        return self.system.sink(**self.options)

    def visible(self) -> Sequence[int]:
        """The numbers that a reader currently sees. May raise."""
        return self.system.visible()

    def glance(self) -> Sequence[int]:
        """The rows that the continuous reader sees, which may lag slightly behind `visible`."""
        return self.visible()

    def inject(self, fault: Fault) -> None:
        self.system.inject(fault)

    def limit_memory(self, most: int) -> None:
        """Limits the server's memory to this many bytes; 0 for unlimited."""
        raise NotImplementedError

    def can(self, fault: str) -> bool:
        """Returns True if this fault of `crashes.cells` can be injected into the system."""
        return fault not in self.cannot and not (fault == DISK_FULL and cannot_mount())
