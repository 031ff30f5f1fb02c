"""The contract of a sink, and everything that your own sink imports.

The user creates a `TwoPhaseCommitSink` on the driver. The driver checks it (`columns`, `preflight`) and pickles it to
the executors, where each task attempt for a slot creates one `SinkWriter`. The driver's `SinkCommitter` finishes the
handles.

The names map to Flink's ``TwoPhaseCommitSinkFunction``: ``begin`` is beginTransaction, ``write`` is invoke, ``prepare``
is preCommit, ``commit`` is both commit and recoverAndCommit, and ``abort`` is both abort and recoverAndAbort.

The module also re-exports what these methods accept, return and raise: `Guarantee`, `Handle`, `transaction_fields`,
`Finished`, `Outcome`, `Token`, `TransactionName`, `Trace`, the errors, and the number of batches that a sink remembers.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sparkonce.arguments import member, nonempty
from sparkonce.errors import (
    ConfigurationError,
    OutageError,
    PreflightError,
    PrepareError,
    SchemaError,
    UnknownOutcomeError,
)
from sparkonce.guarantees import Guarantee
from sparkonce.needs import WorkerNeeds
from sparkonce.protocol.handles import Finished, Handle, Outcome, transaction_fields
from sparkonce.protocol.horizon import SINKS_KEEP_BATCHES
from sparkonce.protocol.ownership import Token, TransactionName
from sparkonce.protocol.traces import Trace
from sparkonce.storage.files import CheckpointFiles

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame


Facts = Mapping[str, str]
"""What the log records about a sink from run to run, for example the cluster's id and the prefix of its ids."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """The owner of transactions in a sink: a run, whose transactions carry its query and its token.

    Attributes:
        query: The short form of the query's id; see `sparkonce.protocol.ownership.short_query`.
        token: The run's token.
        facts: The facts that `TwoPhaseCommitSink.preflight` returned in that run.
        generation: Incremented whenever a request to end this run's transactions got no answer. The request may still
            arrive, so a sink that reuses the names of its transactions must then switch to new names.
    """

    query: str
    token: Token
    facts: Facts = field(default_factory=dict)
    generation: int = 0


Runs = Mapping[tuple[str, str], frozenset[Token]]
"""Maps (prefix, query) to the tokens of the runs that wrote under them."""


def claimed_by(owners: Sequence[Owner]) -> Runs:
    """Groups these runs by prefix and query.

    Runs that wrote no transactions are left out: their facts have no prefix.
    """
    found: dict[tuple[str, str], frozenset[Token]] = {}
    for owner in owners:
        if prefix := owner.facts.get("prefix"):
            whose = (prefix, owner.query)
            found[whose] = found.get(whose, frozenset()) | {owner.token}
    return found


__all__ = [
    "SINKS_KEEP_BATCHES",
    "ConfigurationError",
    "Facts",
    "Finished",
    "Guarantee",
    "Handle",
    "Monitor",
    "OutageError",
    "Outcome",
    "Owner",
    "PreflightError",
    "PrepareError",
    "Refused",
    "Runs",
    "SchemaError",
    "SinkCommitter",
    "SinkWriter",
    "Token",
    "Trace",
    "TransactionName",
    "TwoPhaseCommitSink",
    "UnknownOutcomeError",
    "WorkerNeeds",
    "WriterContext",
    "claimed_by",
    "transaction_fields",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterContext:
    """One task attempt for one slot of one batch.

    Attributes:
        owner: The run that started it.
        batch: Spark's batch id.
        slot: The task's partition.
        copy: Identifies this attempt among all attempts for the slot, for example ``3.17.1``: stage, task, attempt.
        columns: The names of the columns of the rows; None if unknown.
    """

    owner: Owner
    batch: int
    slot: int
    copy: str
    columns: Sequence[str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """The rows of a record batch that a system does not accept.

    Attributes:
        rows: Their indices in the record batch, ascending.
        reasons: A sentence for each of them.
    """

    rows: Sequence[int] = ()
    reasons: Sequence[str] = ()


class SinkWriter(abc.ABC):
    """The executor side: one task attempt's writes to one sink. Calls come from one thread, in the order given here.

    `begin` is called when the first rows arrive; a slot without rows gets neither `begin` nor `prepare`. Work that can
    start earlier, such as connecting, belongs in `TwoPhaseCommitSink.writer`.
    """

    @abc.abstractmethod
    def begin(self) -> None:
        """Opens the transaction."""

    @abc.abstractmethod
    def write(self, rows: pa.RecordBatch) -> None:
        """Writes rows with the sink's columns, in the order of `TwoPhaseCommitSink.columns`.

        Raises:
            PrepareError: If the system refuses a row. The attempt is then aborted.
        """

    def offer(self, rows: pa.RecordBatch) -> Refused:
        """Writes the rows that the system accepts, and returns the others. Called instead of `write`, for all rows.

        Optional: see `TwoPhaseCommitSink.tells_refused`. Given the same rows, it must refuse the same ones each time.

        Raises:
            PrepareError: If it is impossible to tell which rows the system refuses. The attempt is then aborted.
        """
        self.write(rows)
        return Refused()

    @abc.abstractmethod
    def prepare(self) -> Mapping[str, str | int]:
        """Flushes, stops writing, and returns the fields with which any process can finish the transaction.

        Once this returns, the system must be able to commit, and nothing more may be written to the transaction. For a
        sink that is not EXACTLY_ONCE: flush and return an empty mapping.

        Raises:
            PrepareError: If any row may not have arrived.
        """

    @abc.abstractmethod
    def abort(self) -> None:
        """Aborts the transaction and releases the writer's resources. Called after any error, even before `begin`."""

    def close(self) -> None:  # noqa: B027 - optional
        """Releases the writer's resources after `prepare`, or if the slot had no rows. Must not abort anything."""


