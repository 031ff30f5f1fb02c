"""The interface of a system's model: a sink with the product's own committer, and modeled writers."""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from simulation.engine import NoAnswerError, RefusedError, Words, text
from sparkonce.errors import OutageError, PrepareError
from sparkonce.guarantees import Guarantee
from sparkonce.protocol.handles import Finished, Outcome
from sparkonce.protocol.ownership import TransactionName
from sparkonce.sink import Facts, SinkCommitter, SinkWriter, TwoPhaseCommitSink, WriterContext

if TYPE_CHECKING:
    from simulation.engine import Simulation
    from simulation.oracle import Key
    from simulation.spark import Process
    from sparkonce.protocol.handles import Handle, Scalar
    from sparkonce.sink import Owner

_NOT_FINAL = (Outcome.RETRY, Outcome.UNKNOWN)

Event = Callable[[], Callable[[], None] | None]
"""A spontaneous event that may happen now, if any."""


class System(abc.ABC):
    """One server, and the unit's sink on it.

    Args:
        simulation: The schedule.
        name: The sink's name, which is its kind.
    """

    prefix = "p"
    life_s: float | None = None
    """How long transactions live, in worlds with `Config.long_batches`."""
    rows_each = 1
    """How many of the system's own rows represent each row of the schedule."""
    copies: Callable[..., Writer]
    """Creates a task attempt's writer, from the system and the transaction's name."""
    key_field = "name"
    """The field of a handle that names its transaction."""
    opens_early = False
    """True if a writer sends requests when it is created: before any sink's first rows, and even if there are none."""

    def __init__(self, simulation: Simulation, name: str) -> None:
        self.simulation = simulation
        self.name = name
        self.called = f"{name}:"
        simulation.refusals += self.refusals
        for fault, event in (
            ("expired", self.expire),
            ("server restarted", self.restart),
            ("connection ended", self.hang_up),
        ):
            if fault in simulation.config.faults:
                simulation.events.append(_noted(fault, simulation, event))

    def sink(self) -> TwoPhaseCommitSink:
        """The sink, for drivers."""
        return _Sink(self)

    facts: Mapping[str, str] = {"prefix": "p"}
    refusals: tuple[type[Exception], ...] = ()
    """What identifies a server's response as a refusal."""

    @abc.abstractmethod
    def committer(self) -> SinkCommitter:
        """The product's committer, for this server."""

    def writer(self, owner: Owner, process: Process, batch: int, slot: int, copy: int) -> Writer:
        """Creates a task attempt's writer."""
        return self.copies(self, self.transaction_name(owner, batch, slot, copy))

    def key(self, handle: Handle) -> Key:
        """Returns the transaction that a handle finishes."""
        return (self.name, handle[self.key_field])

    @abc.abstractmethod
    def lingering(self) -> list[Key]:
        """Returns what is neither committed nor aborted."""

    def expire(self) -> Callable[[], None] | None:
        """The server itself ends a transaction; None if it never does, or has none to end."""
        return None

    def age(self) -> None:  # noqa: B027 - optional
        """A long time has passed."""

    def restart(self) -> Callable[[], None] | None:
        """The server is killed and restarted; None if that does not affect anything that it holds."""
        return None

    def hang_up(self) -> Callable[[], None] | None:
        """The server notices that a process is gone, and ends the connection; None if there is nothing to notice."""
        return None

    def one_of(self, found: Sequence[Any], happens: Callable[[Any], None]) -> Callable[[], None] | None:
        """Lets one of these events happen; None if there are none."""
        return (lambda: happens(found[self.simulation.dice.pick(len(found))])) if found else None

    def ask(self, what: Words, apply: Callable[[], Any]) -> Any:
        """Sends a driver's request, which raises its client's errors."""
        try:
            return self.simulation.request((self.called, *what), apply)
        except NoAnswerError:
            raise self.no_answer() from None
        except RefusedError:
            raise self.refused() from None

    def no_answer(self) -> Exception:
        """Returns a client's error for a request without a response."""
        raise NotImplementedError

    def refused(self) -> Exception:
        """Returns a client's error for a request that is rejected."""
        raise NotImplementedError

    def transaction_name(self, owner: Owner, batch: int, slot: int, copy: int) -> TransactionName:
        """Returns an attempt's name, if transactions have their own names."""
        return TransactionName(
            prefix=self.prefix, query=owner.query, token=owner.token, batch=batch, slot=slot, copy=f"{copy:012x}"
        )


