"""The contract of a sink, and all that a sink of your own imports.

The user makes a `TwoPhaseCommitSink` on the driver. The driver checks it (`columns`, `preflight`) and pickles it to the
executors, where each execution of a slot makes one `SinkWriter`. The driver's `SinkCommitter` finishes the handles.

The names map to Flink's ``TwoPhaseCommitSinkFunction``: ``begin`` is beginTransaction, ``write`` invoke, ``prepare``
preCommit, ``commit`` both commit and recoverAndCommit, ``abort`` both abort and recoverAndAbort.

The module also re-exports what these methods take, return and raise: `Guarantee`, `Handle`, `transaction_fields`,
`Finished`, `Outcome`, `Token`, `TransactionName`, `Trace`, the errors, and for how many batches a sink remembers.
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
"""What the log records of a sink from run to run, for example the cluster's id and the prefix of its ids."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """The owner of transactions in a sink: a run, whose transactions carry its query and its token.

    Attributes:
        query: The short form of the query's id, see `sparkonce.protocol.ownership.short_query`.
        token: The run's token.
        facts: The facts that `TwoPhaseCommitSink.preflight` returned in that run.
        generation: Incremented whenever a request to end this run's transactions went unanswered. Such a request may
            still arrive, so a sink that uses the names of its transactions again begins with new names then.
    """

    query: str
    token: Token
    facts: Facts = field(default_factory=dict)
    generation: int = 0


Runs = Mapping[tuple[str, str], frozenset[Token]]
"""Maps (prefix, query) to the tokens of the runs that wrote under them."""


def claimed_by(owners: Sequence[Owner]) -> Runs:
    """Returns these runs by prefix and query, without those that wrote no transactions: their facts have no prefix."""
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
    "Lookout",
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
    """One execution ("copy") of one slot of one batch.

    Attributes:
        owner: The run that started it.
        batch: Spark's batch id.
        slot: The task's partition.
        copy: Names this copy among all copies of the slot, for example ``3.17.1``: stage, task, attempt.
        columns: The names of the columns of the rows; None if they are not known.
    """

    owner: Owner
    batch: int
    slot: int
    copy: str
    columns: Sequence[str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """The rows of a record batch that a system does not take.

    Attributes:
        rows: Their numbers in the record batch, ascending.
        reasons: A sentence for each of them.
    """

    rows: Sequence[int] = ()
    reasons: Sequence[str] = ()


class SinkWriter(abc.ABC):
    """The executor half: one copy's writes to one sink. Calls come from one thread, in the order given here.

    `begin` is called when the first rows arrive; a slot without rows gets neither `begin` nor `prepare`. Work that can
    start earlier, such as connecting, belongs into `TwoPhaseCommitSink.writer`.
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

    def offer(self, rows: pa.RecordBatch) -> Refused:
        """Writes the rows that the system takes, and returns the others. Called instead of `write`, for all rows.

        Optional: see `TwoPhaseCommitSink.tells_refused`. Of the same rows it must refuse the same ones each time.

        Raises:
            PrepareError: if nobody can say which rows the system refuses. The copy is then aborted.
        """
        self.write(rows)
        return Refused()

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
        """Aborts the transaction and frees what the writer holds. Called after any error, also before `begin`."""

    def close(self) -> None:  # noqa: B027 - optional
        """Frees what the writer holds after `prepare`, or if the slot had no rows. Must not abort anything."""


