"""The sink for tables of PostgreSQL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sparkonce.arguments import need_package
from sparkonce.errors import SchemaError
from sparkonce.guarantees import Guarantee
from sparkonce.needs import WorkerNeeds
from sparkonce.protocol.ownership import NAME_PREFIX_LIMIT_BYTES
from sparkonce.sink import Facts
from sparkonce.sinks._shared.settings import seconds
from sparkonce.sinks.sql.postgres.settings import Conninfo, check_identifier
from sparkonce.sinks.sql.settings import STAGED, Commit, Limits, Mode, OnConflict, Target
from sparkonce.sinks.sql.sink import SqlSink

if TYPE_CHECKING:
    import pyarrow as pa

    from sparkonce.sinks.sql.dialect import Dialect


class PostgresSink(SqlSink):
    """Writes rows to a PostgreSQL table with binary COPY.

    Args:
        conninfo: The server's address: libpq's ``host=… dbname=… user=…``, a ``postgresql://`` URI, or a mapping of
            libpq's settings. It is never shown. The workers connect with it, too.
        table: The table's name, exactly as in the catalog, without quotes.
        schema: The table's schema.
        mode: ``append`` adds rows; ``upsert`` replaces those with the same key.
        key_columns: For ``upsert``: the columns of a unique index, none of which may be null, as a string or a list of
            strings.
        order_by: For ``upsert``: the column that decides among rows with the same key, including the table's row. The
            greatest value wins. Among equal values, or without this setting, the last row of the highest slot of the
            latest batch wins.
        update_when: For ``upsert``: an additional SQL condition under which a row replaces the table's row, such as
            ``source.version > target.version``. ``source`` is the batch's row, ``target`` the table's.
        delete_when: For ``upsert``: an SQL condition, such as ``source.value IS NULL``, under which a row deletes the
            table's row with its key.
        on_conflict: For ``upsert``: ``update`` replaces the existing row, ``nothing`` keeps it.
        commit: ``staged`` or ``two_phase``, see docs/postgres.md. ``upsert`` needs ``staged``.
        commits_schema: The schema of the markers (``sparkonce_commits``) and staging tables; by default, `schema`.
        prefix: The first part of all transaction names, followed by `name`: at most 100 bytes together.
        name: A name that is unique within the query and stays the same after a restart.
        guarantee: EXACTLY_ONCE hides rows until the batch is decided; the others show each slot's rows immediately.
        slot_timeout_s: How long one slot's transaction may stay open until it is prepared, in seconds.
        commit_timeout_s: How long the commit of a staged batch may take, in seconds.
        lock_timeout_s: How long to wait for a lock of another session, in seconds.

    Raises:
        ConfigurationError: If a setting is wrong or contradicts another. The message names it.
    """

    def __init__(
        self,
        conninfo: str | Mapping[str, Any],
        *,
        table: str,
        schema: str = "public",
        mode: Mode = "append",
        key_columns: str | Sequence[str] = (),
        order_by: str | None = None,
        update_when: str | None = None,
        delete_when: str | None = None,
        on_conflict: OnConflict = "update",
        commit: Commit = "staged",
        commits_schema: str | None = None,
        prefix: str = "sparkonce",
        name: str = "postgres",
        guarantee: Guarantee = Guarantee.EXACTLY_ONCE,
        slot_timeout_s: float = 3600.0,
        commit_timeout_s: float = 300.0,
        lock_timeout_s: float = 10.0,
    ) -> None:
        need_package("PostgresSink", "psycopg", "psycopg", "postgres")
        self.commits_schema = schema if commits_schema is None else commits_schema
        for setting, value in (("schema", schema), ("table", table), ("commits_schema", self.commits_schema)):
            check_identifier(setting, value)
        target = Target.of(
            table,
            mode,
            key_columns,
            schema=schema,
            on_conflict=on_conflict,
            order_by=order_by,
            update_when=update_when,
            delete_when=delete_when,
        )
        super().__init__(name, guarantee, commit, prefix, NAME_PREFIX_LIMIT_BYTES, target)
        self.limits = Limits(
            slot_s=seconds("slot_timeout_s", slot_timeout_s),
            commit_s=seconds("commit_timeout_s", commit_timeout_s),
            lock_s=seconds("lock_timeout_s", lock_timeout_s),
        )
        self.conninfo = Conninfo.of(conninfo)

    def __repr__(self) -> str:
        return f"PostgresSink({self.conninfo}, table={self.target}, commit={self.commit!r}, name={self.name!r})"

    def conditions(self) -> Sequence[str]:
        if self.guarantee is not Guarantee.EXACTLY_ONCE:
            return ()
        shared = (
            "the server keeps confirmed commits: fsync is on, and after a failover the new primary has it "
            "(synchronous_standby_names); one without the newest finished batch is detected, and stops the query",
            f"nobody but sparkonce changes {self.commits_schema}.sparkonce_commits or the tables sparkonce_*",
        )
        if self.commit == STAGED:
            return (
                *shared,
                "between a batch's trial merge and its commit, no other writer adds rows by which a unique index, "
                "foreign key or trigger refuses it: that stops the query, and other sinks show the batch",
            )
        return (
            *shared,
            "readers may see one slot of a batch a moment before another",
            "max_prepared_transactions has room for the slots of all queries",
        )

    def columns(self, schema: pa.Schema) -> Sequence[str]:
        """Returns all columns of the query. The preflight compares them with the table.

        Raises:
            SchemaError: If the rows lack a column that `key_columns` or a condition names.
        """
        names = super().columns(schema)
        if missing := [key for key in self.target.keys if key not in names]:
            what = f"key_columns names {missing}, and the rows have {schema.names}."
            raise SchemaError(what, next_step="Add the columns to the query, or name others.")
        self.target.rules.check_columns(names)
        self.schema = schema
        return names

    def preflight(self, query: str, recorded: Facts | None) -> Facts:  # noqa: ARG002 - the same for all queries
        """Checks the server, the table and permissions, and creates the table of markers.

        If `columns` was called before, also checks the rows' columns.
        """
        from sparkonce.sinks.sql.postgres.preflight import preflight

        return preflight(self, recorded)

    def worker_needs(self) -> WorkerNeeds:
        return WorkerNeeds(modules=("psycopg",), files=self.conninfo.files(), addresses=self.conninfo.addresses())

    def dialect(self) -> tuple[Dialect, str]:
        from sparkonce.sinks.sql.postgres.dialect import POSTGRES_DIALECT

        return POSTGRES_DIALECT, f"PostgreSQL at {self.conninfo}"