class Writer(abc.ABC):
    """A model of a sink's executor side: the requests that it sends, one after the other."""

    def __init__(self, system: System) -> None:
        self.system = system
        self.rows = 1
        self.left = False
        self._party = system.simulation.current

    @property
    def is_gone(self) -> bool:
        """True if nobody is left at this end of its connection."""
        return self.left or (self._party is not None and self._party.dead)

    @abc.abstractmethod
    def begin(self) -> None:
        """Opens the transaction."""

    @abc.abstractmethod
    def write(self, parts: int) -> None:
        """Writes a part of the rows."""

    @abc.abstractmethod
    def prepare(self) -> Mapping[str, Scalar]:
        """Makes the rows durable, and returns what finishes them."""

    @abc.abstractmethod
    def abort(self) -> None:
        """Discards them."""

    def close(self) -> None:  # noqa: B027 - optional
        """Releases resources."""

    def ask(self, what: Words, apply: Callable[[], Any]) -> Any:
        """Sends an attempt's request. Without a response, or if it is rejected, the attempt fails."""
        return ask(self.system, what, apply)


def ask(system: System, what: Words, apply: Callable[[], Any]) -> Any:
    """Sends a request of a worker process.

    Raises:
        PrepareError: If there is no response, or it is rejected.
    """
    try:
        return system.simulation.request((system.called, *what), apply)
    except NoAnswerError:
        raise OutageError(f"{text(what)}: no answer") from None
    except RefusedError:
        raise PrepareError(f"{text(what)}: refused") from None


class _Sink(TwoPhaseCommitSink):
    def __init__(self, system: System) -> None:
        super().__init__(system.name, Guarantee.EXACTLY_ONCE)
        self._system = system

    def preflight(self, query: str, recorded: Facts | None) -> Facts:
        return self._system.facts

    def transaction_timeout_s(self, facts: Facts) -> float | None:
        return self._system.life_s if self._system.simulation.config.long_batches else None

    def writer(self, context: WriterContext) -> SinkWriter:
        raise NotImplementedError("copies of tasks ask the system itself")

    def committer(self) -> SinkCommitter:
        made = self._system.committer()
        _Sweeps(self._system, made)
        return made


class _Sweeps:
    """Tells the oracle which runs a driver's committer has to sweep, and when none of their transactions is left."""

    __slots__ = ("_abort", "_found", "_list", "_oracle", "_owners", "_sink")

    def __init__(self, system: System, committer: SinkCommitter) -> None:
        self._oracle, self._sink = system.simulation.oracle, system.name
        self._list, self._abort = committer.list_lingering, committer.abort
        self._owners: Sequence[Owner] = ()
        self._found: Sequence[Handle] = ()
        committer.list_lingering = self.list_lingering
        committer.abort = self.abort

    def list_lingering(self, owners: Sequence[Owner]) -> Sequence[Handle]:
        self._oracle.sweeps(self._sink, owners)
        self._owners, self._found = owners, self._list(owners)
        if not self._found:
            self._oracle.swept(self._sink, owners)
        return self._found

    def abort(self, handles: Sequence[Handle]) -> Sequence[Finished]:
        finished = self._abort(handles)
        is_over = all(one.outcome not in _NOT_FINAL for one in finished)
        if handles is self._found and is_over:
            self._oracle.swept(self._sink, self._owners)
        return finished


def _noted(fault: str, simulation: Simulation, event: Event) -> Event:
    def may() -> Callable[[], None] | None:
        happens = event()
        if happens is not None:
            simulation.note(fault)
        return happens

    return may