class SinkCommitter(abc.ABC):
    """The driver side. Every call is idempotent, may come from any process at any time, and has a deadline."""

    @abc.abstractmethod
    def commit(self, handles: Sequence[Handle]) -> Sequence[Finished]:
        """Commits each handle once, in parallel, and returns the outcomes in the same order.

        Makes one attempt. Return RETRY if the server asks for a retry or is unreachable, UNKNOWN if it is impossible to
        tell whether the commit was applied, and DAMAGED for an open transaction that has lost rows: the driver records
        it as void and then calls `abort`. Never raises an error for a server's response.
        """

    @abc.abstractmethod
    def abort(self, handles: Sequence[Handle]) -> Sequence[Finished]:
        """Aborts exactly these transactions, so that their writers can no longer write to them.

        Returns ABORTED also for transactions that are already aborted or gone, or have lost rows (never DAMAGED, which
        would stop the query), and ALREADY_COMMITTED if it is too late.
        """

    @abc.abstractmethod
    def list_lingering(self, owners: Sequence[Owner]) -> Sequence[Handle]:
        """Lists open transactions of exactly these runs, as handles for `abort`. Unknown slots and row counts are 0.

        Includes aborted transactions that left something to delete.
        """

    def conclude(self, batch: int, handles: Sequence[Handle]) -> None:  # noqa: B027 - optional
        """Concludes a decided batch once its handles are all committed, before Spark considers it done.

        Optional: writes what describes a whole batch, such as a list of its files, and cleans up after older batches.
        It is called again with the same handles if a run takes over a batch that an earlier run had finished. It is not
        called for a batch without a slot of this sink (a plan without tasks), so cleaning up must not wait for a
        certain batch number.

        Args:
            batch: Spark's batch id.
            handles: All handles of this sink, including slots without rows.

        Raises:
            UnknownOutcomeError: If the system is currently unreachable. It is called again until the deadline.
        """

    def begun_ms(self, handles: Sequence[Handle]) -> Sequence[int | None]:
        """Returns when each of these prepared transactions was begun, for a batch that has taken a long time.

        Optional: by default, returns the writers' times. A server knows better, since executors' clocks differ.

        Returns:
            Milliseconds since the epoch, in the same order; None for a transaction that is not open. Use the server's
            time, or the current time minus the age that the server reports.

        Raises:
            UnknownOutcomeError: If the system is currently unreachable. The batch is then not decided.
        """
        return [handle.opened_ms for handle in handles]

    def before_decision(self, facts: Facts) -> str:  # noqa: ARG002 - for those that override it
        """Returns a reason to refuse the decision. Called once every slot of a batch is prepared.

        Optional: detects what no writer can see, such as a target that was dropped and recreated between two writes.

        Args:
            facts: The facts that `TwoPhaseCommitSink.preflight` returned in this run.

        Returns:
            The reason, in which case the batch is aborted and the run stops; or an empty string. An error counts as a
            reason.
        """
        return ""

    def check_prepared(self, handles: Sequence[Handle]) -> str:  # noqa: ARG002 - for those that override it
        """Like `before_decision`, for reasons that only the rows of all slots together reveal, such as duplicate keys.

        Optional.
        """
        return ""

    def list_traces(self, query: str, facts: Facts) -> Sequence[Trace]:  # noqa: ARG002
        """Lists the commits of a query that the system itself remembers, which reveal an outdated copy of the log.

        Optional: a system that remembers nothing, or forgets after a while, lists fewer.

        Args:
            query: The short form of the query's id.
            facts: The facts that `TwoPhaseCommitSink.preflight` returned in the current run.

        Returns:
            A trace for each transaction that the system remembers as committed, with its batch if the system knows it.
            If it does not remember which, a trace for each run that has committed something. A trace that is listed in
            error makes the next start refuse a healthy query.

        Raises:
            UnknownOutcomeError: If the system is currently unreachable. The call is retried for a minute at most; then
                the start logs a warning and continues, as it does immediately after an error that is not one of
                sparkonce's.
        """
        return ()

    def missing(self, handles: Sequence[Handle]) -> Sequence[Handle]:  # noqa: ARG002 - for those that override it
        """Lists those of these handles that the system no longer has, because it was restored to an older state.

        Optional. At a start, it gets the newest batch with rows in this sink that is known to be finished, and older
        ones if some of it is missing. Batches from before the sink's facts changed are not included.

        Args:
            handles: Handles of this sink, all with a transaction. Each was committed, and its batch was concluded.

        Returns:
            The handles that are currently not committed, but none that the system may have forgotten on its own. A
            handle that is listed in error makes the start refuse a healthy query.

        Raises:
            UnknownOutcomeError: If the system is currently unreachable.
        """
        return ()

    def close(self) -> None:  # noqa: B027 - optional
        """Releases connections."""


