"""The sink for tables of MariaDB and MySQL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sparkonce.arguments import need_package, nonempty
from sparkonce.guarantees import Guarantee
from sparkonce.needs import WorkerNeeds, files_of
from sparkonce.sink import Facts
from sparkonce.sinks._shared.settings import seconds
from sparkonce.sinks.sql.mysql.settings import PREFIX_LIMIT_BYTES, TLS_FILES, address, connection_settings
from sparkonce.sinks.sql.settings import TWO_PHASE, Commit, Limits, Mode, Target
from sparkonce.sinks.sql.sink import SqlSink

if TYPE_CHECKING:
    import pyarrow as pa

    from sparkonce.sinks.sql.dialect import Dialect

_PORT = 3306
REPLY_S = 300.0
"""The longest time that a slot waits for one reply, for example to 4 MiB of rows, in seconds."""

ANSWER_S = 10.0
"""The time limit of one call of the committer, except for a merge, in seconds."""


class MySQLSink(SqlSink):
    """Writes rows to a table of MariaDB 10.5 or newer, or MySQL 8.0.19 or newer.

    Args:
        settings: PyMySQL's settings, for example ``{"host": "db", "user": "etl", "password": "…", "database":
            "shop"}``. With them, every process must reach the same server, the primary.
        table: The target, an InnoDB table in ``database``. The name is used literally, including dots and spaces.
        name: A name that is unique within the query and stays the same after a restart.
        mode: ``append`` inserts rows; a row whose key already exists is an error. ``upsert`` replaces the row with the
            same ``key_columns``, or inserts it.
        key_columns: For ``upsert``: the columns of a unique key of the table, as a string or a list of strings.
        order_by: For ``upsert``: the column that decides among rows with the same key, including the table's row. The
            greatest value wins. Among equal values, or without this setting, the last row of the highest slot of the
            latest batch wins.
        update_when: For ``upsert``: an additional SQL condition under which a row replaces the table's row, such as
            ``source.version > target.version``. ``source`` is the batch's row, ``target`` the table's.
        delete_when: For ``upsert``: an SQL condition, such as ``source.value IS NULL``, under which a row deletes the
            table's row with its key.
        commit: ``staged`` writes to one table per slot, which the driver merges in one transaction per batch.
            ``two_phase`` writes to the target in XA transactions, one per slot. docs/mysql.md compares them. ``upsert``
            needs ``staged``.
        prefix: The first part of all transaction names, followed by `name`: at most 64 bytes together.
        guarantee: Below EXACTLY_ONCE, rows are visible as soon as their slot has written them.
        commit_timeout_s: How long the merge of a staged batch may take, in seconds.
        lock_timeout_s: How long to wait for rows that another transaction has locked, in seconds.

    Raises:
        ConfigurationError: If a setting is missing, unknown, or contradicts another. The message names it.
    """

    def __init__(
        self,
        settings: Mapping[str, Any],
        *,
        table: str,
        name: str = "mysql",
        mode: Mode = "append",
        key_columns: str | Sequence[str] = (),
        order_by: str | None = None,
        update_when: str | None = None,
        delete_when: str | None = None,
        commit: Commit = "staged",
        prefix: str = "sparkonce",
        guarantee: Guarantee = Guarantee.EXACTLY_ONCE,
        commit_timeout_s: float = 300.0,
        lock_timeout_s: float = 10.0,
    ) -> None:
        need_package("MySQLSink", "PyMySQL", "pymysql", "mysql")
        table = nonempty("table", table, example="the name of the target table")
        target = Target.of(
            table, mode, key_columns, order_by=order_by, update_when=update_when, delete_when=delete_when
        )
        super().__init__(name, guarantee, commit, prefix, PREFIX_LIMIT_BYTES, target)
        self.conninfo = connection_settings(settings)
        self.limits = Limits(
            slot_s=REPLY_S,
            commit_s=seconds("commit_timeout_s", commit_timeout_s, least=1),
            lock_s=seconds("lock_timeout_s", lock_timeout_s, least=1),
            answer_s=ANSWER_S,
        )

    def __repr__(self) -> str:
        database = f"{address(self.conninfo)}/{self.conninfo['database']}"
        return f"MySQLSink({database}, table={self.target}, name={self.name!r})"

    def conditions(self) -> Sequence[str]:
        if self.guarantee is not Guarantee.EXACTLY_ONCE:
            return ()
        kept = [
            "innodb_flush_log_at_trx_commit stays 1, and what the server says is on disk is on disk",
            "the table sparkonce_commits is neither emptied nor restored without the target table",
            "after a failover the new primary has all that the old one had committed or prepared; one without the "
            "newest finished batch is detected, and stops the query",
            "the target has no triggers that write to non-transactional tables",
        ]
        if self.commit != TWO_PHASE:
            return [*kept, "readers do not use READ UNCOMMITTED"]
        return [*kept, "readers do not use READ UNCOMMITTED, and may see one slot's rows before another's"]

    def columns(self, schema: pa.Schema) -> Sequence[str]:
        """Returns all columns. Arrays and structs are written as JSON.

        Raises:
            SchemaError: If the sink does not support a column's type, or a key column is missing. The message names it.
        """
        from sparkonce.sinks.sql.mysql.catalog import check_kinds, check_names

        names = super().columns(schema)
        check_kinds(schema)
        check_names(schema, self.target.keys)
        self.target.rules.check_columns(names, fold=True)
        self.schema = schema
        return names

    def preflight(self, query: str, recorded: Facts | None) -> Facts:  # noqa: ARG002 - the same for all queries
        """Checks the server, the table and the privileges. Creates the sink's own tables at the first start.

        If `columns` was called before, also checks the rows' columns.
        """
        from sparkonce.sinks.sql.mysql.preflight import preflight

        return preflight(self, recorded)

    def worker_needs(self) -> WorkerNeeds:
        host, port = str(self.conninfo.get("host") or ""), self.conninfo.get("port") or _PORT
        # The defaults file may name the server, so its address is unknown here.
        known = not self.conninfo.keys() & {"unix_socket", "read_default_file"}
        return WorkerNeeds(
            modules=("pymysql",),
            files=files_of(self.conninfo, (*TLS_FILES, "read_default_file")),
            addresses=((host, int(port)),) if host and known else (),
        )

    def dialect(self) -> tuple[Dialect, str]:
        from sparkonce.sinks.sql.mysql.dialect import MYSQL_DIALECT

        return MYSQL_DIALECT, f"The server at {address(self.conninfo)}"
