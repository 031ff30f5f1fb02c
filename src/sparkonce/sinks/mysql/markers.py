"""The marker table: one row for each transaction that is committed, or, to a dirty read, open.

A copy's marker is written in the copy's own transaction, so it is visible exactly if the rows are. Read at READ
UNCOMMITTED, the table also shows transactions that are not committed yet. So open transactions of dead or paused
workers are found without any privilege and without ``performance_schema``.

The names of XA branches, staging tables and locks on a server are built and parsed here, too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sparkonce.protocol.codec import read_json
from sparkonce.protocol.handles import Finished, Outcome, Scalar
from sparkonce.protocol.horizon import SINKS_KEEP_BATCHES
from sparkonce.protocol.ownership import Token, TransactionName
from sparkonce.sinks._shared.settings import COMMITS as KINDS
from sparkonce.sinks._shared.settings import NO_RULES, UpsertRules

if TYPE_CHECKING:
    from sparkonce.sinks.mysql.connection import Connection, Flavour

COMMITS = "sparkonce_commits"
FIELDS = frozenset({"transaction", "commit", "server", "begun_ms"})
SERVERS = "sparkonce_servers"
KEPT_BATCHES = SINKS_KEEP_BATCHES

TABLES = {
    COMMITS: f"CREATE TABLE {COMMITS} (prefix VARBINARY(64) NOT NULL, query VARBINARY(12) NOT NULL, "
    "batch BIGINT UNSIGNED NOT NULL, copy VARBINARY(12) NOT NULL, slot INT UNSIGNED NOT NULL, "
    "position BIGINT UNSIGNED NOT NULL, nonce VARBINARY(8) NOT NULL, kind VARBINARY(9) NOT NULL, "
    "begun_ms BIGINT UNSIGNED NOT NULL, connection BIGINT UNSIGNED NOT NULL, "
    "PRIMARY KEY (prefix, query, batch, copy)) ENGINE=InnoDB",
    SERVERS: f"CREATE TABLE {SERVERS} (host VARBINARY(300) NOT NULL PRIMARY KEY, id VARBINARY(32) NOT NULL) "
    "ENGINE=InnoDB",
}
"""The statements that make the sink's own tables, by name. The second one is for MariaDB alone."""

_COLUMNS = "prefix, query, batch, copy, slot, position, nonce, kind, begun_ms"
KNOWN_COLUMNS = {COMMITS: frozenset({*_COLUMNS.split(", "), "connection"}), SERVERS: frozenset({"host", "id"})}
"""The columns of each table."""
_MOVED = re.compile(r"server (?P<new>\S+) was (?P<old>\S+)")
_HOST = "CONCAT(@@hostname, ':', @@port)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Marker:
    """A transaction, as its marker has it.

    Attributes:
        name: Its name.
        kind: ``two_phase`` or ``staged``.
        server: The server's identity, see `identity`.
        begun_ms: When it was begun, milliseconds since the epoch by the server's clock.
    """

    name: TransactionName
    kind: str
    server: str
    begun_ms: int

    @classmethod
    def of(cls, fields: Mapping[str, Scalar]) -> Marker | None:
        """Returns the marker of a handle's fields, or None if they are not this sink's."""
        name = TransactionName.parse(str(fields.get("transaction", "")))
        kind, begun_ms = str(fields.get("commit")), fields.get("begun_ms")
        if name is None or kind not in KINDS or not isinstance(begun_ms, int):
            return None
        return cls(name=name, kind=kind, server=str(fields.get("server", "")), begun_ms=begun_ms)

    def fields(self) -> dict[str, Scalar]:
        """Returns the fields of its handle: `FIELDS`."""
        return {
            "transaction": str(self.name),
            "commit": self.kind,
            "server": self.server,
            "begun_ms": self.begun_ms,
        }


