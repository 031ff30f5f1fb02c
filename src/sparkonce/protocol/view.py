"""The records of the decision log as values, and the view that a reader builds by applying them in order.

`sparkonce.decision_log` stores the records, in the format of `sparkonce.protocol.codec`.

A record states that a run begins, that a batch is decided, that lost handles have been replaced, or that some handles
are void. The view contains the known runs, the decided batches, and the end of the log.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeAlias

from sparkonce.protocol.handles import Handle
from sparkonce.protocol.ownership import Token

SinkFacts: TypeAlias = tuple[tuple[str, tuple[tuple[str, str], ...]], ...]
"""The facts of each sink by name: pairs, sorted by name."""
TopicIds: TypeAlias = tuple[tuple[str, str], ...]
"""Pairs of a topic's name and its id, sorted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A run begins. The claim fences every older run: none of them can append anymore.

    Attributes:
        nonce: The random part of the run's token. The token's position is this record's position.
        location: The log's folder. A different folder in a later run reveals that the checkpoint was copied or moved.
        sinks: The facts that the run's preflight found about each sink.
        sources: The ids of the Kafka topics that the query reads, if the brokers reported them.
        renews: The run's token, if the run claims again only to settle a put that got no reply; otherwise None.
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
class _OfBatch:
    """What every record about a batch contains.

    Attributes:
        token: The token of the run that decided the batch.
        offsets: The end offsets of each source, as the JSON lines of Spark's offset log.
        handles: The handles in effect, of every sink and slot, sorted.
    """

    token: Token
    query: str
    batch: int
    offsets: tuple[str, ...]
    handles: tuple[Handle, ...]


class Commit(_OfBatch):
    """Batch ``batch`` is decided: the commit point."""

    __slots__ = ()


class Amend(_OfBatch):
    """The lost handles of batch ``batch`` have been replaced."""

    __slots__ = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Void(_OfBatch):
    """Some handles of batch ``batch`` are void, because their server has deleted rows.

    From now on, these handles are never committed. They are aborted, and count as lost.

    Attributes:
        void: The (sink, slot) keys of the void handles, sorted. ``handles`` includes them.
    """

    void: tuple[tuple[str, int], ...]


Record: TypeAlias = Claim | Commit | Amend | Void
KEPT_RUNS = 100


class LogViolation(ValueError):  # noqa: N818 - the name describes it
    """The log contains a record that no correct run can have written at its position."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A run that has claimed the log, with the facts that its claim recorded; see `Claim`."""

    token: Token
    query: str
    location: str = ""
    sinks: SinkFacts = ()
    sources: TopicIds = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision(_OfBatch):
    """A decided batch, including amendments.

    Attributes:
        void: The (sink, slot) keys of the handles to abort instead of committing.
    """

    position: int
    void: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Floor:
    """The start of the valid log. Every record below ``position`` is void.

    Attributes:
        position: The first record that counts.
        runs: The runs that claimed the log below this position, newest last.
        newest: The newest decision below this position, if there was none above it; otherwise None.
    """

    position: int = 0
    runs: tuple[Run, ...] = ()
    newest: Decision | None = None


@dataclass(frozen=True, slots=True)
class LogView:
    """The log after the records read so far.

    Attributes:
        floor: The durable floor that was read before the records.
        end: The position after the last record read.
        runs: All known runs, newest last.
        decisions: The decided batches at or above the floor, and the one in the floor itself, oldest first.
        claims_in_a_row: The number of claims since the last decision. It grows while drivers keep superseding each
            other.
    """

    floor: Floor = Floor()
    end: int = 0
    runs: tuple[Run, ...] = ()
    decisions: tuple[Decision, ...] = ()
    claims_in_a_row: int = 0

    @classmethod
    def at(cls, floor: Floor) -> LogView:
        """Returns the view of a reader that starts at a floor."""
        return cls(floor=floor, end=floor.position, runs=floor.runs, decisions=(floor.newest,) if floor.newest else ())

    @property
    def newest_run(self) -> Run | None:
        """The run that owns the log, or None."""
        return self.runs[-1] if self.runs else None

    @property
    def newest_decision(self) -> Decision | None:
        """The decision of the last decided batch, or None."""
        return self.decisions[-1] if self.decisions else None

    def decision(self, batch: int) -> Decision | None:
        """Returns the decision for a batch, or None."""
        return next((known for known in reversed(self.decisions) if known.batch == batch), None)

    def apply(self, position: int, record: Record) -> LogView:
        """Returns the view after one more record.

        Raises:
            LogViolation: If no correct run can have written the record at this position.
        """
        if position != self.end:
            raise LogViolation(f"record {position} follows record {self.end - 1}")
        if isinstance(record, Claim):
            return self._claimed(position, record)
        return self._decided(position, record)

    def _claimed(self, position: int, claim: Claim) -> LogView:
        if claim.renews is None:
            run = Run(
                token=Token(position, claim.nonce),
                query=claim.query,
                location=claim.location,
                sinks=claim.sinks,
                sources=claim.sources,
            )
            runs = (*self.runs, run)[-KEPT_RUNS:]
            return replace(self, end=position + 1, runs=runs, claims_in_a_row=self.claims_in_a_row + 1)
        if self.newest_run is None or claim.renews != self.newest_run.token:
            raise LogViolation(f"record {position} renews the claim of a run that was superseded")
        return replace(self, end=position + 1)

    def _decided(self, position: int, record: Commit | Amend | Void) -> LogView:
        if self.newest_run is None or record.token != self.newest_run.token:
            raise LogViolation(f"record {position} decides batch {record.batch} for a run that was superseded")
        newest = self.newest_decision
        if isinstance(record, Amend | Void):
            opens_the_log = newest is None and position == self.floor.position
            if not opens_the_log and (newest is None or newest.batch != record.batch):
                raise LogViolation(f"record {position} amends batch {record.batch}, which is not the last decided one")
            older = self.decisions[:-1]
        else:
            if newest is not None and newest.batch >= record.batch:
                raise LogViolation(f"record {position} decides batch {record.batch} after batch {newest.batch}")
            older = self.decisions
        decision = Decision(
            position=position,
            token=record.token,
            query=record.query,
            batch=record.batch,
            offsets=record.offsets,
            handles=record.handles,
            void=record.void if isinstance(record, Void) else (),
        )
        return replace(self, end=position + 1, decisions=(*older, decision), claims_in_a_row=0)

    def raised(self, keep_batches: int) -> Floor:
        """Returns the floor that retains this many of the newest decided batches."""
        position = self.decisions[-keep_batches:][0].position
        return Floor(position=position, runs=tuple(run for run in self.runs if run.token.position < position))

    def raised_to(self, token: Token) -> Floor:
        """Returns the floor at a run's claim.

        Every record before the claim is void, except the newest decision, which the floor contains.
        """
        earlier = tuple(run for run in self.runs if run.token < token)
        return Floor(position=token.position, runs=earlier, newest=self.newest_decision)

    def above(self, floor: Floor) -> LogView:
        """Returns the view without everything below a newer floor."""
        above = tuple(decision for decision in self.decisions if decision.position >= floor.position)
        if floor.newest is not None and all(decision.batch != floor.newest.batch for decision in above):
            above = (floor.newest, *above)
        return replace(self, floor=floor, decisions=above)

    def without_handles(self) -> LogView:
        """Returns the view with the handles of only the newest decision. A run never finishes an older batch."""
        older = tuple(replace(decision, handles=()) for decision in self.decisions[:-1])
        return replace(self, decisions=(*older, *self.decisions[-1:]))
