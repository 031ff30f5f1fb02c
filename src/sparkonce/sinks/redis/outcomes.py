"""What Redis' answers mean: one table for errors, one for what the ledger says at a commit. The rest is UNKNOWN.

When LOST is sure. Redis keeps a log of what it has done in one order, and a crash (``appendfsync everysec``), a
fail-over to a
replica or a restored backup takes away its end, never something from the middle. So on a single server a
transaction that the ledger does not know, or knows as open, has been applied nowhere: whatever had been applied would
have come after what is missing, and is gone too. Two things must be seen first. The ledger itself must be there:
a server that has lost everything shows nothing. And it must have counted as many commits as this transaction saw when
it
was begun: fewer, and earlier batches are gone with it, which no replay of this batch brings back. In a cluster each
node goes back by itself, so there only an abort that is written down is sure; or staged rows that are older than their
time to live, if the very process that wrote down that they were prepared was master ever since, and says that it has
written nothing more.

A key's mere absence proves nothing else: keys expire, and are deleted.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from sparkonce.protocol.outcomes import Finished, Outcome


@dataclass(frozen=True, slots=True)
class Refusal:
    """An error that Redis, or the way to it, gave instead of an answer.

    Attributes:
        code: The first word of Redis' error, such as ``WRONGTYPE``; empty if no answer came.
        text: The whole error.
    """

    code: str
    text: str

    @property
    def is_patience(self) -> bool:
        """Whether asking again may help."""
        return _meaning(self).outcome is Outcome.RETRY

    @property
    def is_outage(self) -> bool:
        """Whether the server could not be reached, or takes nothing for now: a copy may be written later.

        A file of the TLS settings that cannot be read is none, although there is no answer either.
        """
        return _meaning(self).outage and not self.text.startswith(("FileNotFoundError", "PermissionError"))


@dataclass(frozen=True, slots=True)
class _Meaning:
    outcome: Outcome
    sentence: str
    outage: bool = False


_RESUMES = "What was applied before it is written down; once it is corrected the commit goes on behind that."
_GRANT = "Nothing is lost: grant what docs/redis.md lists under rights."
_MOVING = "The hash slot is being moved to another node."

_ERRORS: Mapping[str, _Meaning] = {
    "": _Meaning(Outcome.RETRY, "No answer.", outage=True),
    "MOVED": _Meaning(Outcome.RETRY, "The hash slot has moved to another node.", outage=True),
    "ASK": _Meaning(Outcome.RETRY, _MOVING, outage=True),
    "TRYAGAIN": _Meaning(Outcome.RETRY, _MOVING, outage=True),
    "CLUSTERDOWN": _Meaning(Outcome.RETRY, "Some of the cluster's hash slots have no node.", outage=True),
    "LOADING": _Meaning(Outcome.RETRY, "The server is still reading its data.", outage=True),
    "MASTERDOWN": _Meaning(Outcome.RETRY, "The replica has lost its master.", outage=True),
    "READONLY": _Meaning(Outcome.RETRY, "This is a replica now; the master is being looked for.", outage=True),
    "BUSY": _Meaning(Outcome.RETRY, "A script of somebody's has been running for long.", outage=True),
    "NOSCRIPT": _Meaning(Outcome.RETRY, "The server has forgotten the script; it is loaded again."),
    "NOREPLICAS": _Meaning(
        Outcome.RETRY, "The server takes no writes with so few replicas (min-replicas-to-write).", outage=True
    ),
    "MISCONF": _Meaning(
        Outcome.RETRY,
        "The server takes no writes until it can save to its disk again; its own log says why it cannot.",
        outage=True,
    ),
    "OOM": _Meaning(Outcome.RETRY, "maxmemory is reached. Make room, or raise maxmemory: it goes on where it was."),
    "NOAUTH": _Meaning(Outcome.UNKNOWN, "The server wants a password."),
    "WRONGPASS": _Meaning(Outcome.UNKNOWN, "User and password do not fit."),
    "NOPERM": _Meaning(Outcome.UNKNOWN, _GRANT),
    "WRONGTYPE": _Meaning(Outcome.UNKNOWN, f"The key holds another type of value. Delete or rename it. {_RESUMES}"),
    "CROSSSLOT": _Meaning(Outcome.UNKNOWN, "Keys of two hash slots in one request: a mistake of sparkonce's."),
}
_PHRASES: tuple[tuple[str, _Meaning], ...] = (
    # Inside a script, a key that has left for the slot's next node.
    ("access a non local key in a cluster node", _Meaning(Outcome.RETRY, _MOVING, outage=True)),
    # Redis 7.0 says this of commands and keys inside a script, without NOPERM before it.
    ("The user executing the script can't", _Meaning(Outcome.UNKNOWN, _GRANT)),
    (
        "value is not an integer or out of range",
        _Meaning(Outcome.UNKNOWN, f"The key to be increased holds no integer. Set it to one. {_RESUMES}"),
    ),
    (
        "value is not a valid float",
        _Meaning(Outcome.UNKNOWN, f"The key to be increased holds no number. Set it to one. {_RESUMES}"),
    ),
    (
        "hash value is not",
        _Meaning(Outcome.UNKNOWN, f"The field to be increased holds no number. Set it to one. {_RESUMES}"),
    ),
    (
        "would overflow",
        _Meaning(Outcome.UNKNOWN, f"The sum does not fit into 64 bits. Set the key to a smaller one. {_RESUMES}"),
    ),
    (
        "would produce NaN or Infinity",
        _Meaning(Outcome.UNKNOWN, f"The sum is not a number any more. Set the key to a smaller one. {_RESUMES}"),
    ),
    (
        "max number of clients reached",
        _Meaning(Outcome.RETRY, "The server has as many clients as maxclients allows.", outage=True),
    ),
)

_APART = "Restore the server from a newer backup, or see docs/redis.md for going on without what it lost."
_LEDGER: Mapping[str, _Meaning] = {
    "D": _Meaning(Outcome.ALREADY_COMMITTED, ""),
    "A": _Meaning(Outcome.LOST, "The transaction was aborted."),
    "expired": _Meaning(
        Outcome.LOST, "The staged rows are older than staging_ttl_s, or were deleted, and none of them was applied."
    ),
    "absent": _Meaning(
        Outcome.LOST,
        "The server has lost the transaction with the end of its log, and nothing that was committed before.",
    ),
    "O": _Meaning(
        Outcome.LOST,
        "The server has lost that the transaction was prepared, with the end of its log, and nothing older.",
    ),
    "no ledger": _Meaning(
        Outcome.UNKNOWN,
        "The query's ledger is gone: the server came back without its data, was flushed, or the query was away for "
        f"longer than ledger_ttl_s. {_APART}",
    ),
    "went back": _Meaning(
        Outcome.UNKNOWN,
        "The server has lost commits that it had confirmed: it crashed with appendfsync everysec or no, or a replica "
        "took "
        f"over that was behind. Writing this batch again would hide that. {_APART}",
    ),
    "forgotten": _Meaning(
        Outcome.UNKNOWN, "The batch is so old that the ledger has been tidied, and cannot say whether it was committed."
    ),
}
_IN_CLUSTER: Mapping[str, _Meaning] = {
    "not sure": _Meaning(
        Outcome.UNKNOWN,
        "Staged rows have outlived staging_ttl_s, and the ledger's node was restarted, or became master, since the "
        "transaction was prepared: it may have lost that they were applied.",
    ),
    "absent": _Meaning(
        Outcome.UNKNOWN,
        "The ledger's node has lost the transaction; other nodes of the cluster may have applied their part.",
    ),
    "O": _Meaning(
        Outcome.UNKNOWN,
        "The ledger's node has lost that it was prepared; other nodes of the cluster may have applied their part.",
    ),
}


def code_of(text: str) -> str:
    """The first word of an error as Redis sends it, if it is a code; ERR otherwise."""
    found = re.match(r"[A-Z][A-Z0-9]+(?= |$)", text)
    return found[0] if found else "ERR"


def read_refusal(refusal: Refusal, doing: str = "") -> Finished:
    """What an error says of the transaction that it met.

    Args:
        refusal: The error.
        doing: What it was an answer to, for the operator.
    """
    meaning = _meaning(refusal)
    return Finished(outcome=meaning.outcome, reason=" ".join(filter(None, (doing, refusal.text, meaning.sentence))))


def read_ledger(state: str, *, cluster: bool) -> Finished:
    """What a state, as the script `DECIDE` gives it, says of a commit that cannot go on."""
    meaning = (_IN_CLUSTER.get(state) if cluster else None) or _LEDGER.get(state)
    if meaning is None:
        return Finished(outcome=Outcome.UNKNOWN, reason=f"The ledger says {state!r}, which it is not known to say.")
    return Finished(outcome=meaning.outcome, reason=meaning.sentence)


def _meaning(refusal: Refusal) -> _Meaning:
    for phrase, meaning in _PHRASES:
        if phrase in refusal.text:
            return meaning
    return _ERRORS.get(refusal.code) or _Meaning(Outcome.UNKNOWN, "An answer that this request is not known to get.")
