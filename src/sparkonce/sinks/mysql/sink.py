"""MariaDB and MySQL as a part of the two-phase commit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sparkonce.arguments import need_package, nonempty, number, one_of, texts
from sparkonce.errors import ConfigurationError
from sparkonce.guarantees import Guarantee
from sparkonce.sink import Facts, SinkCommitter, SinkWriter, TwoPhaseCommitSink, WriterContext
from sparkonce.sinks.mysql.names import PREFIX_LIMIT_BYTES
from sparkonce.sinks.mysql.settings import connection_settings, place

if TYPE_CHECKING:
    import pyarrow as pa

_MODES = ("append", "upsert")
_COMMITS = ("two_phase", "staged")


class MySQLSink(TwoPhaseCommitSink):
    """Writes rows to a table of MariaDB 10.5 or newer, or MySQL 8.0.19 or newer.

    Args:
        settings: PyMySQL's, for example ``{"host": "db", "user": "etl", "password": "…", "database": "shop"}``. All its
            processes must reach the same server, the primary.
        table: The target, an InnoDB table in ``database``. Written as it is: a dot or a space is a part of the name.
        name: Unique within the query, and the same after a restart.
        mode: ``append`` inserts, and a row whose key is there already is an error. ``upsert`` replaces the row with the
            same ``key_columns``, or inserts it.
        key_columns: For ``upsert``: the columns of a unique key of the table.
        commit: ``staged`` writes to a table a slot, which the driver merges in one transaction a batch. ``two_phase``
            writes into the target in XA transactions, one a slot. See docs/mysql.md for which is better when.
        prefix: Begins, with `name`, the names of all transactions: 64 bytes at most together.
        guarantee: Below EXACTLY_ONCE rows are visible as soon as their slot has written them.
        commit_timeout_s: How long the merge of a staged batch may take, in seconds.
        lock_timeout_s: How long a writer waits for rows that somebody else has locked, in seconds.

    Raises:
        ConfigurationError: naming the setting that is missing, unknown, or contradicts another.
    """

    def __init__(
        self,
        settings: Mapping[str, Any],
        *,
        table: str,
        name: str = "mysql",
        mode: str = "append",
        key_columns: Sequence[str] = (),
        commit: str = "staged",
        prefix: str = "sparkonce",
        guarantee: Guarantee = Guarantee.EXACTLY_ONCE,
        commit_timeout_s: float = 300.0,
        lock_timeout_s: float = 10.0,
    ) -> None:
        super().__init__(name, guarantee)
        need_package("MySQLSink", "PyMySQL", "pymysql", "mysql")
        self.settings = connection_settings(settings)
        self.table = nonempty("table", table, example="the name of the target table")
        self.mode = one_of("mode", mode, _MODES)
        columns = (key_columns,) if isinstance(key_columns, str) else key_columns
        self.key_columns = texts("key_columns", columns, example="a list of columns' names: ['id']")
        self.commit = one_of("commit", commit, _COMMITS)
        self.prefix = f"{prefix}.{name}"
        self.commit_timeout_s = number("commit_timeout_s", commit_timeout_s, least=1)
        self.lock_timeout_s = number("lock_timeout_s", lock_timeout_s, least=1)
        self._schema: pa.Schema | None = None
        if (self.mode == "upsert") != bool(self.key_columns):
            raise ConfigurationError(
                f"mode={mode!r} with key_columns={list(self.key_columns)}: upserts need them, and nothing else does.",
                next_step="name the columns of a unique key for mode='upsert', or leave them out.",
                setting="key_columns",
            )
        _check_prefix(self.prefix)

    def __repr__(self) -> str:
        """Without credentials."""
        return (
            f"MySQLSink({place(self.settings)}/{self.settings['database']}, table={self.table!r}, name={self.name!r})"
        )

    def conditions(self) -> Sequence[str]:
        """What the promise rests on."""
        if self.guarantee is not Guarantee.EXACTLY_ONCE:
            return ()
        given = [
            "innodb_flush_log_at_trx_commit stays 1, and what the server says is on disk is on disk",
            "the table sparkonce_commits is neither emptied nor restored without the target table",
            "after a failover the new primary has all that the old one had committed or prepared; one without the "
            "newest finished batch is found, and stops the query",
            "the target has no triggers that write to tables without transactions",
        ]
        if self.commit == "two_phase":
            given.append("readers do not use READ UNCOMMITTED, and may see one slot's rows before another's")
            if self.mode == "upsert":
                given.append("rows are partitioned by key: no key is in two slots of a batch")
        else:
            given.append("readers do not use READ UNCOMMITTED")
        return given

    def columns(self, schema: pa.Schema) -> Sequence[str]:
        """All columns; arrays and structs are written as JSON.

        Raises:
            SchemaError: naming the column whose type the sink does not take, or the key column that is missing.
        """
        from sparkonce.sinks.mysql.target import check_kinds, check_names

        names = super().columns(schema)
        check_kinds(schema)
        check_names(schema, self.key_columns)
        self._schema = schema
        return names

    def preflight(self, query: str, recorded: Facts | None) -> Facts:  # noqa: ARG002 - the same for all queries
        """Checks the server, the table and the rights; makes the sink's own tables at the first start.

        The rows' columns are checked, too, if `columns` was called before.
        """
        from sparkonce.sinks.mysql.preflight import Wanted, preflight

        wanted = Wanted(
            settings=self.settings,
            table=self.table,
            key_columns=self.key_columns,
            commit=self.commit if self.guarantee is Guarantee.EXACTLY_ONCE else "",
            prefix=self.prefix,
            schema=self._schema,
        )
        return preflight(wanted, recorded)

    def writer(self, context: WriterContext) -> SinkWriter:
        """Connects when the first rows come."""
        from sparkonce.sinks.mysql.writer import DirectWriter, StagedWriter, TwoPhaseWriter, WriterSettings

        facts = context.owner.facts
        how = WriterSettings(
            settings=self.settings,
            table=self.table,
            key_columns=self.key_columns,
            prefix=facts.get("prefix", ""),
            server=facts.get("server", ""),
            lock_wait_s=int(self.lock_timeout_s),
        )
        if self.guarantee is not Guarantee.EXACTLY_ONCE:
            return DirectWriter(how, context)
        return (TwoPhaseWriter if self.commit == "two_phase" else StagedWriter)(how, context)

    def committer(self) -> SinkCommitter:
        """Finishes transactions of either kind, whatever ``commit`` says now."""
        from sparkonce.sinks.mysql.committer import MySQLCommitter

        return MySQLCommitter(self.settings, self.name, commit_timeout_s=self.commit_timeout_s)


def _check_prefix(prefix: str) -> None:
    size = len(prefix.encode())
    if not 0 < size <= PREFIX_LIMIT_BYTES or not prefix.isprintable():
        raise ConfigurationError(
            f"prefix and name, {prefix!r}, have {size} bytes together and cannot be used.",
            next_step=f"use {PREFIX_LIMIT_BYTES} printable bytes or less: they are a part of XA's ids.",
            setting="prefix",
        )
