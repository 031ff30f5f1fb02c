"""The table that says what is committed, and, to a dirty read, what is open: one row for each transaction.

A copy's row is written in the copy's own transaction, so it is there for everybody exactly if the rows are. Read at
READ UNCOMMITTED, the table also shows what is not committed yet, with the connection that wrote it: that is how open
transactions of dead or paused workers are found without any right and without ``performance_schema``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sparkonce.protocol.handles import Scalar
from sparkonce.protocol.outcomes import Finished, Outcome
from sparkonce.protocol.ownership import Token, TransactionName
from sparkonce.sinks.mysql.connection import Link
from sparkonce.sinks.mysql.flavours import Flavour
from sparkonce.sinks.mysql.names import Xid

COMMITS = "sparkonce_commits"
SERVERS = "sparkonce_servers"
TWO_PHASE = "two_phase"
STAGED = "staged"

KEPT_BATCHES = 200
"""The decision log keeps 100 batches; markers are kept for twice as many."""

TABLES = {
    COMMITS: f"CREATE TABLE {COMMITS} (prefix VARBINARY(64) NOT NULL, query VARBINARY(12) NOT NULL, "
    "batch BIGINT UNSIGNED NOT NULL, copy VARBINARY(12) NOT NULL, slot INT UNSIGNED NOT NULL, "
    "position BIGINT UNSIGNED NOT NULL, nonce VARBINARY(8) NOT NULL, kind VARBINARY(9) NOT NULL, "
    "begun_ms BIGINT UNSIGNED NOT NULL, connection BIGINT UNSIGNED NOT NULL, "
    "PRIMARY KEY (prefix, query, batch, copy)) ENGINE=InnoDB",
    SERVERS: f"CREATE TABLE {SERVERS} (host VARBINARY(300) NOT NULL PRIMARY KEY, id VARBINARY(32) NOT NULL) "
    "ENGINE=InnoDB",
}
"""How the sink's own tables are made, by name. The second one is for MariaDB alone."""

_COLUMNS = "prefix, query, batch, copy, slot, position, nonce, kind, begun_ms"
_MOVED = re.compile(r"server (?P<new>\S+) was (?P<old>\S+)")
_HOST = "CONCAT(@@hostname, ':', @@port)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Marker:
    """A transaction, as its row has it.

    Attributes:
        name: Its name.
        kind: `TWO_PHASE` or `STAGED`.
        server: The server's identity, see `identity`.
        begun_ms: When it was begun, milliseconds since the epoch by the server's clock.
    """

    name: TransactionName
    kind: str
    server: str
    begun_ms: int

    def fields(self) -> dict[str, Scalar]:
        """The fields of its handle."""
        return {
            "transaction": str(self.name),
            "commit": self.kind,
            "server": self.server,
            "begun_ms": self.begun_ms,
        }


def insert(link: Link, marker: Marker) -> None:
    """Writes the row, in the transaction that is open."""
    name = marker.name
    link.run(
        f"INSERT INTO {COMMITS} ({_COLUMNS}, connection) "  # noqa: S608 - ours
        "VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, CONNECTION_ID())",
        (
            name.prefix.encode(),
            name.query.encode(),
            name.batch,
            name.copy.encode(),
            name.slot,
            name.token.position,
            name.token.nonce.encode(),
            marker.kind.encode(),
            marker.begun_ms,
        ),
    )


def committed(link: Link, names: Iterable[TransactionName]) -> set[TransactionName]:
    """Which of these are committed now. Those of batch 0 are looked for in all batches, see `Xid.named`."""
    groups: dict[tuple[str, str, int], list[TransactionName]] = {}
    for name in names:
        groups.setdefault((name.prefix, name.query, name.batch), []).append(name)
    found: set[TransactionName] = set()
    for (prefix, query, batch), wanted in groups.items():
        places = ", ".join(["%s"] * len(wanted))
        of_batch = "batch = %s" if batch else "batch >= %s"
        rows = link.rows(
            f"SELECT {_COLUMNS} FROM {COMMITS} WHERE prefix = %s AND query = %s AND {of_batch} "  # noqa: S608 - ours
            f"AND copy IN ({places})",
            (prefix.encode(), query.encode(), batch, *(name.copy.encode() for name in wanted)),
        )
        there = {Xid.of(_marker(row, "").name) for row in rows}
        found |= {name for name in wanted if Xid.of(name) in there}
    return found