class Monitor(abc.ABC):
    """Checks for things that hold up the readers of a sink's rows, in a thread of its own, while the query runs."""

    @abc.abstractmethod
    def poll(self, batch_s: float) -> None:
        """Checks once, and logs what the operator has to act on.

        Must not use what batches need, such as their connections. Its errors are logged at DEBUG level and end nothing.

        Args:
            batch_s: The duration of the query's last batch, in seconds.
        """

    @abc.abstractmethod
    def close(self) -> None:
        """Frees connections."""


class TwoPhaseCommitSink(abc.ABC):
    """A system that takes part in the two-phase commit of a Spark query.

    Implement it for your own system, and test it with `sparkonce.testing.conformance`.

    Args:
        name: The sink's name, unique within the query and the same after a restart: the log finds handles by it.
        guarantee: The level at which the sink is run.
    """

    def __init__(self, name: str, guarantee: Guarantee = Guarantee.EXACTLY_ONCE) -> None:
        self.name = nonempty("name", name, example="a name, such as 'orders'")
        self.guarantee = member("guarantee", guarantee, Guarantee)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(name={self.name!r})"

    @property
    def promise(self) -> Guarantee:
        """The guarantee that readers get. Defaults to `guarantee`, at which the sink is run.

        A system that cannot distinguish a repeated commit from the first one promises less.
        """
        return self.guarantee

    @property
    def tells_refused(self) -> bool:
        """True if its writers report which rows the system refuses (`SinkWriter.offer`), so they can go elsewhere."""
        return False

    @property
    def takes_dead_letters(self) -> bool:
        """True if the sink may be used for rows that another sink refuses.

        False if its system may refuse a row after the decision, when it is too late to send that row anywhere else.
        """
        return True

    @property
    def writes_with_session(self) -> bool:
        """True if its committer writes with the driver's classic Spark session, which Spark Connect does not have."""
        return False

    @property
    def target_name(self) -> str | None:
        """The topic or table that the sink writes to, for `sparkonce.explain`; None to show the sink's name instead."""
        return None

    @property
    def kafka_settings(self) -> Mapping[str, Any] | None:
        """The settings of the sink's Kafka cluster, under librdkafka's names; None if it does not write to Kafka.

        With them, `sparkonce.explain` queries the brokers for their limits and judges Kafka's readers, a start warns if
        the query reads its own `target_name`, and `GroupOffsets` may add offsets to the sink's transactions.
        """
        return None

    def partitions(self) -> int | None:
        """Returns the number of partitions of the target, for a sink that routes rows by their column ``partition``.

        A start then refuses rows whose column comes from a source with more partitions.

        Returns:
            The number, 0 if unknown, or None if the column does not choose a partition.
        """
        return None

    def checked(self, rows: DataFrame, mark: str = "") -> DataFrame:  # noqa: ARG002 - for those that override it
        """Returns the same rows, with a computation that fails for rows that the system would refuse after deciding.

        Called on the driver for each batch. By default, nothing is checked.

        Args:
            rows: The sink's rows.
            mark: The name of a column to add if refused rows go to a sink of dead letters. It contains the reason why
                the system would refuse the row, or null. The computation then must not fail.
        """
        return rows

    def conditions(self) -> Sequence[str]:
        """Returns the conditions that the system and its readers must meet for the promise to hold, one sentence each.

        `sparkonce.explain` shows them. For example "readers use isolation.level=read_committed".
        """
        return ()

    def use_checkpoint(self, files: CheckpointFiles) -> None:  # noqa: B027 - optional
        """Receives the checkpoint's files, on the driver, at the start.

        A sink that stores rows there refuses a second query's.
        """

    def use_folders(self, open_folder: Callable[[str], CheckpointFiles]) -> None:  # noqa: B027 - optional
        """Opens folders that were passed to the sink by URL, on the driver, before `use_checkpoint`."""

    def columns(self, schema: pa.Schema) -> Sequence[str]:
        """Returns the columns that the sink writes. Defaults to all.

        Raises:
            SchemaError: If a column is missing or has a type that the sink does not accept. The message names it.
        """
        return list(schema.names)

    def preflight(self, query: str, recorded: Facts | None) -> Facts:  # noqa: ARG002 - for those that override it
        """Checks the system once at the start of each run, before anything is claimed or written.

        Args:
            query: The short form of the query's id.
            recorded: The facts that the newest run in the log returned; None at the first start.

        Returns:
            The facts that the log records, and that writers and sweeps get as ``owner.facts``.

        Raises:
            PreflightError: If a setting does not allow the guarantee. The message names it and its value.
        """
        return {}

    def transaction_timeout_s(self, facts: Facts) -> float | None:  # noqa: ARG002 - for those that override it
        """Returns how many seconds a transaction may stay open before the system aborts it; None if it never does."""
        return None

    def longest_lived(self, facts: Facts) -> Facts:
        """Returns facts with the longest timeout that the system allows, for a batch that needs it. Optional."""
        return facts

    def monitor(self, query: str, facts: Facts) -> Monitor | None:  # noqa: ARG002 - for those that override it
        """Creates the sink's monitor. Returns None if other applications cannot hold up the readers of its rows.

        Args:
            query: The short form of the query's id.
            facts: The facts that `preflight` returned in this run.
        """
        return None

    def worker_needs(self) -> WorkerNeeds:
        """Returns what the writers need on the executors' hosts, which is checked before the first batch. Optional."""
        return WorkerNeeds()

    @abc.abstractmethod
    def writer(self, context: WriterContext) -> SinkWriter:
        """Creates the executor side. Runs in a worker process."""

    @abc.abstractmethod
    def committer(self) -> SinkCommitter:
        """Creates the driver side. Called once per run."""
