"""A copy's transaction as a value, and what its name says once the transaction itself is gone."""

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
"""The markers of so many batches are kept."""

OPEN = "open"
"""The kind of a transaction that is still being written; only `list_lingering` makes handles of such."""

DIRECT = "direct"
"""The kind of a transaction that does not outlive the writer: its rows become visible at prepare."""

GONE = Finished(outcome=Outcome.ABORTED, reason="It was gone already.")
MARKED = Finished(outcome=Outcome.ALREADY_COMMITTED, reason="Its marker is there.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Location:
    """The database that holds a transaction, as far as its server says.

    Attributes:
        server: The server's own id, empty if it has none or may not be asked.
        database: Its name; empty where the connection alone says.
        schema: The schema of the markers and staging tables; empty where there are no schemas.
    """

    server: str
    database: str = ""
    schema: str = ""

    @classmethod
    def of(cls, fields: Mapping[str, Scalar] | Facts, names: Mapping[str, str]) -> Location:
        """Returns that of facts, or of a handle's fields, by `HandleFields.names`."""
        parts = ("server", "database", "schema")
        return cls(**{part: str(fields[names[part]]) for part in parts if part in names})


@dataclass(frozen=True, slots=True, kw_only=True)
class SqlTransaction:
    """A copy's transaction, as a handle names it.

    Attributes:
        kind: ``two_phase`` if it is prepared, ``staged`` if its rows are in a staging table, or `OPEN`.
        name: Its name, a `TransactionName`; of an `OPEN` one that of its session.
        location: Where it is.
        begun_ms: When it was begun, milliseconds since the epoch by the server's clock; 0 if its handle does not say.
    """

    kind: str
    name: Any
    location: Location
    begun_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class HandleFields:
    """The fields of a dialect's handles.

    Attributes:
        names: The field for each attribute of `SqlTransaction` and `Location` that is written.
        session: Reads the name of an open session; None where a session shows its transaction's name.
    """

    names: Mapping[str, str]
    session: Callable[[str], Any] | None = None

    def read(self, fields: Mapping[str, Scalar]) -> SqlTransaction | None:
        """Returns the transaction of a handle's fields, or None if they are not this sink's."""
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
        """Returns a handle that an abort takes."""
        fields = transaction_fields(self.write(one))
        return Handle(sink=sink, slot=0, opened_ms=one.begun_ms, transaction=fields)


def absent_verdict(name: TransactionName, newest: int, lost: str) -> Finished:
    """Returns the verdict on a transaction that is not there and has, read afterwards, no marker.

    Args:
        name: The transaction's name.
        newest: The newest batch of its query and prefix that has a marker, -1 if none has.
        lost: Why it is lost, if its marker cannot have been deleted.
    """
    if newest >= name.batch + KEPT_BATCHES:
        return Finished(
            outcome=Outcome.UNKNOWN,
            reason=f"Batch {newest} is committed: the marker of batch {name.batch} may have been tidied away.",
        )
    return Finished(outcome=Outcome.LOST, reason=lost)
