"""The statements of this sink. psycopg quotes every name, and makes a parameter or a literal of every value."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from psycopg import sql

from sparkonce.protocol.ownership import TransactionName
from sparkonce.sinks.postgres.catalog import Table
from sparkonce.sinks.postgres.names import staging_table
from sparkonce.sinks.postgres.settings import COMMITS_TABLE, Target

STAGED_STATE = "staged"
COMMITTED_STATE = "committed"

_SLOT, _PLACE = sql.Identifier("sparkonce slot"), sql.Identifier("sparkonce place")


def commits(schema: str) -> sql.Identifier:
    """Returns the name of the table of markers."""
    return sql.Identifier(schema, COMMITS_TABLE)


COMMITS_COLUMNS = frozenset({"name", "prefix", "query", "batch", "state", "target", "begun"})
"""The columns of the table of markers."""


def create_commits(schema: str) -> sql.Composed:
    """Makes the table of markers."""
    return sql.SQL(
        "CREATE TABLE IF NOT EXISTS {} (name text PRIMARY KEY, prefix text NOT NULL, query text NOT NULL, "
        "batch bigint NOT NULL, state text NOT NULL, target text NOT NULL, begun timestamptz NOT NULL); "
        "CREATE INDEX IF NOT EXISTS sparkonce_commits_by_batch ON {} (query, batch)"
    ).format(commits(schema), commits(schema))


def insert_marker(schema: str, name: TransactionName, state: str, target: str) -> sql.Composed:
    """Adds a transaction's marker, with the server's time of its begin."""
    return sql.SQL("INSERT INTO {} VALUES ({}, {}, {}, {}, {}, {}, pg_catalog.clock_timestamp());").format(
        commits(schema), str(name), name.prefix, name.query, name.batch, state, target
    )


def create_staging(schema: str, name: TransactionName, table: Table, columns: Sequence[str]) -> sql.Composed:
    """Makes a copy's staging table: the columns that are written, with the target's checks of these alone.

    So a row that such a check refuses is refused before the batch is decided.
    """
    known = {column.name: column for column in table.columns}
    parts: list[sql.Composable] = []
    for column in columns:
        # The server has written the type itself, so it needs no quotes.
        declared = sql.SQL(known[column].declared)
        not_null = sql.SQL(" NOT NULL" if known[column].required else "")
        parts.append(sql.SQL("{} {}{}").format(sql.Identifier(column), declared, not_null))
    for check, about, condition in table.checks:
        if set(about) <= set(columns):
            parts.append(sql.SQL("CONSTRAINT {} CHECK ({})").format(sql.Identifier(check), sql.SQL(condition)))
    return sql.SQL("CREATE TABLE {} ({}) WITH (autovacuum_enabled = false);").format(
        sql.Identifier(schema, staging_table(name)), sql.SQL(", ").join(parts)
    )


def copy_into(schema: str, table: str, columns: Sequence[str], *, freeze: bool = False) -> sql.Composed:
    """Takes rows in binary."""
    options = sql.SQL("FORMAT binary, FREEZE" if freeze else "FORMAT binary")
    return sql.SQL("COPY {} ({}) FROM STDIN ({})").format(sql.Identifier(schema, table), _names(columns), options)


def drop_staging(schema: str, names: Iterable[TransactionName]) -> sql.Composed:
    """Drops staging tables; one that is gone is no error."""
    tables = sql.SQL(", ").join(sql.Identifier(schema, staging_table(name)) for name in names)
    return sql.SQL("DROP TABLE IF EXISTS {}").format(tables)


def merge(target: Target, columns: Sequence[str], staged: Sequence[sql.Identifier]) -> sql.Composed:
    """Moves the rows of staging tables into the target.

    Args:
        target: The table and its rules.
        columns: The columns that were written.
        staged: The staging tables, by slot: of rows with the same key the last one wins.
    """
    into = sql.SQL("INSERT INTO {} ({})").format(sql.Identifier(target.schema, target.table), _names(columns))
    if target.mode == "append":
        moves = [sql.SQL("{} SELECT {} FROM {}").format(into, _names(columns), table) for table in staged]
        return sql.SQL("; ").join(moves)
    numbered = [
        sql.SQL("SELECT {}, {} AS {}, ctid AS {} FROM {}").format(_names(columns), number, _SLOT, _PLACE, table)
        for number, table in enumerate(staged)
    ]
    rows = sql.SQL(" UNION ALL ").join(numbered)
    if target.on_conflict == "nothing":
        # Without keys: whichever unique index or exclusion constraint finds a row.
        arbiter = sql.SQL("({})").format(_names(target.keys)) if target.keys else sql.SQL("")
        return sql.SQL("{} SELECT {} FROM ({}) AS r ORDER BY {}, {} ON CONFLICT {} DO NOTHING").format(
            into, _names(columns), rows, _SLOT, _PLACE, arbiter
        )
    last = [sql.SQL("{} DESC").format(one) for one in (_SLOT, _PLACE)]
    if target.order_by:
        last.insert(0, sql.SQL("{} DESC NULLS LAST").format(sql.Identifier(target.order_by)))
    return sql.SQL("{} SELECT DISTINCT ON ({}) {} FROM ({}) AS r ORDER BY {}, {} ON CONFLICT ({}) DO {}").format(
        into,
        _names(target.keys),
        _names(columns),
        rows,
        _names(target.keys),
        sql.SQL(", ").join(last),
        _names(target.keys),
        _update(target, columns),
    )


def _update(target: Target, columns: Sequence[str]) -> sql.Composable:
    others = [sql.Identifier(column) for column in columns if column not in target.keys]
    if not others:
        return sql.SQL("NOTHING")
    sets = [sql.SQL("{} = EXCLUDED.{}").format(column, column) for column in others]
    return sql.SQL("UPDATE SET {}").format(sql.SQL(", ").join(sets))


def _names(columns: Sequence[str]) -> sql.Composed:
    return sql.SQL(", ").join(map(sql.Identifier, columns))
