r"""Ownership of transactions: tokens, transactional ids, and the lanes of a worker.

Ids are parsed to values and compared field by field, never by prefix: ``orders`` must not sweep ``orders-eu``.

A transactional id is ``<prefix>.<query>.<position>-<nonce>.<worker>-<lane>``. It belongs to one sink in one
operating-system process of one run (``worker`` is random, drawn there), so no two runs and no two copies of a slot can
ever initialise the same id; only a sweep touches it from outside. A process uses its own ids ("lanes") again
batch after batch, by the rule in `LanePool`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

_RUN = r"(?P<prefix>.+)\.(?P<query>[0-9a-f]{12})\.(?P<position>0|[1-9][0-9]{0,18})-(?P<nonce>[0-9a-f]{8})"
"""The beginning of the names of a run's transactions."""
_ID = re.compile(_RUN + r"\.(?P<worker>[0-9a-f]{12})-(?P<lane>0|[1-9][0-9]{0,8})", re.DOTALL)
PREFIX_LIMIT_BYTES = 180
"""Kafka keeps ids as strings of up to 32,767 bytes, but PostgreSQL's gid ends at 200: one limit for all."""


@dataclass(frozen=True, slots=True, order=True)
class Token:
    """A run's claim: its position in the log orders runs, its nonce tells runs of copied checkpoints apart.

    Attributes:
        position: Where in the log the claim stands.
        nonce: 8 hexadecimal digits, random.
    """

    position: int
    nonce: str


def short_query(query_id: str) -> str:
    """Returns the first 12 hexadecimal digits of a query's UUID: 48 bits, enough to keep a re-made checkpoint apart."""
    return query_id.replace("-", "").lower()[:12]


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionalId:
    """A transactional id as a value.

    Attributes:
        prefix: The user's own prefix, the unit of Kafka's prefixed ACLs.
        query: `short_query` of the query's id.
        token: The run's token.
        worker: 12 hexadecimal digits, drawn by the process that owns the id, for one sink and one run.
        lane: The process's own count of its ids, from 0.
    """

    prefix: str
    query: str
    token: Token
    worker: str
    lane: int

    def __str__(self) -> str:
        return f"{self.prefix}.{self.query}.{self.token.position}-{self.token.nonce}.{self.worker}-{self.lane}"

    @classmethod
    def parse(cls, text: str) -> TransactionalId | None:
        """Returns the id as a value, or None if it is not one of sparkonce's."""
        match = _ID.fullmatch(text)
        if match is None:
            return None
        return cls(
            prefix=match["prefix"],
            query=match["query"],
            token=Token(int(match["position"]), match["nonce"]),
            worker=match["worker"],
            lane=int(match["lane"]),
        )

    def belongs_to(self, prefix: str, query: str, tokens: frozenset[Token]) -> bool:
        """Returns True if one of these runs of this query, under exactly this prefix, made the id."""
        return self.prefix == prefix and self.query == query and self.token in tokens


_NAME = re.compile(
    _RUN + r"\.(?P<batch>0|[1-9][0-9]{0,18})\.(?P<slot>0|[1-9][0-9]{0,8})\.(?P<copy>[0-9a-f]{12})", re.DOTALL
)

NAME_PREFIX_LIMIT_BYTES = 100
"""PostgreSQL's gid ends at 200 bytes, of which all else in a `TransactionName` may take 85."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionName:
    """The name of a copy's transaction where each has one of its own: a gid, a staged file, a staging table.

    ``<prefix>.<query>.<position>-<nonce>.<batch>.<slot>.<copy>``, at most 200 bytes.

    Attributes:
        prefix: The user's prefix, or the sink's name, which distinguishes sinks that share a target.
        query: `short_query` of the query's id.
        token: The run's token.
        batch: Spark's batch id.
        slot: The task's partition.
        copy: 12 hexadecimal digits, drawn by the copy itself: no two copies ever have the same name.
    """

    prefix: str
    query: str
    token: Token
    batch: int
    slot: int
    copy: str

    def __str__(self) -> str:
        token = f"{self.token.position}-{self.token.nonce}"
        return f"{self.prefix}.{self.query}.{token}.{self.batch}.{self.slot}.{self.copy}"

    @classmethod
    def parse(cls, text: str) -> TransactionName | None:
        """Returns the name as a value, or None if it is not one of sparkonce's."""
        match = _NAME.fullmatch(text)
        if match is None:
            return None
        return cls(
            prefix=match["prefix"],
            query=match["query"],
            token=Token(int(match["position"]), match["nonce"]),
            batch=int(match["batch"]),
            slot=int(match["slot"]),
            copy=match["copy"],
        )

    def belongs_to(self, prefix: str, query: str, tokens: frozenset[Token]) -> bool:
        """Returns True if one of these runs of this query, under exactly this prefix, made the name."""
        return self.prefix == prefix and self.query == query and self.token in tokens


HELD = -1
"""A lane that is being initialised, is kept ready, or carries the running task's transaction."""


@dataclass(frozen=True, slots=True)
class LanePool:
    """The lanes of a worker process: says which of its own ids it may initialise next, by number.

    A lane that carried a transaction of batch N may be initialised again from batch N + 2 on. By then batch N + 1 is
    decided, so a late driver that still holds the handle of batch N, and is told "fenced", sees in the log that N
    was left behind, and does not take the fence for a loss.

    A lane that carried the process's newest transaction is kept as it is, however many batches without rows follow:
    what a server shows of it tells an old copy of the log from the newest.

    A lane whose initialisation was not answered is never given back. That very request may still arrive, even after
    the lane's next transaction has been committed, and the fence would then read as a loss. For the same reason a
    worker begins with a new pool after an abort of the driver's was not answered (`sparkonce.sink.Owner`).

    Attributes:
        lanes: For each lane the last batch that used it, or `HELD`.
    """

    lanes: tuple[int, ...] = ()

    def lend(self, batch: int) -> tuple[LanePool, int]:
        """Holds a lane that may be initialised while the process runs a task of this batch."""
        for lane, last_batch in enumerate(self.lanes):
            if last_batch != HELD and last_batch <= batch - 2 and last_batch < max(self.lanes):
                return self._with(lane, HELD), lane
        return replace(self, lanes=(*self.lanes, HELD)), len(self.lanes)

    def give_back(self, lane: int, batch: int) -> LanePool:
        """Notes that the lane carried a transaction of this batch, or may have."""
        return self._with(lane, batch)

    def _with(self, lane: int, value: int) -> LanePool:
        return replace(self, lanes=(*self.lanes[:lane], value, *self.lanes[lane + 1 :]))