def insert(connection: Connection, marker: Marker) -> None:
    """Writes the marker, in the transaction that is open."""
    name = marker.name
    connection.run(
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


def committed(connection: Connection, names: Iterable[TransactionName]) -> set[TransactionName]:
    """Returns those of these that are committed. Names of batch 0 are looked for in all batches, see `Xid.named`."""
    groups: dict[tuple[str, str, int], list[TransactionName]] = {}
    for name in names:
        groups.setdefault((name.prefix, name.query, name.batch), []).append(name)
    found: set[TransactionName] = set()
    for (prefix, query, batch), wanted in groups.items():
        placeholders = ", ".join(["%s"] * len(wanted))
        of_batch = "batch = %s" if batch else "batch >= %s"
        rows = connection.rows(
            f"SELECT {_COLUMNS} FROM {COMMITS} WHERE prefix = %s AND query = %s AND {of_batch} "  # noqa: S608 - ours
            f"AND copy IN ({placeholders})",
            (prefix.encode(), query.encode(), batch, *(name.copy.encode() for name in wanted)),
        )
        there = {Xid.of(_marker(row, "").name) for row in rows}
        found |= {name for name in wanted if Xid.of(name) in there}
    return found


def of_query(connection: Connection, prefix: str, query: str, server: str) -> list[Marker]:
    """Returns all of a query's markers that the session sees."""
    rows = connection.rows(
        f"SELECT {_COLUMNS} FROM {COMMITS} WHERE prefix = %s AND query = %s",  # noqa: S608 - ours
        (prefix.encode(), query.encode()),
    )
    return [_marker(row, server) for row in rows]


def queries(connection: Connection) -> list[tuple[str, str]]:
    """Returns the prefix and query of all markers, also of transactions that are not committed."""
    connection.run("SET TRANSACTION ISOLATION LEVEL READ UNCOMMITTED")
    rows = connection.rows(f"SELECT DISTINCT prefix, query FROM {COMMITS}")  # noqa: S608 - ours
    return [(_text(prefix), _text(query)) for prefix, query in rows]


def not_committed(connection: Connection, prefix: str, query: str, server: str) -> list[Marker]:
    """Returns a query's open and prepared transactions: a dirty read, less those committed a moment later."""
    with_open = dirty(connection, prefix, query, server)
    settled = {marker.name for marker in of_query(connection, prefix, query, server)} if with_open else set()
    return [marker for marker in with_open if marker.name not in settled]


def dirty(connection: Connection, prefix: str, query: str, server: str) -> list[Marker]:
    """Returns all of a query's markers, also of transactions that are not committed."""
    connection.run("SET TRANSACTION ISOLATION LEVEL READ UNCOMMITTED")
    return of_query(connection, prefix, query, server)


def is_seen(connection: Connection, name: TransactionName) -> bool:
    """Returns True if a transaction's marker is there, committed or not: then the transaction is not gone."""
    connection.run("SET TRANSACTION ISOLATION LEVEL READ UNCOMMITTED")
    return bool(committed(connection, [name]))


def absent_verdict(connection: Connection, name: TransactionName, lost: str) -> Finished:
    """Returns the verdict when neither the transaction nor, read afterwards, its marker exists.

    Args:
        connection: A connection that is in no transaction.
        name: The transaction's name.
        lost: Why it is lost, if its marker cannot have been tidied away.
    """
    rows = connection.row(
        f"SELECT MAX(batch) FROM {COMMITS} WHERE prefix = %s AND query = %s",  # noqa: S608 - ours
        (name.prefix.encode(), name.query.encode()),
    )
    newest = rows[0] if rows else None
    if newest is not None and int(newest) >= name.batch + KEPT_BATCHES:
        return Finished(
            outcome=Outcome.UNKNOWN,
            reason=f"Batch {newest} is committed: the marker of batch {name.batch} may have been tidied away.",
        )
    return Finished(outcome=Outcome.LOST, reason=lost)


def tidy(connection: Connection, prefix: str, query: str, below: int) -> int:
    """Deletes the markers of batches below a number, and returns how many."""
    return connection.run(
        f"DELETE FROM {COMMITS} WHERE prefix = %s AND query = %s AND batch < %s",  # noqa: S608 - ours
        (prefix.encode(), query.encode(), below),
    ).rows


def identity(connection: Connection, flavour: Flavour) -> str:
    """Returns the server's identity; empty if the sink has not been started on it.

    MySQL has ``server_uuid``, and after a failover another one: so the comment on the table of markers may name the
    server of before, ``server <new> was <old>``, which is void on all others. MariaDB has no such id: the first start
    draws one, and stores it with host name and port. A replica, a restored copy and a clone have that row, too, but
    other host names or ports.
    """
    if flavour.identity is not None:
        server, comment = connection.row(flavour.identity)
        moved = _MOVED.fullmatch(str(comment or "").strip())
        return moved["old"] if moved is not None and moved["new"] == str(server) else str(server)
    found = connection.row(f"SELECT id FROM {SERVERS} WHERE host = {_HOST}")  # noqa: S608 - ours
    return found[0].decode() if found else ""


def draw_identity(connection: Connection, drawn: str) -> None:
    """Gives a MariaDB server its id, unless it has one."""
    connection.run(f"INSERT IGNORE INTO {SERVERS} (host, id) SELECT {_HOST}, %s", (drawn.encode(),))


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


FORMAT_ID = 0x53504F31
"""``SPO1``: the formatID of every xid of ours."""

PREFIX_LIMIT_BYTES = 64
"""The prefix is the xid's ``bqual``, which both servers limit to 64 bytes."""

COMMENT_LIMIT = 2048
"""The most characters of a table's comment."""

_GTRID = re.compile(
    rb"(?P<query>[0-9a-f]{12})\.(?P<position>0|[1-9][0-9]{0,18})-(?P<nonce>[0-9a-f]{8})\.(?P<copy>[0-9a-f]{12})"
)
_FOUR_BYTES = re.compile("[\U00010000-\U0010ffff]")
_STAGE = re.compile(r"sparkonce_stage_(?P<copy>[0-9a-f]{12})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Xid:
    """The id of one copy's branch of an XA transaction.

    ``gtrid`` is ``<query>.<position>-<nonce>.<copy>``, at most 54 bytes, and ``bqual`` the prefix: both servers
    allow 64 bytes for each.

    Attributes:
        prefix: See `TransactionName.prefix`.
        query: See `TransactionName.query`.
        token: See `TransactionName.token`.
        copy: See `TransactionName.copy`.
    """

    prefix: str
    query: str
    token: Token
    copy: str

    @classmethod
    def of(cls, name: TransactionName) -> Xid:
        """Returns the xid of a transaction, without batch and slot: the copy alone is unique."""
        return cls(prefix=name.prefix, query=name.query, token=name.token, copy=name.copy)

    @classmethod
    def parse(cls, format_id: int, gtrid: bytes, bqual: bytes) -> Xid | None:
        """Returns the xid as a value, or None if it is not one of sparkonce's."""
        match = _GTRID.fullmatch(gtrid)
        if format_id != FORMAT_ID or match is None or not 0 < len(bqual) <= PREFIX_LIMIT_BYTES:
            return None
        try:
            prefix = bqual.decode()
        except UnicodeDecodeError:
            return None
        token = Token(int(match["position"]), match["nonce"].decode())
        return cls(prefix=prefix, query=match["query"].decode(), token=token, copy=match["copy"].decode())

    @property
    def gtrid(self) -> bytes:
        """The global part."""
        return f"{self.query}.{self.token.position}-{self.token.nonce}.{self.copy}".encode()

    @property
    def bqual(self) -> bytes:
        """The branch qualifier."""
        return self.prefix.encode()

    def __str__(self) -> str:
        """Returns it as XA statements take it."""
        return f"X'{self.gtrid.hex()}',X'{self.bqual.hex()}',{FORMAT_ID}"

    def named(self) -> TransactionName:
        """Returns a name with this xid. Its batch and slot are unknown: 0."""
        return TransactionName(prefix=self.prefix, query=self.query, token=self.token, batch=0, slot=0, copy=self.copy)


def parse_recovered(format_id: int, gtrid_length: int, bqual_length: int, data: bytes | str) -> Xid | None:
    """Returns the xid of a row of ``XA RECOVER``, or None if it is not one of sparkonce's.

    Args:
        format_id: The xid's format ID.
        gtrid_length: In bytes.
        bqual_length: In bytes.
        data: Both parts in one: as bytes, or as ``0x`` and hexadecimal digits (``CONVERT XID``).
    """
    if isinstance(data, str):
        try:
            data = bytes.fromhex(data.removeprefix("0x"))
        except ValueError:
            return None
    if len(data) != gtrid_length + bqual_length:
        return None
    return Xid.parse(format_id, data[:gtrid_length], data[gtrid_length:])


def stage_table(copy: str) -> str:
    """Returns the name of a copy's staging table. Its comment has the transaction's name: tables' end at 64 bytes."""
    return f"sparkonce_stage_{copy}"


@dataclass(frozen=True, slots=True, kw_only=True)
class StagingTable:
    """A staging table, as its comment describes it.

    Attributes:
        name: The transaction's name.
        begun_ms: When it was begun, milliseconds since the epoch by the server's clock.
        table: The target of the rows.
        keys: The key columns of an upsert; none to append.
        rules: The conditions of an upsert.
    """

    name: TransactionName
    begun_ms: int
    table: str
    keys: tuple[str, ...]
    rules: UpsertRules = NO_RULES

    def comment(self) -> str:
        """Returns the comment that `parse` reads."""
        fields = {
            "sparkonce": str(self.name),
            "begun_ms": self.begun_ms,
            "table": self.table,
            "keys": self.keys,
            **self.rules.given(),
        }
        text = json.dumps(fields, ensure_ascii=False, separators=(",", ":"))
        # Comments hold three bytes a character, and a question mark instead of a longer one.
        return _FOUR_BYTES.sub(lambda found: json.dumps(found[0])[1:-1], text)

    @classmethod
    def parse(cls, table: str, comment: str) -> StagingTable | None:
        """Returns the staging table of this name and comment, or None if it is not one of sparkonce's."""
        match = _STAGE.fullmatch(table)
        try:
            fields = read_json(comment.encode()) if match else None
        except ValueError:
            return None
        if match is None or not isinstance(fields, dict):
            return None
        name = TransactionName.parse(str(fields.get("sparkonce", "")))
        begun, target, keys = fields.get("begun_ms"), fields.get("table"), fields.get("keys")
        if name is None or name.copy != match["copy"] or not isinstance(begun, int) or not isinstance(keys, list):
            return None
        rules = UpsertRules(**{setting: str(fields[setting]) for setting in UpsertRules.SETTINGS if setting in fields})
        return cls(name=name, begun_ms=begun, table=str(target), keys=tuple(map(str, keys)), rules=rules)


def longest_comment(prefix: str, table: str, keys: tuple[str, ...], rules: UpsertRules) -> int:
    """Returns the most characters that a staging table's comment may take."""
    far = 10**18
    name = TransactionName(
        prefix=prefix, query="0" * 12, token=Token(far, "0" * 8), batch=far, slot=10**9, copy="0" * 12
    )
    return len(StagingTable(name=name, begun_ms=far, table=table, keys=keys, rules=rules).comment())


def lock_name(copy: str) -> str:
    """Returns the name of the lock (``GET_LOCK``) that a writer's connection holds while it lives."""
    return f"sparkonce:{copy}"


def quote(identifier: str) -> str:
    """Returns an identifier for a statement."""
    return "`" + identifier.replace("`", "``") + "`"


def plain_literal(text: str) -> str:
    """Returns a string for a statement that takes no expression there; for the sink's own sql_mode."""
    return "'" + text.replace("\\", "\\\\").replace("'", "''") + "'"
