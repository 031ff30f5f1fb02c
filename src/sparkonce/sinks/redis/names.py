"""The sink's own keys in Redis, all of which begin with ``sparkonce:``, and the hash slots of a cluster.

- ``sparkonce:id``: a random string that identifies this server or cluster
- ``sparkonce:{<prefix>.<query>}:ledger``: a hash with the query's transactions, and the number of its commits
- ``sparkonce:{…}:<transaction>``: a list of a transaction's staged chunks; in a cluster, those of one hash slot

The string in braces determines which of the 16384 hash slots a key belongs to
(https://redis.io/docs/latest/operate/oss_and_stack/reference/cluster-spec/#key-distribution-model). On a single server,
all staged rows are in one list next to the ledger.
"""

from __future__ import annotations

import base64
import re
import zlib
from binascii import crc_hqx
from dataclasses import dataclass
from functools import lru_cache
from itertools import product, repeat
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparkonce.protocol.handles import Handle, Scalar, transaction_fields
from sparkonce.protocol.ownership import TransactionName

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy.typing as npt


OWN = "sparkonce:"
"""The prefix of the sink's keys. No other key may begin with it."""
IDENTITY = f"{OWN}id"
TRANSACTION = "transaction"
SEEN = "seen"

OPEN, PREPARED, COMMITTING, COMMITTED, ABORTED = "O", "P", "C", "D", "A"
COMMITS_FIELD = "#commits"
FLOOR_FIELD = "#floor"

_DATABASE = re.compile(r"(/\d*)?")


def shown_url(url: str) -> str:
    """Returns the address in a URL, for messages. Omits everything that may be part of a password."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:  # The text after the first colon is part of the password, not a port.
        return "redis://…"
    address = f"{host or ''}{'' if port is None else f':{port}'}"
    # An unescaped slash in a password ends the address, so only show a path that is a database number.
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
    """Returns the key of a transaction's list on a single server, next to its ledger."""
    tag = f"{name.prefix}.{name.query}"
    return Key(f"{OWN}{{{tag}}}:{name}", hash_slot(tag.encode()))


def slot_key(name: TransactionName, hash_slot: int) -> Key:
    """Returns the key of a transaction's list for one hash slot of a cluster."""
    return Key(f"{OWN}{{{tags()[hash_slot]}}}:{name}", hash_slot)


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerEntry:
    """A transaction's entry in the ledger.

    Attributes:
        state: One of `OPEN`, `PREPARED`, `COMMITTING`, `COMMITTED` and `ABORTED`.
        begun_ms: When the transaction was started, by the server's clock, in milliseconds since the epoch.
        seen: The number of the query's commits when the transaction was started.
        prepared_ms: When the transaction was prepared; 0 if it has not been.
        slots: The hash slots with staged rows, see `pack_slots`; empty on a single server, and once the rows are gone.
    """

    state: str
    begun_ms: int
    seen: int
    prepared_ms: int
    slots: str

    @classmethod
    def parse(cls, text: str) -> LedgerEntry:
        """Parses an entry: ``<state>:<begun>:<seen>:<prepared>:<slots>``.

        The entry of a prepared transaction ends with the server's term, which only scripts read.
        """
        state, begun_ms, seen, prepared_ms, slots = text.split(":")[:5]
        return cls(state=state, begun_ms=int(begun_ms), seen=int(seen), prepared_ms=int(prepared_ms), slots=slots)


@dataclass(frozen=True, slots=True)
class StagedTransaction:
    """A transaction, as in a handle of the Redis sink. `seen` is the number of the query's commits when it began."""

    name: TransactionName
    seen: int

    @classmethod
    def of(cls, handle: Handle) -> StagedTransaction | None:
        """Returns the transaction that a handle refers to; None if the handle belongs to another sink."""
        fields = dict(handle.transaction)
        name = TransactionName.parse(str(fields.get(TRANSACTION, "")))
        return None if name is None or SEEN not in fields else cls(name, int(fields[SEEN]))


def fields_of(name: TransactionName | str, seen: int) -> tuple[tuple[str, Scalar], ...]:
    """Returns the plain fields of a transaction's handle."""
    return transaction_fields({TRANSACTION: str(name), SEEN: seen})


HASH_SLOTS = 16384
_TAG = r"(?s)^[^{]*\{(?P<tag>[^}]+)\}"
"""Matches the text between the first ``{`` and the next ``}``, unless it is empty."""
_LETTERS = b"abcdefghijklmnopqrstuvwxyz0123456789"


def hash_slots(keys: pa.Array) -> npt.NDArray[np.uint16]:
    """Returns the hash slot of each binary key: CRC16 (XMODEM) of the key or, if it has one, of its hash tag."""
    hashed = keys
    if pc.any(pc.greater_equal(pc.find_substring(keys, b"{"), 0)).as_py():
        hashed = pc.coalesce(pc.extract_regex(keys, pattern=_TAG).field("tag"), keys)
        # For a key without a hash tag, Arrow returns an empty tag. The pattern itself never matches an empty one.
        hashed = pc.if_else(pc.equal(pc.binary_length(hashed), 0), keys, hashed)
    codes = np.fromiter(map(crc_hqx, hashed.to_pylist(), repeat(0)), np.uint16, len(hashed))
    return codes & np.uint16(HASH_SLOTS - 1)


def hash_slot(key: bytes) -> int:
    """Returns the hash slot of one key."""
    return int(hash_slots(pa.array([key], pa.binary()))[0])


@lru_cache(maxsize=1)
def tags() -> tuple[str, ...]:
    """Returns, for each hash slot, a short tag that maps to it."""
    found: dict[int, str] = {}
    for length in range(1, 5):
        for letters in product(_LETTERS, repeat=length):
            text = bytes(letters)
            found.setdefault(crc_hqx(text, 0) % HASH_SLOTS, text.decode())
            if len(found) == HASH_SLOTS:
                return tuple(found[slot] for slot in range(HASH_SLOTS))
    raise RuntimeError("four letters do not reach every hash slot")


def pack_slots(slots: Iterable[int]) -> str:
    """Packs hash slots into a short string: about 20 characters for nearly all slots, 2,800 at most."""
    bits = np.zeros(HASH_SLOTS, np.uint8)
    bits[list(slots)] = 1
    return base64.b64encode(zlib.compress(np.packbits(bits).tobytes(), 9)).decode()


def unpack_slots(text: str) -> list[int]:
    """Unpacks a string from `pack_slots`. An empty string means no slots."""
    if not text:
        return []
    bits = np.unpackbits(np.frombuffer(zlib.decompress(base64.b64decode(text)), np.uint8))
    return [int(slot) for slot in np.flatnonzero(bits)]
