"""The abstract two-phase-commit sink.

The names map to Flink's ``TwoPhaseCommitSinkFunction``: ``begin`` is beginTransaction, ``write`` invoke, ``prepare``
preCommit, ``commit`` both commit and recoverAndCommit, ``abort`` both abort and recoverAndAbort.

A sink object is made on the driver by the user, checked there (`columns`, `preflight`), and pickled to the
executors, where `writer` is called once for each execution of a slot. On the driver `committer` gives the half that
finishes handles.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sparkonce.arguments import member, nonempty
from sparkonce.errors import SchemaError
from sparkonce.guarantees import Guarantee

if TYPE_CHECKING:
    import pyarrow as pa

    from sparkonce.protocol.handles import Handle
    from sparkonce.protocol.outcomes import Finished
    from sparkonce.protocol.ownership import Token
    from sparkonce.protocol.traces import Trace

Facts = Mapping[str, str]
"""What the log remembers of a sink from run to run, for example the cluster's id and the prefix of its ids."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """A run, as a sink sees it: whose transactions are whose.

    Attributes:
        query: The short form of the query's id, see `sparkonce.protocol.ownership.short_query`.
        token: The run's token.
        facts: What `TwoPhaseCommitSink.preflight` returned in that run.
        generation: One more each time that a request to end transactions of this run was not answered. Such a request
            may still arrive. A sink whose transactions take their names again begins with other names then.
    """

    query: str
    token: Token
    facts: Facts = field(default_factory=dict)
    generation: int = 0


Runs = Mapping[tuple[str, str], frozenset["Token"]]
"""By what stands in the names of their transactions: the tokens of each prefix and query."""


def claimed_by(owners: Sequence[Owner]) -> Runs:
    """These runs, but for those that wrote no transactions: they have no prefix among their facts."""
    found: dict[tuple[str, str], frozenset[Token]] = {}
    for owner in owners:
        if prefix := owner.facts.get("prefix"):
            whose = (prefix, owner.query)
            found[whose] = found.get(whose, frozenset()) | {owner.token}
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterContext:
    """One execution ("copy") of one slot of one batch.

    Attributes:
        owner: The run that asks for it.
        batch: Spark's batch id.
        slot: The task's partition.
        copy: Names this copy among all copies of the slot, for example ``3.17.1``: stage, task, attempt.
    """

    owner: Owner
    batch: int
    slot: int
    copy: str


class SinkWriter(abc.ABC):
    """The executor half: one copy's writes to one sink. Calls come from one thread, in the order given here.

    `begin` is called when the first rows are there; a slot without rows sees neither `begin` nor `prepare`. Work that
    can start before the first rows arrive, such as connecting, belongs into `TwoPhaseCommitSink.writer`.
    """

    @abc.abstractmethod
    def begin(self) -> None:
        """Opens the transaction."""

    @abc.abstractmethod
    def write(self, rows: pa.RecordBatch) -> None:
        """Writes rows, which hold the sink's columns in the order of `TwoPhaseCommitSink.columns`.

        Raises:
            PrepareError: if the system refuses a row. The copy is then aborted.
        """

    @abc.abstractmethod
    def prepare(self) -> Mapping[str, str | int]:
        """Flushes, stops writing, and returns the fields that finish the transaction from anywhere.

        After this returns the system must be able to commit, and nothing may be written to the transaction any more.
        For a sink that is not EXACTLY_ONCE: flush and return an empty mapping.

        Raises:
            PrepareError: if any row may not have arrived.
        """

    @abc.abstractmethod
    def abort(self) -> None:
        """Gives up the transaction and frees what the writer holds. Called after any error, also before `begin`."""

    def close(self) -> None:  # noqa: B027 - optional
        """Frees what the writer holds after `prepare`, or where the slot had no rows. Must not abort anything."""


class SinkCommitter(abc.ABC):
    """The driver half. Every call is idempotent, may come from any process at any time, and has a deadline."""

    @abc.abstractmethod
    def commit(self, handles: Sequence[Handle]) -> Sequence[Finished]:
        """Commits each handle once, in parallel, and answers in the same order.

        One attempt: what the server asks to repeat is RETRY, and so is a server that cannot be reached.
        What is not known to be applied or not applied is UNKNOWN. DAMAGED is what is open and has lost rows: the driver
        writes down that it is void, and then calls `abort`. Never raises for an answer of the server.
        """

    @abc.abstractmethod
    def abort(self, handles: Sequence[Handle]) -> Sequence[Finished]:
        """Aborts exactly these transactions, in such a way that their writers cannot write on.

        ABORTED also for those that are aborted or gone already; ALREADY_COMMITTED if it came too late.
        """

    @abc.abstractmethod
    def list_lingering(self, owners: Sequence[Owner]) -> Sequence[Handle]:
        """Open transactions of exactly these runs, as handles that `abort` takes (slot, rows unknown: 0).

        Also aborted ones of which something is left to delete.
        """

    def conclude(self, batch: int, handles: Sequence[Handle]) -> None:  # noqa: B027 - optional
        """Told once every handle of a decided batch is committed, before Spark is told that the batch is done.

        Optional: for what is said of a whole batch, such as a list of its files, and for tidying up behind older ones.
        Called again, with the same handles, when a run takes up a batch that an earlier run had finished. Not called
        for a batch in which this sink has no slot, because the plan had no task: nothing can be said of it. So what is
        done now and then must not wait for a batch of a certain number.

        Args:
            batch: Spark's batch id.
            handles: All handles of this sink, also those of slots without rows.

        Raises:
            UnknownOutcomeError: if the system cannot be reached now. Called again until the deadline.
        """

    def begun_ms(self, handles: Sequence[Handle]) -> Sequence[int | None]:
        """Says when each of these prepared transactions was begun, for a batch that has taken long.

        Optional: by default it is what their writers said. A server knows better: executors' clocks differ.

        Returns:
            Milliseconds since the epoch by the server's clock, or counted back from now by what it says, in the same
            order; None for one that is not open.

        Raises:
            UnknownOutcomeError: if the system cannot be asked now: the batch is then not decided.
        """
        return [handle.opened_ms for handle in handles]

    def before_decision(self, facts: Facts) -> str:  # noqa: ARG002 - for those that override it
        """Told once every slot of a batch is prepared, before it is decided.

        Optional: for what no writer can see, such as a place that was deleted and made again under it.

        Args:
            facts: What `TwoPhaseCommitSink.preflight` returned in this run.

        Returns:
            Why the batch must not be decided: it is then aborted, and the run stops. Empty if nothing is known. An
            error counts as a reason.
        """
        return ""

    def list_traces(self, query: str, facts: Facts) -> Sequence[Trace]:  # noqa: ARG002
        """What the system itself remembers of a query's runs, for a log that may be older than what was written.

        Optional: a system that remembers nothing, or forgets it after a while, gives less.

        Args:
            query: The short form of its id.
            facts: What `TwoPhaseCommitSink.preflight` returned in the run that asks.

        Returns:
            One for each transaction that the system remembers as committed, and where it does not remember which, one
            for each run that has committed something. One too many stops a healthy query.

        Raises:
            UnknownOutcomeError: if the system cannot be asked now.
        """
        return ()

    def other_queries(self, query: str, facts: Facts) -> Sequence[str]:  # noqa: ARG002
        """Which other queries have committed rows to the same place under the same prefix, for a query that is new.

        Optional: a system that does not know gives none. It may well be what the user wants, and is only told.

        Args:
            query: The short form of the new query's id.
            facts: What `TwoPhaseCommitSink.preflight` returned.

        Returns:
            The short forms of their ids.

        Raises:
            UnknownOutcomeError: if the system cannot be asked now.
        """
        return ()

    def missing(self, handles: Sequence[Handle]) -> Sequence[Handle]:  # noqa: ARG002 - for those that override it
        """Which of these the system has not committed: it went back to a state from before.

        Optional. Asked at the start of a run of the newest batch with rows in this sink that is surely finished, and of
        older ones if something of it is missing. Not asked of batches from before the sink's facts changed.

        Args:
            handles: Of this sink, all with a transaction. Each was committed once, and its batch was concluded.

        Returns:
            Those that are not committed now, but none that the system may have forgotten by itself. One too many stops
            a healthy query.

        Raises:
            UnknownOutcomeError: if the system cannot be asked now.
        """
        return ()

    def close(self) -> None:  # noqa: B027 - optional
        """Frees connections."""


class Lookout(abc.ABC):
    """Looks at what others do to the readers of a sink's rows, from a thread of its own, while the query runs."""

    @abc.abstractmethod
    def look(self, batch_s: float) -> None:
        """Looks once, and says in the log what somebody has to do something about.

        Must not cost what batches need, such as their connections. Errors are told at DEBUG: nothing depends on it.

        Args:
            batch_s: How long the query's last batch took, in seconds.
        """

    @abc.abstractmethod
    def close(self) -> None:
        """Frees connections."""


