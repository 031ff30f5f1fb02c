"""The contract of a sink, and everything that your own sink imports.

The user creates a `TwoPhaseCommitSink` on the driver. The driver checks it (`columns`, `preflight`) and pickles it to
the executors, where each task attempt for a slot creates one `SinkWriter`. The driver's `SinkCommitter` commits or
aborts what the writers have prepared.

The names map to Flink's ``TwoPhaseCommitSinkFunction``: ``begin`` is beginTransaction, ``write`` is invoke, ``prepare``
is preCommit, ``commit`` is both commit and recoverAndCommit, and ``abort`` is both abort and recoverAndAbort.

The module also exports the types that these methods accept, return and raise: `Guarantee`, `Handle`, `Finished`,
`Outcome`, `Token`, `TransactionName`, `Trace` and the errors; the function `transaction_fields`; and
`SINKS_KEEP_BATCHES`, the number of batches that a sink must remember.
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
"""The facts that the log records about a sink for each run, such as the cluster's id and the prefix of its ids."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """A run that owns transactions in a sink. The transactions' names contain its query and its token.

    Attributes:
        query: The short form of the query's id; see `sparkonce.protocol.ownership.short_query`.
        token: The run's token.
        facts: The facts that `TwoPhaseCommitSink.preflight` returned in that run.
        generation: Incremented whenever a request to end this run's transactions gets no answer. The request may still
            arrive, so a sink that reuses transaction names must then switch to new ones.
    """

    query: str
    token: Token
    facts: Facts = field(default_factory=dict)
    generation: int = 0


Runs = Mapping[tuple[str, str], frozenset[Token]]
"""Maps (prefix, query) to the tokens of the runs that wrote under them."""


def claimed_by(owners: Sequence[Owner]) -> Runs:
    """Groups these runs by prefix and query. Leaves out runs without a prefix, which wrote no transactions."""
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
    "spark_type",
    "transaction_fields",
]


_SPARK_TYPES: Mapping[str, str] = {
    "null": "void",
    "bool": "boolean",
    "int8": "tinyint",
    "int16": "smallint",
    "int32": "int",
    "int64": "bigint",
    "large_string": "string",
    "large_binary": "binary",
    "date32[day]": "date",
    "duration[us]": "interval day to second",
}


def spark_type(kind: pa.DataType) -> str:
    """Returns Spark's name of an Arrow type, for an error message: ``bigint``, ``array<string>``."""
    from pyarrow import types

    if types.is_list(kind) or types.is_large_list(kind):
        return f"array<{spark_type(kind.value_type)}>"
    if types.is_map(kind):
        return f"map<{spark_type(kind.key_type)},{spark_type(kind.item_type)}>"
    if types.is_struct(kind):
        return f"struct<{','.join(f'{field.name}:{spark_type(field.type)}' for field in kind)}>"
    if types.is_timestamp(kind):
        return "timestamp" if kind.tz is not None else "timestamp_ntz"
    if types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    return _SPARK_TYPES.get(str(kind), str(kind))


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterContext:
    """One task attempt for one slot of one batch.

    Attributes:
        owner: The run that started the attempt.
        batch: Spark's batch id.
        slot: The number of the task's partition.
        copy: Identifies this attempt among all attempts for the slot, for example ``3.17.1``: stage, task, attempt.
        columns: The names of the rows' columns; None if unknown.
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
        rows: The indices of the rows in the record batch, ascending.
        reasons: The reason for each row, as a sentence.
    """

    rows: Sequence[int] = ()
    reasons: Sequence[str] = ()


