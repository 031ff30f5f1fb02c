"""Kills the query's driver from inside, between two exact steps of the protocol.

Spark pickles the sink to its workers by reference, so its class must stand in a module that they can import.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from enum import Enum

from sparkonce.protocol.handles import Handle
from sparkonce.protocol.outcomes import Finished
from sparkonce.protocol.state import Phase
from sparkonce.sink import SinkCommitter
from sparkonce.sinks.kafka.sink import KafkaSink
from sparkonce.testing.forwarding import ForwardingCommitter

WHOLE_BATCHES = 2
"""How many batches a start finishes before it is killed: the one that it recovers and one more."""

FEWEST_TRANSACTIONS = 2
"""A batch with fewer open transactions has no half-way point, and shows little."""


class CrashPoint(str, Enum):
    """Where the driver is killed."""

    PREPARED = "prepared"
    DECIDED = "decided"
    HALFWAY = "halfway"

    @property
    def words(self) -> str:
        """The same for people."""
        return _WORDS[self]


_WORDS = {
    CrashPoint.PREPARED: "between prepare and decide",
    CrashPoint.DECIDED: "between decide and commit",
    CrashPoint.HALFWAY: "half-way through the commits",
}

# A phase is announced before anything is done in it.
_PHASES = {
    CrashPoint.PREPARED: Phase.DECIDING,
    CrashPoint.DECIDED: Phase.FINISHING,
    CrashPoint.HALFWAY: Phase.FINISHING,
}

Announce = Callable[[int], None]
"""Told of the batch, directly before the kill."""


class CrashingSink(KafkaSink):
    """A Kafka sink whose committer can be told to commit half of a batch and die.

    Attributes:
        die_halfway: What to do between the first half and the second; None to commit as usual.
    """

    die_halfway: Callable[[], None] | None = None

    def committer(self) -> SinkCommitter:
        """The real one, in a wrapper."""
        return _HalfwayCommitter(super().committer(), self)


class _HalfwayCommitter(ForwardingCommitter):
    def __init__(self, real: SinkCommitter, sink: CrashingSink) -> None:
        super().__init__(real)
        self._sink = sink

    def commit(self, handles: Sequence[Handle]) -> Sequence[Finished]:
        if self._sink.die_halfway is not None:
            transactions = [handle for handle in handles if handle.transaction]
            self._real.commit(transactions[: len(transactions) // 2])
            self._sink.die_halfway()
        return self._real.commit(handles)


class Crash:
    """Waits for the right moment and kills this process: a listener for `sparkonce.ExactlyOnce`.

    The moment is right in the first batch after two whole ones of this run in which the broker, asked, has at least two
    transactions open.

    Args:
        point: Where.
        sink: The query's sink.
        open_transactions: Asks the broker how many are open.
        announce: Called directly before the kill.
    """

    def __init__(
        self, point: CrashPoint, sink: CrashingSink, *, open_transactions: Callable[[], int], announce: Announce
    ) -> None:
        self._point = point
        self._sink = sink
        self._open_transactions = open_transactions
        self._announce = announce
        self._finished = 0

    def __call__(self, phase: Phase, batch: int) -> None:
        """Takes note of a phase, and kills if it is the one."""
        self._finished += phase is Phase.IDLE
        if self._finished < WHOLE_BATCHES or phase is not _PHASES[self._point]:
            return
        if self._open_transactions() < FEWEST_TRANSACTIONS:
            return
        if self._point is CrashPoint.HALFWAY:
            self._sink.die_halfway = lambda: self._die(batch)
        else:
            self._die(batch)

    def _die(self, batch: int) -> None:
        self._announce(batch)
        os.kill(os.getpid(), signal.SIGKILL)
        signal.pause()  # the signal may take a moment; nothing may be done in it