class SinkCommitter(abc.ABC):
    """The driver half. Every call is idempotent, may come from any process at any time, and has a deadline."""

    @abc.abstractmethod
    def commit(self, handles: Sequence[Handle]) -> Sequence[Finished]:
        """Commits each handle once, in parallel, and answers in the same order.

        Makes one attempt: RETRY if the server asks to repeat it or cannot be reached, UNKNOWN if nobody can say whether
        it was applied. DAMAGED is for an open transaction that has lost rows: the driver records it as void and then
        calls `abort`. Never raises for an answer of the server.
        """

    @abc.abstractmethod
    def abort(self, handles: Sequence[Handle]) -> Sequence[Finished]:
        """Aborts exactly these transactions, so that their writers can no longer write to them.

        Answers ABORTED also for those that are aborted or gone already or have lost rows (never DAMAGED, which would
        stop the query), and ALREADY_COMMITTED if it came too late.
        """

    @abc.abstractmethod
    def list_lingering(self, owners: Sequence[Owner]) -> Sequence[Handle]:
        """Lists open transactions of exactly these runs, as handles that `abort` takes (slot, rows unknown: 0).

        Includes aborted ones that have left something to delete.
        """

    def conclude(self, batch: int, handles: Sequence[Handle]) -> None:  # noqa: B027 - optional
        """Concludes a decided batch once its handles are all committed, before Spark counts it as done.

        Optional: writes what describes a whole batch, such as a list of its files, and tidies up behind older batches.
        Called again with the same handles when a run takes up a batch that an earlier run had finished. Not called for
        a batch without a slot of this sink: its plan had no task. So tidying must not wait for a certain batch number.

        Args:
            batch: Spark's batch id.
            handles: All handles of this sink, also those of slots without rows.

        Raises:
            UnknownOutcomeError: if the system cannot be reached now. Called again until the deadline.
        """

    def begun_ms(self, handles: Sequence[Handle]) -> Sequence[int | None]:
        """Returns when each of these prepared transactions was begun, for a batch that has taken long.

        Optional: returns the writers' times by default. A server knows better, since executors' clocks differ.

        Returns:
            Milliseconds since the epoch in the same order; None for a transaction that is not open. The time is the
            server's, or now minus the age that the server reports.

        Raises:
            UnknownOutcomeError: if the system cannot be asked now: the batch is then not decided.
        """
        return [handle.opened_ms for handle in handles]

    def before_decision(self, facts: Facts) -> str:  # noqa: ARG002 - for those that override it
        """Returns a reason to refuse the decision, asked once every slot of a batch is prepared.

        Optional: finds what no writer can see, such as a target that was dropped and made again between two writes.

        Args:
            facts: The facts that `TwoPhaseCommitSink.preflight` returned in this run.

        Returns:
            The reason, upon which the batch is aborted and the run stops; or an empty text. An error counts as one.
        """
        return ""

    def check_prepared(self, handles: Sequence[Handle]) -> str:  # noqa: ARG002 - for those that override it
        """Returns such a reason that the rows of all slots show together, as two of one key do. Optional."""
        return ""

    def list_traces(self, query: str, facts: Facts) -> Sequence[Trace]:  # noqa: ARG002
        """Lists the commits of a query that the system itself remembers: they show a log that is an old copy.

        Optional: a system that remembers nothing, or forgets after a while, lists fewer.

        Args:
            query: The short form of the query's id.
            facts: The facts that `TwoPhaseCommitSink.preflight` returned in the run that asks.

        Returns:
            A trace for each transaction that the system remembers as committed, with its batch if the system knows it.
            If it does not remember which, a trace for each run that has committed something. A trace that should not be
            listed makes the next start refuse a healthy query.

        Raises:
            UnknownOutcomeError: if the system cannot be asked now. It is asked again for a minute at most; then the
                start warns and continues, as it does at once after an error that is not one of sparkonce.
        """
        return ()

    def missing(self, handles: Sequence[Handle]) -> Sequence[Handle]:  # noqa: ARG002 - for those that override it
        """Lists those of these handles that the system does not have any more: it went back to an older state.

        Optional. At a start it is given the newest batch with rows in this sink that is surely finished, and older ones
        if something of it is missing. Batches from before the sink's facts changed are not among them.

        Args:
            handles: Handles of this sink, all with a transaction. Each was committed, and its batch was concluded.

        Returns:
            The handles that are not committed now, but none that the system may have forgotten by itself. A handle that
            should not be listed makes the start refuse a healthy query.

        Raises:
            UnknownOutcomeError: if the system cannot be asked now.
        """
        return ()

    def close(self) -> None:  # noqa: B027 - optional
        """Frees connections."""


class Lookout(abc.ABC):
    """Watches what others do to the readers of a sink's rows, in a thread of its own, while the query runs."""

    @abc.abstractmethod
    def look(self, batch_s: float) -> None:
        """Looks once, and logs what the operator has to act on.

        Must not use what batches need, such as their connections. Its errors are logged at DEBUG, and end nothing.

        Args:
            batch_s: The duration of the query's last batch, in seconds.
        """

    @abc.abstractmethod
    def close(self) -> None:
        """Frees connections."""