def of_query(link: Link, prefix: str, query: str, server: str) -> list[Marker]:
    """All of a query's rows that the session sees."""
    rows = link.rows(
        f"SELECT {_COLUMNS} FROM {COMMITS} WHERE prefix = %s AND query = %s",  # noqa: S608 - ours
        (prefix.encode(), query.encode()),
    )
    return [_marker(row, server) for row in rows]


def queries(link: Link) -> list[tuple[str, str]]:
    """The prefix and query of all rows, also of transactions that are not committed."""
    link.run("SET TRANSACTION ISOLATION LEVEL READ UNCOMMITTED")
    rows = link.rows(f"SELECT DISTINCT prefix, query FROM {COMMITS}")  # noqa: S608 - ours
    return [(_text(prefix), _text(query)) for prefix, query in rows]


def not_committed(link: Link, prefix: str, query: str, server: str) -> list[Marker]:
    """A query's transactions that are open or prepared now: a dirty read, less what is committed a moment later."""
    with_open = dirty(link, prefix, query, server)
    settled = {marker.name for marker in of_query(link, prefix, query, server)} if with_open else set()
    return [marker for marker in with_open if marker.name not in settled]


def dirty(link: Link, prefix: str, query: str, server: str) -> list[Marker]:
    """All of a query's rows, also of transactions that are not committed."""
    link.run("SET TRANSACTION ISOLATION LEVEL READ UNCOMMITTED")
    return of_query(link, prefix, query, server)


def is_seen(link: Link, name: TransactionName) -> bool:
    """Whether a transaction's row is there, committed or not: as long as it is, the transaction is not gone."""
    link.run("SET TRANSACTION ISOLATION LEVEL READ UNCOMMITTED")
    return bool(committed(link, [name]))


def nowhere(link: Link, name: TransactionName, lost: str) -> Finished:
    """What it says that a transaction is not there, and, looked at after that, its row neither.

    Args:
        link: A connection that is in no transaction.
        name: Of the transaction.
        lost: Why it is lost, if its row cannot have been tidied away.
    """
    rows = link.row(
        f"SELECT MAX(batch) FROM {COMMITS} WHERE prefix = %s AND query = %s",  # noqa: S608 - ours
        (name.prefix.encode(), name.query.encode()),
    )
    newest = rows[0] if rows else None
    if newest is not None and int(newest) >= name.batch + KEPT_BATCHES:
        return Finished(
            outcome=Outcome.UNKNOWN,
            reason=f"Batch {newest} is committed: the row of batch {name.batch} may have been tidied away.",
        )
    return Finished(outcome=Outcome.LOST, reason=lost)


def tidy(link: Link, prefix: str, query: str, below: int) -> int:
    """Removes the rows of batches below a number, and says how many."""
    return link.run(
        f"DELETE FROM {COMMITS} WHERE prefix = %s AND query = %s AND batch < %s",  # noqa: S608 - ours
        (prefix.encode(), query.encode(), below),
    ).rows


def identity(link: Link, flavour: Flavour) -> str:
    """Which server this is; empty if it is none that the sink has been started on.

    MySQL has ``server_uuid``, and after a failover another one: so the comment on the table of markers may say whose
    successor a server is, ``server <new> was <old>``, which is void on all others. MariaDB has nothing of the kind: its
    id is drawn at the first start and stands beside its host name and port, so that a replica, a restored copy and a
    clone, which all have the row, are not taken for it.
    """
    if flavour.identity is not None:
        server, comment = link.row(flavour.identity)
        moved = _MOVED.fullmatch(str(comment or "").strip())
        return moved["old"] if moved is not None and moved["new"] == str(server) else str(server)
    found = link.row(f"SELECT id FROM {SERVERS} WHERE host = {_HOST}")  # noqa: S608 - ours
    return found[0].decode() if found else ""


def draw_identity(link: Link, drawn: str) -> None:
    """Gives a MariaDB server its id, unless it has one."""
    link.run(f"INSERT IGNORE INTO {SERVERS} (host, id) SELECT {_HOST}, %s", (drawn.encode(),))


def _marker(row: Sequence[object], server: str) -> Marker:
    prefix, query, batch, copy, slot, position, nonce, kind, begun_ms = row
    name = TransactionName(
        prefix=_text(prefix),
        query=_text(query),
        token=Token(int(str(position)), _text(nonce)),
        batch=int(str(batch)),
        slot=int(str(slot)),
        copy=_text(copy),
    )
    return Marker(name=name, kind=_text(kind), server=server, begun_ms=int(str(begun_ms)))


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
