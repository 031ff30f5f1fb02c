"""What the crash matrix must know of a system. One small class for each sink."""

from __future__ import annotations

import abc
import secrets
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from sparkonce.rig.disk import SmallDisk, cannot_mount
from sparkonce.rig.proxy import FaultProxy, Request
from sparkonce.rig.servers.process import HOST, Server
from sparkonce.sink import TwoPhaseCommitSink
from zygote import LIMIT_S

PREPARE, COMMIT, ABORT = "prepare", "commit", "abort"


def plain_rows(start: int, count: int) -> pa.RecordBatch:
    """Rows of one column, ``number``."""
    return pa.record_batch({"number": pa.array(range(start, start + count), pa.int64())})


def keyed_rows(start: int, count: int) -> pa.RecordBatch:
    """Rows of two columns, ``key`` and ``number``: each batch writes the keys of the batch before again."""
    numbers = range(start, start + count)
    return pa.record_batch({"key": [number % 1000 for number in numbers], "number": list(numbers)})


class Target(abc.ABC):
    """A system with a sink for it. Its cells share it; each job has a place of its own in it.

    Attributes:
        name: In the table and in the names of tests.
        server_kind: Targets of one kind use the same server, one after the other; by default each has its own.
        preload: Modules that a child needs beside this one, imported once for all children.
        requests: How the proxy knows a request to prepare, commit and abort, as far as there is one.
        marks: pytest's.
        proxy: Between the sink and the server; None if they do not speak TCP.
        ends_sessions: Kinds of requests whose connection the server itself has ended once the next run has recovered.
        changes_late: Kinds of requests that change something even then, and do no harm.
        faults: Those that it is there for; empty for all.
        choice: The short form's cells, by a name of `crashes.cells.CHOICES`: fewer where a run takes long to start.
        while_s: How long a black hole, a paused server, a full disk or memory lasts.
        waits: Constants of the product, as ``module:NAME``, that are shorter here than they are by themselves.
        run_within_s: How long a run may take to come to a point, or to its end.
        shows_within_s: How long committed rows may take to be seen.
        gone_within_s: How long what was aborted may take to be gone.
    """

    name: str
    server_kind = ""
    preload: Sequence[str] = ()
    requests: Mapping[str, Request] = {}
    marks: Sequence[pytest.MarkDecorator] = ()
    proxy: FaultProxy | None = None
    ends_sessions: Collection[str] = ()
    changes_late: Collection[str] = ()
    faults: Collection[str] = ()
    choice = "wide"
    while_s = 0.75
    waits: Mapping[str, int] = {}
    run_within_s = LIMIT_S
    shows_within_s = 10.0
    gone_within_s = 5.0

    def missing(self) -> str:
        """Why it cannot be run on this machine; empty if it can."""
        return ""

    @abc.abstractmethod
    def start(self, folder: Path) -> None:
        """Starts the server and the proxy, with data in a folder."""

    def stop(self) -> None:  # noqa: B027 - optional
        """Ends them."""

    def take_over(self, before: Target) -> bool:
        """Goes on with the server of a target that is up, which need not be stopped then. Whether it can."""
        return False

    @property
    def group(self) -> str:
        """Names the group of cells that run in one process, one after the other."""
        return f"crashes-{self.server_kind or self.name}"

    @abc.abstractmethod
    def new_place(self) -> None:
        """Makes an empty table, topic, folder: what `make_sink`, `visible` and `lingering` mean from now on."""

    @abc.abstractmethod
    def make_sink(self) -> TwoPhaseCommitSink:
        """The sink, which goes through the proxy. Small deadlines keep the matrix fast."""

    rows = staticmethod(plain_rows)
    """Gives rows that carry numbers. Must be a function of a module: it is pickled."""

    @abc.abstractmethod
    def visible(self) -> Sequence[int]:
        """The numbers that a reader sees now, asked on the server's own port, without our code. May raise."""

    def glance(self) -> Sequence[int]:
        """What the reader sees who looks all the time; may be a little behind `visible`."""
        return self.visible()

    @abc.abstractmethod
    def lingering(self) -> Sequence[str]:
        """What is open of any run, asked of the server, without our code."""

    def state(self) -> object:
        """What a request that comes late may have changed, without what is only counted or timed."""
        return sorted(self.visible()), sorted(self.lingering())

    # --- faults; what a system cannot do it leaves out ----------------------------------------------------------------

    can_restart = False
    can_pause = False
    can_fill = False
    can_fill_memory = False

    def kill(self) -> None:
        """Ends the server by SIGKILL."""
        raise NotImplementedError

    def revive(self) -> None:
        """Starts it again, with its data."""
        raise NotImplementedError

    def pause(self) -> None:
        """Stops it where it is, with its connections open."""
        raise NotImplementedError

    def resume(self) -> None:
        """Lets it go on."""
        raise NotImplementedError

    def fill_disk(self) -> None:
        """Leaves no room where it keeps its data."""
        raise NotImplementedError

    def free_disk(self) -> None:
        """Makes room again."""
        raise NotImplementedError

    def fill_memory(self) -> None:
        """Lets the server take nothing more into its memory."""
        raise NotImplementedError

    def free_memory(self) -> None:
        """Makes room again."""
        raise NotImplementedError


class ServerTarget(Target):
    """A target with a server of `sparkonce.rig.servers` behind the proxy."""

    can_restart = True
    can_pause = True
    server: Server
    proxy: FaultProxy

    @abc.abstractmethod
    def make_server(self, folder: Path) -> Server:
        """The server, not started."""

    def start(self, folder: Path) -> None:
        self.server = self.make_server(folder)
        self.server.start()
        self._start_proxy()

    def take_over(self, before: Target) -> bool:
        if not self.server_kind or not isinstance(before, ServerTarget) or before.server_kind != self.server_kind:
            return False
        before.leave()
        self.inherit(before)
        self._start_proxy()
        return True

    def inherit(self, before: ServerTarget) -> None:
        """Takes what is to be ended with the server."""
        self.server = before.server

    def _start_proxy(self) -> None:
        self.proxy = FaultProxy((HOST, self.server.port), self.requests)
        self.proxy.start()

    def leave(self) -> None:
        """Ends what is its own; the server stays up."""
        self.proxy.close()

    def stop(self) -> None:
        self.leave()
        self.server.stop()

    def kill(self) -> None:
        self.server.kill()

    def revive(self) -> None:
        self.server.start()

    def pause(self) -> None:
        self.server.pause()

    def resume(self) -> None:
        self.server.resume()


class OnSmallDisk(Target):
    """A target whose data are on a disk of their own, which can be filled where mounting is allowed."""

    disk: SmallDisk

    @property
    def can_fill(self) -> bool:  # type: ignore[override]
        return not cannot_mount()

    def stop(self) -> None:
        super().stop()
        self.disk.close()

    def fill_disk(self) -> None:
        self.disk.fill()

    def free_disk(self) -> None:
        self.disk.free()


class ServerOnSmallDisk(OnSmallDisk, ServerTarget):
    """Such a server. Some end when they cannot write."""

    def inherit(self, before: ServerTarget) -> None:
        super().inherit(before)
        assert isinstance(before, ServerOnSmallDisk)
        self.disk = before.disk

    def free_disk(self) -> None:
        super().free_disk()
        if not self.server.is_up():
            self.server.restart()


def new_name() -> str:
    """For a place: lower-case letters and digits."""
    return f"t{secrets.token_hex(5)}"
