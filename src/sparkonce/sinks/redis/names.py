"""The keys that the sink itself keeps in Redis, all of which begin with ``sparkonce:``.

| key | what it is |
| --- | --- |
| ``sparkonce:id`` | a random text that tells this server, or cluster, from others |
| ``sparkonce:{<prefix>.<query>}:ledger`` | a hash: each of the query's transactions, and how many it has committed |
| ``sparkonce:{…}:<transaction>`` | a list: one transaction's staged chunks, in a cluster those of one hash slot |

What stands in braces decides the hash slot. On a single server all staged rows are one list beside the ledger.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import urlsplit

from sparkonce.errors import PreflightError
from sparkonce.protocol.handles import Scalar, transaction_fields
from sparkonce.protocol.ownership import NAME_PREFIX_LIMIT_BYTES, TransactionName
from sparkonce.sinks.redis.hash_slots import hash_slot, tags

OWN = "sparkonce:"
"""What no key of the user's may begin with."""
IDENTITY = f"{OWN}id"
TRANSACTION = "transaction"
SEEN = "seen"

OPEN, PREPARED, COMMITTING, COMMITTED, ABORTED = "O", "P", "C", "D", "A"
COMMITS_FIELD = "#commits"
FLOOR_FIELD = "#floor"


_DATABASE = re.compile(r"(/\d*)?")


def shown_url(url: str) -> str:
    """Where a url leads to, for messages: nothing of what may be a password, however it is written."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:  # what follows the first colon is a part of the password, and no port
        return "redis://…"
    place = f"{host or ''}{'' if port is None else f':{port}'}"
    # A slash in a password ends the place: what comes after it is a path only if it is a database's number.
    return f"{parts.scheme}://{place}{parts.path}" if _DATABASE.fullmatch(parts.path) else f"{parts.scheme}://…"


def check_prefix(prefix: str) -> str:
    """The prefix, if it can be part of a key's hash tag.

    Raises:
        PreflightError: naming it, if it cannot.
    """
    size = len(prefix.encode())
    if not prefix or size > NAME_PREFIX_LIMIT_BYTES or not prefix.isprintable() or set(prefix) & set("{}"):
        raise PreflightError(
            f"prefix={prefix!r} has {size} bytes and cannot be used in the names of keys.",
            next_step=f"give 1 to {NAME_PREFIX_LIMIT_BYTES} bytes of printable characters without braces; without a "
            "prefix, the sink's name is it.",
            setting="prefix",
        )
    return prefix


@dataclass(frozen=True, slots=True)
class Key:
    """A key with its hash slot."""

    name: str
    hash_slot: int


def ledger_key(prefix: str, query: str) -> Key:
    """Where a query's transactions are written down."""
    tag = f"{prefix}.{query}"
    return Key(f"{OWN}{{{tag}}}:ledger", hash_slot(tag.encode()))


def ledger_of(name: TransactionName) -> Key:
    """The ledger of a transaction."""
    return ledger_key(name.prefix, name.query)


def single_key(name: TransactionName) -> Key:
    """The list of a transaction on a single server, beside its ledger."""
    tag = f"{name.prefix}.{name.query}"
    return Key(f"{OWN}{{{tag}}}:{name}", hash_slot(tag.encode()))


def slot_key(name: TransactionName, hash_slot: int) -> Key:
    """The list of a transaction's rows of one hash slot of a cluster."""
    return Key(f"{OWN}{{{tags()[hash_slot]}}}:{name}", hash_slot)


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """What the ledger says of a transaction.

    Attributes:
        state: `OPEN`, `PREPARED`, `COMMITTING`, `COMMITTED` or `ABORTED`.
        begun_ms: When it was begun, by the server's clock, milliseconds since the epoch.
        seen: How many transactions the query had committed when it was begun.
        prepared_ms: When it was prepared; 0 if it was not.
        slots: The hash slots that hold staged rows, see `pack_slots`. Empty on a single server, and once they are gone.
    """

    state: str
    begun_ms: int
    seen: int
    prepared_ms: int
    slots: str

    @classmethod
    def parse(cls, text: str) -> Entry:
        """The entry as it stands in the ledger: ``<state>:<begun>:<seen>:<prepared>:<slots>``.

        While it is prepared there follows in which term of which server, which only scripts read.
        """
        state, begun_ms, seen, prepared_ms, slots = text.split(":")[:5]
        return cls(state=state, begun_ms=int(begun_ms), seen=int(seen), prepared_ms=int(prepared_ms), slots=slots)


def fields_of(name: TransactionName | str, seen: int) -> tuple[tuple[str, Scalar], ...]:
    """A transaction as the plain fields of a handle."""
    return transaction_fields({TRANSACTION: str(name), SEEN: seen})
