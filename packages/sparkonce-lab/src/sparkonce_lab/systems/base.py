"""The operations of a system that a sink writes to, and the removal of credentials from addresses."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from sparkonce_lab.systems.injections import Injectable, Served, of_server

if TYPE_CHECKING:
    import pyarrow as pa
    from typing_extensions import Self

    from sparkonce.protocol.handles import Handle
    from sparkonce.sink import TwoPhaseCommitSink
    from sparkonce_lab.rig.process import Server
    from sparkonce_lab.rig.proxy import Request


class System(Injectable, ABC):
    """A system that a sink writes to: a server that is started here, one that a caller has started, or the user's.

    Conformance suites, the crash matrix, killed queries and the verifier all use this class. A system queries the
    server directly, without the product's code, over connections that no fault strikes.

    ::

        with PostgresSystem().placed(folder, "number bigint") as system:
            sink = system.sink(commit="staged")
            ...
            assert system.visible() == [1, 2, 3]
            assert not system.left_open()

    Attributes:
        REQUESTS: The patterns that a fault proxy uses to recognize requests, by kind of commit and by name
            (``prepare``, ``commit``, ``abort``).
    """

    REQUESTS: ClassVar[Mapping[str, Mapping[str, Request]]] = {}

    @classmethod
    def missing(cls) -> str:
        """Returns why a server cannot be started on this machine; empty if it can."""
        return ""

    @abstractmethod
    def start(self, folder: Path) -> None:
        """Starts the server, or connects to an existing one."""

    @abstractmethod
    def stop(self) -> None:
        """Ends everything that was started here. Removes the user's table or topic, unless `keep_place` is set.

        May be called repeatedly, and after a failed `start`.
        """

    @contextmanager
    def placed(self, folder: Path, *columns: str) -> Iterator[Self]:
        """Starts, creates a target, and stops at the end; see `start` and `place`."""
        try:
            self.start(folder)
            self.place(*columns)
            yield self
        finally:
            self.stop()

    # The arguments of `place` and `visible` depend on the server: they are columns, partitions, or key patterns.

    @abstractmethod
    def place(self, *columns: str) -> None:
        """Creates an empty table, topic, folder or bucket with a new name, which `sink` and `visible` then use.

        If the server needs definitions of columns and keys, they default to those of the rows that a verified query
        writes.
        """

    @abstractmethod
    def arguments(self, **options: Any) -> dict[str, Any]:
        """Returns the sink's arguments as plain values. Faults can strike connections to the address in them."""

    @staticmethod
    @abstractmethod
    def build(arguments: Mapping[str, Any]) -> TwoPhaseCommitSink:
        """Creates the sink from `arguments`, possibly in another process."""

    def sink(self, **options: Any) -> TwoPhaseCommitSink:
        return self.build(self.arguments(**options))

    @abstractmethod
    def visible(self, *columns: str) -> list[Any]:
        """Returns every row that a reader of committed rows currently sees: its number, or a tuple of these columns.

        Raises any `Exception` while the server does not respond.
        """

    @abstractmethod
    def left_open(self) -> Sequence[str]:
        """Lists open transactions and their remains. Raises any `Exception` while the server does not respond."""

    def expire(self, handle: Handle) -> bool:  # noqa: ARG002 - for those that override it
        """Makes the server lose a prepared transaction, as a timeout or an operator might. False if impossible."""
        return False

    def restart(self) -> bool:
        """Kills the server, and starts it again with its data. Returns False if that is not possible."""
        return False

    def state(self) -> object:
        """Returns everything that a late request may have changed, except counters and timestamps."""
        return sorted(self.visible()), sorted(self.left_open())

    keep_place = False
    """True to keep the rows for inspection."""


class VerifiedSystem(System):
    """A system that the verifier can write to. The sink has the same name."""

    session: Mapping[str, str] = {}
    """The Spark settings that the query's session needs for this system."""

    def jars(self) -> Sequence[Path]:
        """Downloads the jars that the query's session needs for this system; see `resolve` in ``jars``."""
        return ()

    def sink_settings(self) -> Mapping[str, Any]:
        """Returns the `arguments` of the sink in the verified query."""
        return self.arguments(name=self.name)

    @abstractmethod
    def read(self) -> pa.Table:
        """Returns every row that a reader of committed rows currently sees; see `sparkonce_lab.history.OBSERVED`."""

    @abstractmethod
    def newest(self) -> int:
        """Returns the newest batch from which a reader of committed rows currently sees a row; -1 if there is none.

        One thread calls this method several times a second. Raises any `Exception` while the system does not respond,
        in which case it must give up within seconds.
        """


class ServerSystem(Served, System):
    """A system that consists of one server.

    Many subclasses have these arguments: ``megabytes``, the size of the server's disk, which is in memory and uses only
    as much of it as is written; ``server``, a running server, which is not stopped here; ``alone``, True if nobody else
    uses the server, so that `left_open` covers all of it; and ``answers_within_s``, the longest wait for a response.
    """

    _made = False

    def borrow(self, server: Server) -> None:
        """Uses a server that the caller has started and will stop. Its connections cannot be struck."""
        self.server = server
        self.injections = of_server(server)

    @abstractmethod
    def drop_place(self) -> None:
        """Removes the table, bucket or keys from the user's server."""

    @abstractmethod
    def close(self) -> None:
        """Closes the connections to the server. May be called repeatedly. The next request opens them again."""

    def stop(self) -> None:
        self.close_proxy()
        try:
            if self.server is None and self._made and not self.keep_place:
                self.drop_place()
                self._made = False
        finally:
            self.close()
        self.stop_own()

    def restart(self) -> bool:
        if self.server is None:
            return False
        self.close()  # A connection to the stopped server would make the next request fail.
        self.server.restart()
        return True


_HIDDEN = "***"
_NAME = r"(?i)\b(\w*(?:password|passwd|secret|token)\w*\s*=\s*)"
_IN_SETTINGS = re.compile(_NAME + r"""((?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|\\.|[^\s'"\\])*)""")
"""Matches a value in the syntax of libpq or a shell: quoted, or with backslashes before special characters."""
_IN_URL = re.compile(_NAME + r"[^\s&]*")
_LOGIN = re.compile(r"://.*@")
"""Matches a login up to the last @, since a password that is not encoded may contain any character."""


def without_credentials(address: str) -> str:
    """Returns an address without passwords. A URL is returned without the login before its host.

    The address is a URL, or ``name=value …`` as for libpq and PyMySQL.
    """
    secret = _IN_URL if "://" in address else _IN_SETTINGS
    return _LOGIN.sub(f"://{_HIDDEN}@", secret.sub(rf"\1{_HIDDEN}", address))


def holds_credentials(address: str) -> bool:
    """Returns True if an address contains credentials, or contained them before they were removed."""
    return _HIDDEN in without_credentials(address)
