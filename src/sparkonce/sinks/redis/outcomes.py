"""Maps Redis's errors, and the ledger's states at a commit, to an outcome and a sentence. Others are UNKNOWN.

LOST is certain because Redis logs all writes in one order. A crash (with ``appendfsync everysec``), a failover to a
replica or a restored backup loses the end of that log, never something in the middle. If a transaction on a single
server is absent from the ledger, or open in it, its rows have therefore not been applied: the server would have applied
them after it wrote the missing entry, so they would be lost, too. Two checks come first:

- The ledger itself must exist, since a server that has lost everything shows nothing.
- The ledger must count at least as many commits as the transaction saw when it began. If the ledger counts fewer,
  earlier batches are lost, too, and writing this batch again does not restore them.

In a cluster, each node may lose the end of its log independently. LOST then requires an abort in the ledger, or staged
rows that have outlived their time to live. In the case of expired rows, the server process that recorded the rows as
prepared must have been master ever since, and must have recorded nothing more about the transaction.

A missing key proves nothing, because keys expire and are deleted.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from sparkonce.protocol.handles import Finished, Outcome
from sparkonce.sinks._shared.error_table import UNLISTED, ErrorTable, Meaning


@dataclass(frozen=True, slots=True)
class Refusal:
    """An error from Redis, or from the connection to it.

    Attributes:
        code: The first word of Redis's error, such as ``WRONGTYPE``; empty if there was no response.
        text: The whole error.
    """

    code: str
    text: str

    @property
    def is_retriable(self) -> bool:
        return _meaning(self).outcome is Outcome.RETRY

    @property
    def is_outage(self) -> bool:
        """Returns True if a retry may succeed because the server is unreachable or temporarily accepts nothing."""
        # An unreadable TLS file has the same symptom, but it is not an outage.
        return _meaning(self).outage and not self.text.startswith(("FileNotFoundError", "PermissionError"))


_RESUMES = "Redis has noted what was applied before; once this is corrected, the commit continues from there."
_GRANT = "Nothing is lost: grant what docs/redis.md lists under rights."
_MOVING = "The hash slot is being moved to another node."

_ERRORS: Mapping[str, Meaning] = {
    "": Meaning(Outcome.RETRY, "No answer.", outage=True),
    "MOVED": Meaning(Outcome.RETRY, "The hash slot has moved to another node.", outage=True),
    "ASK": Meaning(Outcome.RETRY, _MOVING, outage=True),
    "TRYAGAIN": Meaning(Outcome.RETRY, _MOVING, outage=True),
    "CLUSTERDOWN": Meaning(Outcome.RETRY, "Some of the cluster's hash slots have no node.", outage=True),
    "LOADING": Meaning(Outcome.RETRY, "The server is still reading its data.", outage=True),
    "MASTERDOWN": Meaning(Outcome.RETRY, "The replica has lost its master.", outage=True),
    "READONLY": Meaning(Outcome.RETRY, "This is a replica now; the master is being looked up.", outage=True),
    "BUSY": Meaning(Outcome.RETRY, "Another client's script has been running for long.", outage=True),
    "NOSCRIPT": Meaning(Outcome.RETRY, "The server has forgotten the script; it is loaded again."),
    "NOREPLICAS": Meaning(
        Outcome.RETRY, "The server accepts no writes with so few replicas (min-replicas-to-write).", outage=True
    ),
    "MISCONF": Meaning(
        Outcome.RETRY,
        "The server accepts no writes until it can save to its disk again; its own log says why it cannot.",
        outage=True,
    ),
    "OOM": Meaning(Outcome.RETRY, "maxmemory is reached. Make room, or raise maxmemory: the commit then continues."),
    "NOAUTH": Meaning(Outcome.UNKNOWN, "The server requires a password."),
    "WRONGPASS": Meaning(Outcome.UNKNOWN, "The user or password is wrong."),
    "NOPERM": Meaning(Outcome.UNKNOWN, _GRANT),
    "WRONGTYPE": Meaning(Outcome.UNKNOWN, f"The key holds another type of value. Delete or rename it. {_RESUMES}"),
    "CROSSSLOT": Meaning(Outcome.UNKNOWN, "Keys of two hash slots in one request, which is an error in sparkonce."),
}
_PHRASES: tuple[tuple[str, Meaning], ...] = (
    # A script fails like this if its key has moved to another node together with its slot.
    ("access a non local key in a cluster node", Meaning(Outcome.RETRY, _MOVING, outage=True)),
    # If the user may not run a command or access a key in a script, Redis 7.0 sends this message without the prefix
    # NOPERM.
    ("The user executing the script can't", Meaning(Outcome.UNKNOWN, _GRANT)),
    (
        "value is not an integer or out of range",
        Meaning(Outcome.UNKNOWN, f"The key to increment does not hold an integer. Set it to one. {_RESUMES}"),
    ),
    (
        "value is not a valid float",
        Meaning(Outcome.UNKNOWN, f"The key to increment does not hold a number. Set it to one. {_RESUMES}"),
    ),
    (
        "hash value is not",
        Meaning(Outcome.UNKNOWN, f"The field to increment does not hold a number. Set it to one. {_RESUMES}"),
    ),
    (
        "would overflow",
        Meaning(Outcome.UNKNOWN, f"The sum does not fit into 64 bits. Set the key to a smaller one. {_RESUMES}"),
    ),
    (
        "would produce NaN or Infinity",
        Meaning(Outcome.UNKNOWN, f"The sum is no longer a number. Set the key to a smaller one. {_RESUMES}"),
    ),
    (
        "max number of clients reached",
        Meaning(Outcome.RETRY, "The server has as many clients as maxclients allows.", outage=True),
    ),
)

_TABLE: ErrorTable[str] = ErrorTable(_ERRORS, phrases=_PHRASES)

_APART = "Restore the server from a newer backup, or see docs/redis.md for how to continue without what it lost."
_SINGLE: Mapping[str, Meaning] = {
    "D": Meaning(Outcome.ALREADY_COMMITTED, ""),
    "A": Meaning(Outcome.LOST, "The transaction was aborted."),
    "expired": Meaning(
        Outcome.LOST, "The staged rows are older than staging_ttl_s, or were deleted, and none of them was applied."
    ),
    "absent": Meaning(
        Outcome.LOST,
        "The server has lost the transaction with the end of its log, and nothing that was committed before.",
    ),
    "O": Meaning(
        Outcome.LOST,
        "The server has lost the end of its log, which said that the transaction was prepared, and nothing older.",
    ),
    "no ledger": Meaning(
        Outcome.UNKNOWN,
        "The query's ledger is gone: the server came back without its data, was flushed, or the query was down for "
        f"longer than ledger_ttl_s. {_APART}",
    ),
    "restored": Meaning(
        Outcome.UNKNOWN,
        "The server has lost commits that it had confirmed: it crashed with appendfsync everysec or no, or a replica "
        f"that was behind took over. Writing this batch again would hide that. {_APART}",
    ),
    "forgotten": Meaning(
        Outcome.UNKNOWN,
        "The batch is so old that the ledger has been tidied, and does not tell whether it was committed.",
    ),
}
_CLUSTER: Mapping[str, Meaning] = {
    **_SINGLE,
    "not sure": Meaning(
        Outcome.UNKNOWN,
        "Staged rows have outlived staging_ttl_s, and the ledger's node was restarted, or became master, since the "
        "transaction was prepared: it may no longer know that they were applied.",
    ),
    "absent": Meaning(
        Outcome.UNKNOWN,
        "The ledger's node has lost the transaction; other nodes of the cluster may have applied their part.",
    ),
    "O": Meaning(
        Outcome.UNKNOWN,
        "The ledger's node no longer knows that it was prepared; other nodes of the cluster may have applied their "
        "part.",
    ),
}

# Redis 6 adds this prefix to the error of a command in a script. If the script does not catch the error, the prefix
# contains the location twice.
_IN_SCRIPT = r"(?:ERR )?(?:Error running script \(call to \w+\): )?(?:@user_script: ?\d+: )*-?"


def code_of(text: str) -> str:
    """Returns the first word of Redis's error if it is a code, otherwise ERR."""
    found = re.match(rf"(?:{_IN_SCRIPT})([A-Z][A-Z0-9]+)(?= |$)", text)
    return found[1] if found else "ERR"


def read_refusal(refusal: Refusal, doing: str = "") -> Finished:
    """Returns the outcome of a transaction whose request was rejected. ``doing`` describes the request."""
    shown = " ".join(filter(None, (doing, refusal.text)))
    return _TABLE.finished(refusal.code, refusal.text, shown=shown)


def read_ledger(state: str, *, cluster: bool) -> Finished:
    """Returns the outcome of a commit for which the script `DECIDE` returned this state."""
    meaning = (_CLUSTER if cluster else _SINGLE).get(state)
    if meaning is None:
        return Finished(outcome=Outcome.UNKNOWN, reason=f"The ledger says {state!r}. {UNLISTED.sentence}")
    return Finished(outcome=meaning.outcome, reason=meaning.sentence)


def _meaning(refusal: Refusal) -> Meaning:
    return _TABLE.meaning(refusal.code, refusal.text)
