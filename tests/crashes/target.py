"""What the crash matrix has to know of a sink beside its `sparkonce_lab.systems.base.System`."""

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
    """Rows of one column, ``number``."""
    return pa.record_batch({"number": pa.array(range(start, start + count), pa.int64())})


@dataclass(eq=False)
class Target:
    """A sink and its system. The cells of a target share the system; each job has a table or topic to itself in it.

    Attributes:
        name: In the table and in the names of tests.
        make: Makes the system.
        columns: Those of its table.
        options: The sink's arguments. Short deadlines keep the matrix fast.
        server: Targets with the same name of a server use it one after the other; by default each has its own.
        preload: Modules that a child needs beside this one, imported once for all children.
        requests: How the proxy recognizes a request to prepare, commit and abort, as far as there is one.
        marks: pytest's.
        cannot: Faults that the system cannot be brought to.
        ends_sessions: Kinds of requests whose connection the server itself has ended once the next run has recovered.
        changes_late: Kinds of requests that change something even then, and do no harm.
        faults: Those that it is there for; empty for all.
        choice: The cells that are worth their time, by a name of `crashes.cells.CHOICES`.
        rows: Gives rows that carry numbers. A function of a module: it is pickled.
        while_s: How long a black hole, a paused server, a full disk or memory lasts.
        waits: Constants of the product, as ``module:NAME``, that are shorter here.
        run_within_s: How long a run may take to come to a point, or to its end.
        shows_within_s: How long committed rows may take to be seen.
        gone_within_s: How long what was aborted may take to be gone.
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
        """Why it cannot be run on this machine; empty if it can."""
        return self.make().missing()

    def start(self, folder: Path) -> None:
        self.system = self.make()
        self.system.start(folder)

    def take_over(self, before: Target) -> bool:
        """Goes on with the system of another target, if that has the same server."""
        if before.server != self.server:
            return False
        self.system = before.system
        return True

    def stop(self) -> None:
        self.system.stop()

    @property
    def proxy(self) -> FaultProxy | None:
        """Between the sink and the server; None if they do not speak TCP."""
        return getattr(self.system, "proxy", None)

    def new_place(self) -> None:
        """Makes an empty table, topic, folder: what `make_sink`, `visible` and `lingering` mean from now on."""
        if self.proxy is not None:
            self.proxy.requests = self.requests
        self.system.place(*self.columns)

    def make_sink(self) -> TwoPhaseCommitSink:
        return self.system.sink(**self.options)

    def visible(self) -> Sequence[int]:
        """The numbers that a reader sees now. May raise."""
        return self.system.visible()

    def glance(self) -> Sequence[int]:
        """What the reader sees who reads all the time; may be a little behind `visible`."""
        return self.visible()

    def lingering(self) -> Sequence[str]:
        """What is open of any run."""
        return self.system.left_open()

    def state(self) -> object:
        """What a request that arrives late may have changed."""
        return self.system.state()

    def inject(self, fault: Fault) -> None:
        self.system.inject(fault)

    def lift(self, fault: Fault) -> None:
        self.system.lift(fault)

    def limit_memory(self, most: int) -> None:
        """Lets the server take no more than so many bytes into its memory; 0 for any number."""
        raise NotImplementedError

    def can(self, fault: str) -> bool:
        """Returns True if the system can be brought to a fault of `crashes.cells`."""
        return fault not in self.cannot and not (fault == DISK_FULL and cannot_mount())
