"""The keys of the sink itself in Redis, all of which begin with ``sparkonce:``.

| key | its value |
| --- | --- |
| ``sparkonce:id`` | a random text that tells this server, or cluster, from others |
| ``sparkonce:{<prefix>.<query>}:ledger`` | a hash: each of the query's transactions, and how many it has committed |
| ``sparkonce:{…}:<transaction>`` | a list: a transaction's staged chunks; in a cluster those of one hash slot |

The text in braces decides the hash slot. On a single server all staged rows are one list beside the ledger.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import urlsplit

from sparkonce.protocol.handles import Handle, Scalar, transaction_fields
from sparkonce.protocol.ownership import TransactionName
from sparkonce.sinks.redis.hash_slots import hash_slot, tags

OWN = "sparkonce:"
"""The beginning of the sink's keys, with which no other key may begin."""
IDENTITY = f"{OWN}id"
TRANSACTION = "transaction"
SEEN = "seen"

OPEN, PREPARED, COMMITTING, COMMITTED, ABORTED = "O", "P", "C", "D", "A"
COMMITS_FIELD = "#commits"
FLOOR_FIELD = "#floor"

_DATABASE = re.compile(r"(/\d*)?")


def shown_url(url: str) -> str:
    """Returns the address in a url, for messages: nothing that may be a password, however it is written."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:  # the text after the first colon is a part of the password, and no port
        return "redis://…"
    address = f"{host or ''}{'' if port is None else f':{port}'}"
    # A slash in a password ends the address: the text after it is a path only if it is a database's number.
    return f"{parts.scheme}://{address}{parts.path}" if _DATABASE.fullmatch(parts.path) else f"{parts.scheme}://…"


@dataclass(frozen=True, slots=True)
class Key:
    """A key with its hash slot."""

    name: str
    hash_slot: int


def ledger_key(prefix: str, query: str) -> Key:
    """Returns the key of a query's ledger."""
    tag = f"{prefix}.{query}"
    return Key(f"{OWN}{{{tag}}}:ledger", hash_slot(tag.encode()))


def ledger_of(name: TransactionName) -> Key:
    """Returns the key of a transaction's ledger."""
    return ledger_key(name.prefix, name.query)


def single_key(name: TransactionName) -> Key:
    """Returns the key of a transaction's list on a single server, beside its ledger."""
    tag = f"{name.prefix}.{name.query}"
    return Key(f"{OWN}{{{tag}}}:{name}", hash_slot(tag.encode()))


def slot_key(name: TransactionName, hash_slot: int) -> Key:
    """Returns the key of a transaction's list for one hash slot of a cluster."""
    return Key(f"{OWN}{{{tags()[hash_slot]}}}:{name}", hash_slot)


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerEntry:
    """A transaction's entry in the ledger.

    Attributes:
        state: `OPEN`, `PREPARED`, `COMMITTING`, `COMMITTED` or `ABORTED`.
        begun_ms: The time of its begin, by the server's clock, milliseconds since the epoch.
        seen: The number of the query's commits at its begin.
        prepared_ms: The time at which it was prepared; 0 if it was not.
        slots: The hash slots that hold staged rows, see `pack_slots`. Empty on a single server, and once they are gone.
    """

    state: str
    begun_ms: int
    seen: int
    prepared_ms: int
    slots: str

    @classmethod
    def parse(cls, text: str) -> LedgerEntry:
        """Reads an entry: ``<state>:<begun>:<seen>:<prepared>:<slots>``.

        While it is prepared, the server's term follows, which only scripts read.
        """
        state, begun_ms, seen, prepared_ms, slots = text.split(":")[:5]
        return cls(state=state, begun_ms=int(begun_ms), seen=int(seen), prepared_ms=int(prepared_ms), slots=slots)


@dataclass(frozen=True, slots=True)
class StagedTransaction:
    """A transaction, as a handle of the Redis sink holds it.

    Attributes:
        name: Its name.
        seen: The number of the query's commits at its begin.
    """

    name: TransactionName
    seen: int

    @classmethod
    def of(cls, handle: Handle) -> StagedTransaction | None:
        """Reads the transaction that a handle names; None if it names none of this sink."""
        fields = dict(handle.transaction)
        name = TransactionName.parse(str(fields.get(TRANSACTION, "")))
        return None if name is None or SEEN not in fields else cls(name, int(fields[SEEN]))


def fields_of(name: TransactionName | str, seen: int) -> tuple[tuple[str, Scalar], ...]:
    """Returns a transaction as the plain fields of a handle."""
    return transaction_fields({TRANSACTION: str(name), SEEN: seen})