class SinkWriter(abc.ABC):
    """The executor side: one task attempt's writes to one sink. One thread calls the methods, in the order below.

    `begin` is called when the first rows arrive; a slot without rows gets neither `begin` nor `prepare`. Work that can
    start earlier, such as connecting, belongs in `TwoPhaseCommitSink.writer`.
    """

    @abc.abstractmethod
    def begin(self) -> None:
        """Opens the transaction."""

    @abc.abstractmethod
    def write(self, rows: pa.RecordBatch) -> None:
        """Writes rows with the sink's columns, in the same order as `TwoPhaseCommitSink.columns`.

        Raises:
            PrepareError: If the system rejects a row. The attempt is then aborted.
        """

    def offer(self, rows: pa.RecordBatch) -> Refused:
        """Writes the rows that the system accepts, and returns the others.

        Optional; see `TwoPhaseCommitSink.tells_refused`. Called instead of `write` if rejected rows go to a dead-letter
        sink. Must always reject the same rows when it is called with the same batch.

        Raises:
            PrepareError: If the writer cannot tell which rows the system rejects. The attempt is then aborted.
        """
        self.write(rows)
        return Refused()

    @abc.abstractmethod
    def prepare(self) -> Mapping[str, str | int]:
        """Flushes, stops writing, and returns the fields that any process needs to finish the transaction.

        Once `prepare` returns, the system must be able to commit, and nothing more may be written to the transaction.
        The writer of a sink that is not EXACTLY_ONCE flushes, and returns an empty mapping.

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

        Make one attempt. Return RETRY if the server asks for a retry or is unreachable, UNKNOWN if it is impossible to
        tell whether the commit was applied, and DAMAGED for an open transaction that has lost rows, which the driver
        then records as void and aborts. Do not raise an error for a server's response.
        """

    @abc.abstractmethod
    def abort(self, handles: Sequence[Handle]) -> Sequence[Finished]:
        """Aborts exactly these transactions, so that their writers can no longer write to them.

        Return ABORTED also for a transaction that is already aborted or gone, or that has lost rows. Return
        ALREADY_COMMITTED for one that is committed. Never return DAMAGED, which would stop the query.
        """

    @abc.abstractmethod
    def list_lingering(self, owners: Sequence[Owner]) -> Sequence[Handle]:
        """Lists open transactions of exactly these runs, as handles for `abort`. Unknown slots and row counts are 0.

        Includes aborted transactions that left something to delete, such as a file.
        """

    def conclude(self, batch: int, handles: Sequence[Handle]) -> None:  # noqa: B027 - optional
        """Concludes a decided batch once its handles are all committed, before Spark considers it done.

        Optional. Use it to write data about a whole batch, such as a list of its files, and to clean up after older
        batches. The method is called again with the same handles if a run takes over a batch that an earlier run had
        finished. The method is not called for a batch in which the sink has no slots, so cleanup must not depend on
        certain batch numbers.

        Args:
            batch: Spark's batch id.
            handles: All handles of this sink, including slots without rows.

        Raises:
            UnknownOutcomeError: If the system is currently unreachable. The call is repeated until the deadline.
        """

    def begun_ms(self, handles: Sequence[Handle]) -> Sequence[int | None]:
        """Returns when each of these prepared transactions was started, for a batch that has taken a long time.

        Optional. By default, returns the times that the executors recorded. A server's times are better, since
        executors' clocks differ.

        Returns:
            Milliseconds since the epoch, in the same order; None for a transaction that is not open. Use the server's
            time, or the current time minus the age that the server reports.

        Raises:
            UnknownOutcomeError: If the system is currently unreachable. The batch is then not decided.
        """
        return [handle.opened_ms for handle in handles]

    def before_decision(self, facts: Facts) -> str:  # noqa: ARG002 - for those that override it
        """Returns a reason not to decide the batch. Called once every slot of the batch is prepared.

        Optional. Use it to detect problems that no writer can see, such as a target that was dropped and recreated
        between two writes.

        Args:
            facts: The facts that `TwoPhaseCommitSink.preflight` returned in this run.

        Returns:
            The reason why the batch is aborted and the run stops; empty if there is none. An error counts as a
            reason.
        """
        return ""

    def check_prepared(self, handles: Sequence[Handle]) -> str:  # noqa: ARG002 - for those that override it
        """Like `before_decision`, but for problems that only show up across slots, such as duplicate keys. Optional."""
        return ""

    def list_traces(self, query: str, facts: Facts) -> Sequence[Trace]:  # noqa: ARG002
        """Lists the commits of a query that the system itself remembers, which reveal an outdated copy of the log.

        Optional. A system that forgets its commits after a while lists only those that it still remembers.

        Args:
            query: The short form of the query's id.
            facts: The facts that `TwoPhaseCommitSink.preflight` returned in the current run.

        Returns:
            One trace for each committed transaction that the system remembers, with its batch if the system knows it.
            If the system only remembers which runs have committed, one trace for each of these runs. A wrong trace
            keeps a healthy query from starting.

        Raises:
            UnknownOutcomeError: If the system is currently unreachable. The call is retried for a minute at most. Then
                the start logs a warning and continues. After any error that is not a `SparkonceError`, it does so
                immediately.
        """
        return ()

    def missing(self, handles: Sequence[Handle]) -> Sequence[Handle]:  # noqa: ARG002 - for those that override it
        """Lists which of these handles the system no longer has, because it was restored to an older state.

        Optional. Called at each start for the newest finished batch that has rows in the sink and, if any handle is
        missing, for older batches as well. Batches from before a change to the sink's facts are left out.

        Args:
            handles: Handles of this sink, all with a transaction. Each was committed, and its batch was concluded.

        Returns:
            The handles that are not committed now. Leave out those that the system may have forgotten in the normal
            course: a handle that is listed by mistake keeps a healthy query from starting.

        Raises:
            UnknownOutcomeError: If the system is currently unreachable.
        """
        return ()

    def close(self) -> None:  # noqa: B027 - optional
        """Releases connections."""


