"""Records of the log: a run begins, a batch is decided, some of its handles are void, lost ones have been replaced."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from sparkonce.protocol.handles import Handle
from sparkonce.protocol.ownership import Token

SinkFacts: TypeAlias = tuple[tuple[str, tuple[tuple[str, str], ...]], ...]
"""The facts of each sink by name: pairs, sorted by name."""

TopicIds: TypeAlias = tuple[tuple[str, str], ...]
"""Pairs of a topic's name and its id, sorted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A run begins. It fences every older run: none of them can append any more.

    Attributes:
        nonce: The random part of the run's token; its position is where this record stands.
        run: Spark's run id.
        query: Spark's query id.
        host: Where the driver runs.
        process: The driver's process id.
        library: The library's version.
        location: Where the log is: a copy of a checkpoint is elsewhere, and would write its batches a second time.
        sinks: What the run's preflight found out about each sink.
        sources: Of Kafka's topics that the query reads their ids, as far as they could be asked.
        renews: Set when a run claims again to settle a put of its own whose reply was lost; the run keeps this token.
    """

    nonce: str
    run: str
    query: str
    host: str = ""
    process: int = 0
    library: str = ""
    location: str = ""
    sinks: SinkFacts = ()
    sources: TopicIds = ()
    renews: Token | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """Batch ``batch`` is decided: the commit point.

    Attributes:
        token: The run that decided it.
        query: Spark's query id.
        batch: Spark's batch id.
        offsets: The end offsets of each source, as the JSON lines of Spark's offset log.
        handles: Every sink's and slot's handle, sorted.
    """

    token: Token
    query: str
    batch: int
    offsets: tuple[str, ...]
    handles: tuple[Handle, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Amend:
    """Batch ``batch``'s lost handles have been replaced; ``handles`` is again the whole effective set."""

    token: Token
    query: str
    batch: int
    offsets: tuple[str, ...]
    handles: tuple[Handle, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Void:
    """Void handles of batch ``batch``: rows of them are gone from their server.

    From here on nobody commits them. They are aborted, and count as lost.

    Attributes:
        handles: The whole effective set, these included.
        void: The (sink, slot) keys of these, sorted.
    """

    token: Token
    query: str
    batch: int
    offsets: tuple[str, ...]
    handles: tuple[Handle, ...]
    void: tuple[tuple[str, int], ...]


Record: TypeAlias = Claim | Commit | Amend | Void
