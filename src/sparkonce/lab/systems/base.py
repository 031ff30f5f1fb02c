"""The operations of what can be struck, and of a system that the query under verification writes to."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparkonce.lab.faults import Fault

if TYPE_CHECKING:
    import pyarrow as pa

    from sparkonce.sink import TwoPhaseCommitSink


class Strikable(ABC):
    """A server or a place in which faults can be injected.

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
        """Tells whether the trap of a fault of one request has sprung. True for all other faults."""
        return True


class System(Strikable):
    """A system. `start` starts a server of our own, or connects to the one that the user has named.

    Its name is the sink's, too.
    """

    @abstractmethod
    def start(self, folder: Path) -> None:
        """Starts it and makes the place for the rows: a topic, a table, a folder, with a name that nobody has.

        Args:
            folder: A new one, for data, logs and the like.

        Raises:
            PreflightError: if it cannot be had.
            ConfigurationError: if what the user has named cannot be used.
        """

    @abstractmethod
    def stop(self) -> None:
        """Ends what was started here; on the user's own server it removes the place for the rows, unless `keep_place`.

        May be called again, and after a `start` that failed.
        """

    keep_place = False
    """Set where the rows must stay to be looked at."""

    session: Mapping[str, str] = {}
    """Spark's settings that the query's session needs for it."""

    def jars(self) -> Sequence[Path]:
        """Fetches the jars that the query's session needs for it. See `sparkonce.rig.kafka.jars.resolve`."""
        return ()

    @abstractmethod
    def sink_settings(self) -> Mapping[str, Any]:
        """Returns what `build` makes the sink of, in the query's process.

        Plain values for JSON, with the address at which faults of connections can be injected.
        """

    @staticmethod
    @abstractmethod
    def build(settings: Mapping[str, Any]) -> TwoPhaseCommitSink:
        """Makes the sink. Its rows have the columns of `sparkonce.lab.history.OBSERVED` up to ``batch``."""

    @abstractmethod
    def read(self) -> pa.Table:
        """Returns every row that a reader of committed rows sees now: `sparkonce.lab.history.OBSERVED`.

        By a connection of its own, which no fault strikes.
        """

    @abstractmethod
    def newest(self) -> int:
        """Returns the newest batch of which such a reader sees a row now, -1 if there is none.

        Called several times a second by one thread. Raises any `Exception` while the system does not answer, and
        must then give up within seconds.
        """

    @abstractmethod
    def left_open(self) -> Sequence[str]:
        """Names what it holds of this query that is neither committed nor aborted.

        Asked of the system, not of our code. Raises any `Exception` while it does not answer.
        """