class TwoPhaseCommitSink(abc.ABC):
    """A system that takes part in the two-phase commit of a Spark query.

    Implement it for a system of your own and run `sparkonce.testing.conformance` over it.

    Args:
        name: Unique within the query, and the same after a restart: handles in the log are found by it.
        guarantee: The level this sink is run at.
    """

    def __init__(self, name: str, guarantee: Guarantee = Guarantee.EXACTLY_ONCE) -> None:
        self.name = nonempty("name", name, example="a name, such as 'orders'")
        self.guarantee = member("guarantee", guarantee, Guarantee)

    @property
    def promise(self) -> Guarantee:
        """What readers are promised. By default `guarantee`, by which the sink is run.

        A system that cannot tell a repeated commit from the first one promises less than the way its sink is run.
        """
        return self.guarantee

    def conditions(self) -> Sequence[str]:
        """What must be true of the system and its readers for the promise to hold, a sentence each.

        `sparkonce.explain` shows them. For example "readers use isolation.level=read_committed".
        """
        return ()

    def use_checkpoint(self, folder: str) -> None:  # noqa: B027 - optional
        """Tells where the query's checkpoint is, once, on the driver, before anything else is asked.

        For sinks that keep rows there until the decision, see `sparkonce.sinks.write_ahead`. Such an object is one
        query's: it refuses a second folder, and takes the same one again.
        """

    def columns(self, schema: pa.Schema) -> Sequence[str]:
        """Which columns the sink writes; by default all. They are what the fingerprint covers, so no column is a map.

        Raises:
            SchemaError: naming the column that is missing or has a type which the sink does not take.
        """
        for column in schema:
            if str(column.type).startswith("map<"):
                raise SchemaError(
                    f"column {column.name!r} is a {column.type}, and Spark has no fingerprint for maps",
                    next_step="turn it into an array of entries (map_entries) or a string (to_json), or drop it.",
                )
        return list(schema.names)

    def preflight(self, query: str, recorded: Facts | None) -> Facts:  # noqa: ARG002 - for those that override it
        """Checks the system once at the start of each run, before anything is claimed or written.

        Args:
            query: The short form of the query's id.
            recorded: What this returned in the newest run that the log knows; None at the first start.

        Returns:
            What the log is to remember, and what writers and sweeps are given as ``owner.facts``.

        Raises:
            PreflightError: naming the setting and its value.
        """
        return {}

    def transaction_timeout_s(self, facts: Facts) -> float | None:  # noqa: ARG002 - for those that override it
        """How long a transaction may stay open before the system aborts it; None if it never does."""
        return None

    def longest_lived(self, facts: Facts) -> Facts:
        """Returns facts by which transactions may stay open as long as the system allows, for a batch that needs it.

        Optional: by default they are as they were.
        """
        return facts

    def lookout(self, query: str, facts: Facts) -> Lookout | None:  # noqa: ARG002 - for those that override it
        """Makes what looks, now and then, at what others do to the readers of this sink's rows. None: nothing to see.

        Args:
            query: The short form of the query's id.
            facts: What `preflight` returned in the run that looks.
        """
        return None

    @abc.abstractmethod
    def writer(self, context: WriterContext) -> SinkWriter:
        """Makes the executor half. Runs in a worker process."""

    @abc.abstractmethod
    def committer(self) -> SinkCommitter:
        """Makes the driver half. Called once a run."""