class Monitor(abc.ABC):
    """Checks whether anything blocks the readers of a sink's rows, in a separate thread while the query runs."""

    @abc.abstractmethod
    def poll(self, batch_s: float) -> None:
        """Checks once, and logs what the operator has to act on.

        Must not use resources that batches need, such as their connections. Errors are only logged, at DEBUG level.

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
        name: The sink's name. It must be unique within the query, and the same after a restart, because the log refers
            to the sink by its name.
        guarantee: The level at which the sink is run.
    """

    def __init__(self, name: str, guarantee: Guarantee = Guarantee.EXACTLY_ONCE) -> None:
        self.name = nonempty("name", name, example="a name, such as 'orders'")
        self.guarantee = member("guarantee", guarantee, Guarantee)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(name={self.name!r})"

    @property
    def promise(self) -> Guarantee:
        """The guarantee that readers get. Defaults to `guarantee`.

        The promise is lower for a system that cannot distinguish a repeated commit from the first one.
        """
        return self.guarantee

    @property
    def tells_refused(self) -> bool:
        """True if the writers report rejected rows (`SinkWriter.offer`), which can then go to a dead-letter sink."""
        return False

    @property
    def takes_dead_letters(self) -> bool:
        """True if the sink may be used for rows that another sink rejects.

        False if the system may reject a row after the decision, when it is too late to send the row anywhere else.
        """
        return True

    @property
    def writes_with_session(self) -> bool:
        """True if the committer writes with the driver's classic Spark session, which Spark Connect does not have."""
        return False

    @property
    def target_name(self) -> str | None:
        """The topic or table that the sink writes to, for `sparkonce.explain`; None to show the sink's name instead."""
        return None

    @property
    def kafka_settings(self) -> Mapping[str, Any] | None:
        """The settings of the sink's Kafka cluster, under librdkafka's names; None if it does not write to Kafka.

        `sparkonce.explain` uses the settings to query the brokers' limits and to judge Kafka's readers. When a query
        starts, it uses the settings to warn if it reads its own `target_name`. `GroupOffsets` may add offsets to the
        sink's transactions.
        """
        return None

    def partitions(self) -> int | None:
        """Returns the target's number of partitions, for a sink that routes rows by their ``partition`` column.

        A query refuses to start if its ``partition`` column comes from a source with more partitions.

        Returns:
            The number of partitions; 0 if unknown; None if the sink does not route rows by that column.
        """
        return None

    def checked(self, rows: DataFrame, mark: str = "") -> DataFrame:  # noqa: ARG002 - for those that override it
        """Adds a check to the rows, which fails if the system would reject a row only after the decision.

        Called on the driver for each batch. By default, nothing is checked.

        Args:
            rows: The sink's rows.
            mark: The name of a column to add if rejected rows go to a dead-letter sink; otherwise empty. The column
                contains the reason why the system would reject the row, or null, and the check does not fail.

        Returns:
            The same rows, with the check.
        """
        return rows

    def conditions(self) -> Sequence[str]:
        """Returns the conditions under which the promise holds, for `sparkonce.explain`.

        Each condition is a clause about the system or its readers, such as "readers use
        isolation.level=read_committed".
        """
        return ()

    def use_checkpoint(self, files: CheckpointFiles) -> None:  # noqa: B027 - optional
        """Receives the checkpoint's files. The driver calls it when the query starts.

        A sink that stores rows in a checkpoint rejects the checkpoint of a second query.
        """

    def use_folders(self, open_folder: Callable[[str], CheckpointFiles]) -> None:  # noqa: B027 - optional
        """Opens the folders that the sink got as URLs, on the driver, before `use_checkpoint`."""

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
            The facts to record in the log. Writers and sweeps get them as ``owner.facts``.

        Raises:
            PreflightError: If a setting does not allow the guarantee. The message names it and its value.
        """
        return {}

    def transaction_timeout_s(self, facts: Facts) -> float | None:  # noqa: ARG002 - for those that override it
        """Returns the seconds after which the system aborts an open transaction; None if it never does so."""
        return None

    def longest_lived(self, facts: Facts) -> Facts:
        """Returns the facts with the longest timeout that the system allows, for a batch that needs it. Optional."""
        return facts

    def monitor(self, query: str, facts: Facts) -> Monitor | None:  # noqa: ARG002 - for those that override it
        """Creates the sink's monitor. Returns None if other applications cannot block the readers of its rows.

        Args:
            query: The short form of the query's id.
            facts: The facts that `preflight` returned in this run.
        """
        return None

    def worker_needs(self) -> WorkerNeeds:
        """Returns what the writers need on the executors' hosts. Checked before the first batch. Optional."""
        return WorkerNeeds()

    @abc.abstractmethod
    def writer(self, context: WriterContext) -> SinkWriter:
        """Creates the executor side. Runs in a worker process."""

    @abc.abstractmethod
    def committer(self) -> SinkCommitter:
        """Creates the driver side. Called once per run."""
