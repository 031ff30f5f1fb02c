"""The sink for tables of PostgreSQL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sparkonce.arguments import need_package
from sparkonce.errors import ConfigurationError
from sparkonce.guarantees import Guarantee
from sparkonce.needs import WorkerNeeds
from sparkonce.protocol.ownership import NAME_PREFIX_LIMIT_BYTES
from sparkonce.sink import Facts
from sparkonce.sinks._shared.settings import seconds
from sparkonce.sinks.sql.postgres.settings import Conninfo, check_identifier
from sparkonce.sinks.sql.settings import STAGED, TWO_PHASE, UPSERT, Commit, Limits, Mode, OnConflict, Target
from sparkonce.sinks.sql.sink import SqlSink

if TYPE_CHECKING:
    import pyarrow as pa

    from sparkonce.sinks.sql.dialect import Dialect
    from sparkonce.sinks.sql.postgres.catalog import CatalogTable


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
        super().__init__(name, guarantee, commit, prefix, NAME_PREFIX_LIMIT_BYTES)
        self.commits_schema = schema if commits_schema is None else commits_schema
        for setting, value in (("schema", schema), ("table", table), ("commits_schema", self.commits_schema)):
            check_identifier(setting, value)
        self.target = Target.of(
            table,
            mode,
            key_columns,
            schema=schema,
            on_conflict=on_conflict,
            order_by=order_by,
            update_when=update_when,
            delete_when=delete_when,
        )
        if mode == UPSERT and commit == TWO_PHASE:
            raise ConfigurationError(
                "commit='two_phase' with mode='upsert': two slots, or two attempts of one, that have the same key "
                "would wait for each other's prepared transaction until both give up.",
                next_step="Leave commit out: commit='staged' writes the whole batch in one transaction.",
                setting="commit",
            )
        self.limits = Limits(
            slot_s=seconds("slot_timeout_s", slot_timeout_s),
            commit_s=seconds("commit_timeout_s", commit_timeout_s),
            lock_s=seconds("lock_timeout_s", lock_timeout_s),
        )
        self.conninfo = Conninfo.of(conninfo)
        self._table: CatalogTable | None = None

    def __repr__(self) -> str:
        return f"PostgresSink({self.conninfo}, table={self.target}, commit={self.commit!r}, name={self.name!r})"

    def __getstate__(self) -> dict[str, Any]:
        """Returns the state without the table, which each worker reads itself."""
        return {**self.__dict__, "_table": None, "schema": None}

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
        """Returns all columns of the query. The table must have each of them, with a type that can store its values.

        Raises:
            SchemaError: If columns do not fit, or required columns of the table are missing. The message names all of
                them.
        """
        if self.schema is None or not self.schema.equals(schema):
            from sparkonce.sinks.sql.postgres.preflight import read_target

            super().columns(schema)
            self._table = self._table or read_target(self)
            self._table.check(schema, self.target)
            self.schema = schema
        return tuple(schema.names)

    def preflight(self, query: str, recorded: Facts | None) -> Facts:
        """Checks the server, its limits, the table and permissions, and creates the table of markers."""
        from sparkonce.sinks.sql.postgres.preflight import preflight

        facts, self._table = preflight(self, query, recorded)
        self.schema = None  # so that the next call of `columns` compares the rows with the table that was just read
        return facts

    def worker_needs(self) -> WorkerNeeds:
        return WorkerNeeds(modules=("psycopg",), files=self.conninfo.files(), addresses=self.conninfo.addresses())

    def dialect(self) -> tuple[Dialect, str]:
        from sparkonce.sinks.sql.postgres.dialect import POSTGRES_DIALECT

        return POSTGRES_DIALECT, f"PostgreSQL at {self.conninfo}"
