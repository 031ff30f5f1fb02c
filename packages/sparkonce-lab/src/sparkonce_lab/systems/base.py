"""The operations of what can be struck, and of a system that a sink writes to; its address, without credentials."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from sparkonce_lab.faults import Fault

if TYPE_CHECKING:
    import pyarrow as pa
    from typing_extensions import Self

    from sparkonce.protocol.handles import Handle
    from sparkonce.sink import TwoPhaseCommitSink
    from sparkonce_lab.rig.proxy import Request


class Strikable(ABC):
    """A server or a folder in which faults can be injected.

    Attributes:
        name: As on the command line: ``kafka``, ``postgres``, ``checkpoint``, …
    """

    name: str

    @abstractmethod
    def faults(self) -> Mapping[Fault, Sequence[str]]:
        """Returns the faults that can be injected here, those of one request with the names of the requests."""

    @abstractmethod
    def inject(self, fault: Fault, *, request: str = "", within_s: float = 30.0) -> bool:
        """Makes it happen. What lasts ends by `lift`.

        For a fault of one request this sets the trap; `sprung` says whether the request has come. Such a fault is
        always to be lifted: a trap that has not sprung is taken away, and a request that is held is delivered.

        Args:
            fault: One of `faults`.
            request: Which request.
            within_s: Limit, for what has to be waited for.

        Returns:
            Whether there is something to lift.

        Raises:
            ConfigurationError: if the fault, or the request, is none of `faults`.
            TimeoutError: if it could not be made to happen within the limit. There is nothing to lift then.
        """

    @abstractmethod
    def lift(self, fault: Fault) -> None:
        """Ends what lasts: the server is started again, connections heal, a held request is delivered.

        Raises:
            PreflightError: if a server does not come back.
        """

    def sprung(self) -> bool:
        """Returns True if the trap of a fault of one request has sprung. True for all other faults."""
        return True


class System(Strikable):
    """What a sink writes to: a server of our own, one that somebody else has started, or the user's.

    This is the only description of the server, for conformance suites, the crash matrix, killed queries and the
    verifier. It queries the server directly, never through the product's code, over connections that no fault strikes.

    ::

        with PostgresSystem().placed(folder, "number bigint") as system:
            sink = system.sink(commit="staged")
            ...
            assert system.visible() == [1, 2, 3]
            assert not system.left_open()

    Attributes:
        REQUESTS: By way of committing, then by name (``prepare``, ``commit``, ``abort``): how a fault proxy recognizes
            a request.
    """

    REQUESTS: ClassVar[Mapping[str, Mapping[str, Request]]] = {}

    @classmethod
    def missing(cls) -> str:
        """Returns why no server of our own can be started on this machine, or an empty string."""
        return ""

    @abstractmethod
    def start(self, folder: Path) -> None:
        """Starts the server, or connects to the one that was given.

        Args:
            folder: A new one, for data, logs and the like.

        Raises:
            PreflightError: if it cannot be had.
            ConfigurationError: if what the user has named cannot be used.
        """

    @abstractmethod
    def stop(self) -> None:
        """Ends what was started here; on the user's own server it removes the table or topic, unless `keep_place`.

        May be called again, and after a `start` that failed.
        """

    @contextmanager
    def placed(self, folder: Path, *columns: str) -> Iterator[Self]:
        """Starts, makes a place, and stops in the end. See `start` and `place`."""
        try:
            self.start(folder)
            self.place(*columns)
            yield self
        finally:
            self.stop()

    # `place` and `visible` take what differs from server to server: columns, partitions, patterns of keys.

    @abstractmethod
    def place(self, *columns: str) -> None:
        """Makes an empty table, topic, folder or bucket with a new name. `sink` and `visible` use it from now on.

        Args:
            columns: Definitions of columns and keys where the server needs them; by default those of the rows that a
                verified query writes.

        Raises:
            PreflightError: if it cannot be made.
        """

    @abstractmethod
    def arguments(self, **options: Any) -> dict[str, Any]:
        """Returns the sink's arguments: plain values for JSON, with the address at which connections can be struck.

        Args:
            options: More arguments, or others.
        """

    @staticmethod
    @abstractmethod
    def build(arguments: Mapping[str, Any]) -> TwoPhaseCommitSink:
        """Makes the sink from `arguments`, perhaps in another process."""

    def sink(self, **options: Any) -> TwoPhaseCommitSink:
        """Makes a sink for the table, topic, folder or bucket. See `arguments`."""
        return self.build(self.arguments(**options))

    @abstractmethod
    def visible(self, *columns: str) -> list[Any]:
        """Returns every row that a reader of committed rows sees now: its number, or a tuple of these columns.

        Raises any `Exception` while the server does not answer.
        """

    @abstractmethod
    def left_open(self) -> Sequence[str]:
        """Names what is neither committed nor aborted. Raises any `Exception` while the server does not answer."""

    def expire(self, handle: Handle) -> bool:  # noqa: ARG002 - for those that override it
        """Makes the server lose a prepared transaction, as its timeout or an operator does.

        Returns:
            Whether it can be made to.
        """
        return False

    def restart(self) -> bool:
        """Kills the server and starts it again with its data.

        Returns:
            Whether there is a server that can be restarted.
        """
        return False

    def state(self) -> object:
        """Returns everything that a late request may have changed, without what is only counted or timed."""
        return sorted(self.visible()), sorted(self.left_open())

    keep_place = False
    """Set where the rows must stay to be looked at."""


class VerifiedSystem(System):
    """A system that the verifier can write to. Its name is the sink's, too."""

    session: Mapping[str, str] = {}
    """Spark's settings that the query's session needs for it."""

    def jars(self) -> Sequence[Path]:
        """Fetches the jars that the query's session needs for it. See `sparkonce_lab.rig.kafka.jars.resolve`."""
        return ()

    @abstractmethod
    def sink_settings(self) -> Mapping[str, Any]:
        """Returns the `arguments` of the sink in the verified query."""

    @abstractmethod
    def read(self) -> pa.Table:
        """Returns every row that a reader of committed rows sees now: `sparkonce_lab.history.OBSERVED`."""

    @abstractmethod
    def newest(self) -> int:
        """Returns the newest batch of which such a reader sees a row now, -1 if there is none.

        Called several times a second by one thread. Raises any `Exception` while the system does not answer, and
        must then give up within seconds.
        """


_HIDDEN = "***"
_NAME = r"(?i)\b(\w*(?:password|passwd|secret|token)\w*\s*=\s*)"
_IN_SETTINGS = re.compile(_NAME + r"""((?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|\\.|[^\s'"\\])*)""")
"""A value as libpq has it, or a shell: quoted, or with a backslash before what would end it."""
_IN_URL = re.compile(_NAME + r"[^\s&]*")
_LOGIN = re.compile(r"://.*@")
"""Up to the last one: a password that nobody has encoded may hold any character."""


def without_credentials(place: str) -> str:
    """Returns the address without passwords, and a URL without the login before its host.

    Args:
        place: A URL, or ``name=value …`` as libpq and PyMySQL have it.
    """
    secret = _IN_URL if "://" in place else _IN_SETTINGS
    return _LOGIN.sub(f"://{_HIDDEN}@", secret.sub(rf"\1{_HIDDEN}", place))


def holds_credentials(place: str) -> bool:
    """Tells whether it has credentials, or had them before they were taken out."""
    return _HIDDEN in without_credentials(place)
