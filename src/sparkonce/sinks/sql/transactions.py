"""A task attempt's transaction as a value, and what its name reveals once the transaction is gone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sparkonce.protocol.handles import Finished, Handle, Outcome, Scalar, transaction_fields
from sparkonce.protocol.horizon import SINKS_KEEP_BATCHES
from sparkonce.protocol.ownership import TransactionName
from sparkonce.sink import Facts
from sparkonce.sinks.sql.settings import STAGED, TWO_PHASE

KEPT_BATCHES = SINKS_KEEP_BATCHES
"""The number of batches whose markers are kept."""

OPEN = "open"
"""The kind of a transaction that is still being written. Only `list_lingering` creates handles of this kind."""

DIRECT = "direct"
"""The kind of a transaction that ends with its writer. Its rows become visible at prepare."""

GONE = Finished(outcome=Outcome.ABORTED, reason="It was already gone.")
MARKED = Finished(outcome=Outcome.ALREADY_COMMITTED, reason="Its marker is there.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Location:
    """The database that holds a transaction, if the server reveals it.

    Attributes:
        server: The server's own id; empty if it has none or does not allow reading it.
        database: The database's name; empty if the connection alone determines it.
        schema: The schema of the markers and staging tables; empty if there are no schemas.
    """

    server: str
    database: str = ""
    schema: str = ""

    @classmethod
    def of(cls, fields: Mapping[str, Scalar] | Facts, names: Mapping[str, str]) -> Location:
        """Returns the location in these facts or handle fields, by `HandleFields.names`."""
        parts = ("server", "database", "schema")
        return cls(**{part: str(fields[names[part]]) for part in parts if part in names})


@dataclass(frozen=True, slots=True, kw_only=True)
class SqlTransaction:
    """The transaction of a task attempt, as described by a handle.

    Attributes:
        kind: ``two_phase`` if it is prepared, ``staged`` if its rows are in a staging table, or `OPEN`.
        name: Its name, a `TransactionName`. For an `OPEN` transaction, it is the name of the session.
        location: The database that holds it.
        begun_ms: When it began, in milliseconds since the epoch by the server's clock; 0 if its handle does not record
            it.
    """

    kind: str
    name: Any
    location: Location
    begun_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class HandleFields:
    """The fields of a dialect's handles.

    Attributes:
        names: The handle's field for each attribute of `SqlTransaction` and `Location` that is stored.
        session: Parses the name of an open session; None if a session shows its transaction's name.
    """

    names: Mapping[str, str]
    session: Callable[[str], Any] | None = None

    def read(self, fields: Mapping[str, Scalar]) -> SqlTransaction | None:
        """Returns the transaction in a handle's fields; None if the fields belong to another sink."""
        if set(fields) != set(self.names.values()):
            return None
        kind, text = str(fields[self.names["kind"]]), str(fields[self.names["name"]])
        begun_ms = fields[self.names["begun_ms"]] if "begun_ms" in self.names else 0
        kinds = (TWO_PHASE, STAGED, *([OPEN] if self.session else []))
        name = self.session(text) if self.session and kind == OPEN else TransactionName.parse(text)
        if kind not in kinds or name is None or not isinstance(begun_ms, int):
            return None
        return SqlTransaction(kind=kind, name=name, location=Location.of(fields, self.names), begun_ms=begun_ms)

    def write(self, one: SqlTransaction) -> dict[str, Scalar]:
        """Returns the fields of a transaction's handle."""
        there = {**{name: getattr(one.location, name) for name in Location.__slots__}, "kind": one.kind}
        there |= {"name": str(one.name), "begun_ms": one.begun_ms}
        return {field: there[attribute] for attribute, field in self.names.items()}

    def handle(self, sink: str, one: SqlTransaction) -> Handle:
        """Returns a handle that an abort accepts."""
        fields = transaction_fields(self.write(one))
        return Handle(sink=sink, slot=0, opened_ms=one.begun_ms, transaction=fields)


def absent_verdict(name: TransactionName, newest: int, lost: str) -> Finished:
    """Returns the outcome of a transaction that does not exist and, when checked after that, has no marker.

    Args:
        name: The transaction's name.
        newest: The latest batch of its query and prefix that has a marker; -1 if there is none.
        lost: The reason for LOST, which is returned if the marker cannot have been deleted.
    """
    if newest >= name.batch + KEPT_BATCHES:
        return Finished(
            outcome=Outcome.UNKNOWN,
            reason=f"Batch {newest} is committed: the marker of batch {name.batch} may have been tidied away.",
        )
    return Finished(outcome=Outcome.LOST, reason=lost)
