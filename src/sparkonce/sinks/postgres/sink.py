"""PostgreSQL as a part of the two-phase commit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sparkonce.arguments import need_package, one_of, texts
from sparkonce.errors import ConfigurationError
from sparkonce.guarantees import Guarantee
from sparkonce.sink import Facts, SinkCommitter, SinkWriter, TwoPhaseCommitSink, WriterContext
from sparkonce.sinks.postgres.settings import COMMITS, Connecting, Limits, Target, check_identifier, whole_prefix

if TYPE_CHECKING:
    import pyarrow as pa

    from sparkonce.sinks.postgres.catalog import Table


class PostgresSink(TwoPhaseCommitSink):
    """Writes rows into a table of PostgreSQL, by COPY in binary.

    Args:
        conninfo: Where the server is: libpq's ``host=… dbname=… user=…``, a ``postgresql://`` URI, or a mapping of
            libpq's settings. Never shown. The workers connect with it too.
        table: The table's name, exactly as the catalog has it, without quotes.
        schema: The table's schema.
        mode: ``append`` adds rows; ``upsert`` replaces those with the same key.
        key_columns: For ``upsert``: the columns of a unique index, none of which may be null.
        order_by: For ``upsert``: where one batch has a key twice, the row with the greatest value of this column wins.
            Without it, and among equals, the last row of the highest slot does.
        on_conflict: For ``upsert``: ``update`` replaces the row that is there, ``nothing`` keeps it.
        commit: ``staged`` or ``two_phase``, see docs/postgres.md. ``upsert`` needs ``staged``.
        commits_schema: Where the table of markers, ``sparkonce_commits``, is, and where staging tables are made. None:
            `schema`.
        prefix: Begins, with `name`, the names of all transactions.
        name: Unique within the query, and the same after a restart.
        guarantee: EXACTLY_ONCE holds rows back until the batch is decided; the others show each slot's rows at once.
        slot_timeout_s: How long one slot's transaction may stay open until it is prepared, in seconds.
        commit_timeout_s: How long the commit of a staged batch may take, in seconds.
        lock_timeout_s: How long a lock of somebody else is waited for, in seconds.

    Raises:
        ConfigurationError: naming the setting that is wrong or contradicts another.
    """

    def __init__(
        self,
        conninfo: str | Mapping[str, Any],
        *,
        table: str,
        schema: str = "public",
        mode: str = "append",
        key_columns: Sequence[str] = (),
        order_by: str | None = None,
        on_conflict: str = "update",
        commit: str = "staged",
        commits_schema: str | None = None,
        prefix: str = "sparkonce",
        name: str = "postgres",
        guarantee: Guarantee = Guarantee.EXACTLY_ONCE,
        slot_timeout_s: float = 3600.0,
        commit_timeout_s: float = 300.0,
        lock_timeout_s: float = 10.0,
    ) -> None:
        super().__init__(name, guarantee)
        need_package("PostgresSink", "psycopg", "psycopg", "postgres")
        self.target = Target(
            schema=schema,
            table=table,
            mode=mode,
            keys=texts("key_columns", key_columns, example="a list of columns' names: ['id']"),
            on_conflict=on_conflict,
            order_by=order_by or "",
        )
        self.target.check()
        one_of("commit", commit, COMMITS)
        if mode == "upsert" and commit == "two_phase":
            raise ConfigurationError(
                "commit='two_phase' with mode='upsert': two slots, or two tries of one, that hold the same key would "
                "wait for each other's prepared transaction until both give up",
                next_step="leave commit out: commit='staged' writes the whole batch in one transaction.",
            )
        self.commit_by = commit
        self.commits_schema = schema if commits_schema is None else commits_schema
        check_identifier("commits_schema", self.commits_schema)
        self.prefix = whole_prefix(prefix, name)
        self.limits = Limits(slot_s=slot_timeout_s, commit_s=commit_timeout_s, lock_s=lock_timeout_s)
        self.limits.check()
        self._to = Connecting.of(conninfo)
        self._table: Table | None = None
        self._fitting: tuple[pa.Schema, tuple[str, ...]] | None = None

    def __repr__(self) -> str:
        return f"PostgresSink({self._to}, table={self.target}, commit={self.commit_by!r}, name={self.name!r})"

    def __getstate__(self) -> dict[str, Any]:
        """Workers look at the table themselves."""
        return {**self.__dict__, "_table": None, "_fitting": None}

    def conditions(self) -> Sequence[str]:
        """See `TwoPhaseCommitSink.conditions`."""
        if self.guarantee is not Guarantee.EXACTLY_ONCE:
            return ()
        shared = (
            "the server keeps what it has confirmed: fsync is on, and after a failover the new primary has it "
            "(synchronous_standby_names); one without the newest finished batch is found, and stops the query",
            f"nobody but sparkonce changes {self.commits_schema}.sparkonce_commits or the tables sparkonce_*",
        )
        if self.commit_by == "staged":
            return (
                *shared,
                "no unique index, foreign key or trigger of the table refuses a row: that would be after its batch is "
                "decided, and stops the query",
            )
        return (
            *shared,
            "readers may see one slot of a batch a moment before another",
            "max_prepared_transactions has room for the slots of all queries",
        )

    def columns(self, schema: pa.Schema) -> Sequence[str]:
        """All columns of the query, each of which the table must have with a type that holds its values.

        Raises:
            SchemaError: naming every column that does not fit, also those of the table that must be there.
        """
        if self._fitting is None or not self._fitting[0].equals(schema):
            super().columns(schema)
            self._fitting = (schema, self._known_table().select(schema, self.target))
        return self._fitting[1]

    def preflight(self, query: str, recorded: Facts | None) -> Facts:
        """Checks the server, its limits, the table and permissions, and makes the table of markers."""
        from sparkonce.sinks.postgres.preflight import preflight

        facts, self._table = preflight(self._ask(), query, recorded)
        self._fitting = None
        return facts

    def writer(self, context: WriterContext) -> SinkWriter:
        """Connects when the first rows come, or uses a connection that an earlier task of this process left."""
        from sparkonce.sinks.postgres.writer import DIRECT, Job, PostgresWriter

        commit = self.commit_by if self.guarantee is Guarantee.EXACTLY_ONCE else DIRECT
        return PostgresWriter(Job(to=self._to, target=self.target, commit=commit, limits=self.limits), context)

    def committer(self) -> SinkCommitter:
        """Finishes transactions from the driver."""
        from sparkonce.sinks.postgres.committer import PostgresCommitter

        is_staged = self.guarantee is Guarantee.EXACTLY_ONCE and self.commit_by == "staged"
        target = self.target if is_staged else None
        return PostgresCommitter(self._to, self.name, limits=self.limits, target=target)

    def _ask(self) -> Any:
        from sparkonce.sinks.postgres.preflight import Ask

        return Ask(
            to=self._to,
            target=self.target,
            commit=self.commit_by,
            commits_schema=self.commits_schema,
            prefix=self.prefix,
            guarantee=self.guarantee,
        )

    def _known_table(self) -> Table:
        if self._table is None:
            from sparkonce.sinks.postgres.preflight import look_at_table

            self._table = look_at_table(self._ask())
        return self._table