class TwoPhaseCommitSink(abc.ABC):
    """A system that takes part in the two-phase commit of a Spark query.

    Implement it for a system of your own and run `sparkonce.testing.conformance` over it.

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
        """The guarantee that readers get; by default `guarantee`, at which the sink is run.

        A system that cannot tell a repeated commit from the first one promises less.
        """
        return self.guarantee

    @property
    def tells_refused(self) -> bool:
        """True if its writers tell which rows the system refuses (`SinkWriter.offer`): these can go elsewhere."""
        return False

    @property
    def takes_dead_letters(self) -> bool:
        """True if the sink may take the rows that another sink refuses.

        False if its system may refuse a row after the decision, when nothing else can take that row any more.
        """
        return True

    @property
    def target_name(self) -> str | None:
        """The topic or table that the sink writes to, for `sparkonce.explain`; by default it shows the sink's name."""
        return None

    @property
    def kafka_settings(self) -> Mapping[str, Any] | None:
        """The settings of the sink's Kafka cluster, in librdkafka's names; None if it does not write to Kafka.

        With them, `sparkonce.explain` asks the brokers for their limits and judges Kafka's readers, a start warns of a
        query that reads its own `target_name`, and `GroupOffsets` may put offsets into the sink's transactions.
        """
        return None

    def partitions(self) -> int | None:
        """Returns the number of partitions of the target, for a sink that writes a row to its column ``partition``.

        A start then refuses rows that bring this column along from a source with more partitions.

        Returns:
            The number, 0 if it is not known, or None if the column does not choose a partition.
        """
        return None

    def checked(self, rows: DataFrame, mark: str = "") -> DataFrame:  # noqa: ARG002 - for those that override it
        """Returns the same rows, whose computation fails for a row that the system would refuse after the decision.

        Called on the driver, for each batch. By default nothing is checked.

        Args:
            rows: The sink's rows.
            mark: The name of a column to add, if refused rows go to a sink of dead letters. It has the reason why the
                system would refuse the row, and null for the others. The computation then does not fail.
        """
        return rows

    def conditions(self) -> Sequence[str]:
        """Returns the conditions that the system and its readers must meet for the promise to hold, a sentence each.

        `sparkonce.explain` shows them. For example "readers use isolation.level=read_committed".
        """
        return ()

    def use_checkpoint(self, files: CheckpointFiles) -> None:  # noqa: B027 - optional
        """Takes the checkpoint's files, on the driver, at the start. Who keeps rows there refuses a second query's."""

    def use_folders(self, open_folder: Callable[[str], CheckpointFiles]) -> None:  # noqa: B027 - optional
        """Opens folders that the sink was given by URL, on the driver, before `use_checkpoint`."""

    def columns(self, schema: pa.Schema) -> Sequence[str]:
        """Returns the columns that the sink writes; by default all.

        Raises:
            SchemaError: naming the column that is missing or has a type that the sink does not take.
        """
        return list(schema.names)

    def preflight(self, query: str, recorded: Facts | None) -> Facts:  # noqa: ARG002 - for those that override it
        """Checks the system once at the start of each run, before anything is claimed or written.

        Args:
            query: The short form of the query's id.
            recorded: The facts that the newest run in the log returned; None at the first start.

        Returns:
            The facts that the log remembers, and that writers and sweeps get as ``owner.facts``.

        Raises:
            PreflightError: naming the setting and its value.
        """
        return {}

    def transaction_timeout_s(self, facts: Facts) -> float | None:  # noqa: ARG002 - for those that override it
        """Returns how long a transaction may stay open before the system aborts it; None if it never does."""
        return None

    def longest_lived(self, facts: Facts) -> Facts:
        """Returns facts with the longest timeout that the system allows, for a batch that needs it. Optional."""
        return facts

    def lookout(self, query: str, facts: Facts) -> Lookout | None:  # noqa: ARG002 - for those that override it
        """Makes the sink's lookout; None if others cannot harm the readers of its rows.

        Args:
            query: The short form of the query's id.
            facts: The facts that `preflight` returned in this run.
        """
        return None

    def worker_needs(self) -> WorkerNeeds:
        """Returns the writers' needs on executors' hosts, which are checked before the first batch. Optional."""
        return WorkerNeeds()

    @abc.abstractmethod
    def writer(self, context: WriterContext) -> SinkWriter:
        """Makes the executor half. Runs in a worker process."""

    @abc.abstractmethod
    def committer(self) -> SinkCommitter:
        """Makes the driver half, once a run."""
