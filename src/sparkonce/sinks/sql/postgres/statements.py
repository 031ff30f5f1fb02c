"""This sink's SQL statements. psycopg quotes every name, and turns every value into a parameter or a literal."""

from __future__ import annotations

from collections.abc import Sequence

from psycopg import sql

from sparkonce.protocol.ownership import TransactionName
from sparkonce.sinks.sql.postgres.catalog import CatalogTable, PostgresColumn
from sparkonce.sinks.sql.postgres.names import staging_table
from sparkonce.sinks.sql.postgres.settings import COMMITS_TABLE
from sparkonce.sinks.sql.settings import Target, read_by, with_source

STAGED_STATE = "staged"
COMMITTED_STATE = "committed"

_SLOT, _PLACE = sql.Identifier("sparkonce slot"), sql.Identifier("sparkonce place")


def commits(schema: str) -> sql.Identifier:
    """Returns the name of the marker table."""
    return sql.Identifier(schema, COMMITS_TABLE)


COMMITS_COLUMNS = frozenset({"name", "prefix", "query", "batch", "state", "target", "begun"})
"""The columns of the table of markers."""


def create_commits(schema: str) -> sql.Composed:
    """Creates the table of markers."""
    return sql.SQL(
        "CREATE TABLE IF NOT EXISTS {} (name text PRIMARY KEY, prefix text NOT NULL, query text NOT NULL, "
        "batch bigint NOT NULL, state text NOT NULL, target text NOT NULL, begun timestamptz NOT NULL); "
        "CREATE INDEX IF NOT EXISTS sparkonce_commits_by_batch ON {} (query, batch)"
    ).format(commits(schema), commits(schema))


def insert_marker(schema: str, name: TransactionName, state: str, target: str) -> sql.Composed:
    """Adds a transaction's marker, with the time at which it began by the server's clock."""
    return sql.SQL("INSERT INTO {} VALUES ({}, {}, {}, {}, {}, {}, pg_catalog.clock_timestamp());").format(
        commits(schema), str(name), name.prefix, name.query, name.batch, state, target
    )


def create_staging(
    schema: str, name: TransactionName, table: CatalogTable, target: Target, columns: Sequence[str]
) -> sql.Composed:
    """Creates a task attempt's staging table: the written columns, and the target's checks that use only them.

    With these checks, the server refuses a row that violates one before the batch is decided.
    """
    known = {column.name: column for column in table.columns}
    # A deleting row has a key, and possibly nothing else.
    parts = [
        definition(known[name], may_be_null=bool(target.rules.delete_when) and name not in target.keys)
        for name in columns
    ]
    for check, about, condition in table.checks:
        if set(about) <= set(columns):
            parts.append(sql.SQL("CONSTRAINT {} CHECK ({})").format(sql.Identifier(check), sql.SQL(condition)))
    return sql.SQL("CREATE TABLE {} ({}) WITH (autovacuum_enabled = false);").format(
        sql.Identifier(schema, staging_table(name)), sql.SQL(", ").join(parts)
    )


def definition(column: PostgresColumn, *, may_be_null: bool) -> sql.Composed:
    """Returns the definition of a staging table's column."""
    # The server has formatted the type, so no quotes are needed.
    not_null = sql.SQL("" if may_be_null or not column.required else " NOT NULL")
    return sql.SQL("{} {}{}").format(sql.Identifier(column.name), sql.SQL(column.declared), not_null)


def merge(target: Target, columns: Sequence[str], staged: Sequence[sql.Composable]) -> sql.Composed:
    """Moves the rows of staging tables into the target, see `merge_steps`."""
    return sql.SQL("; ").join(merge_steps(target, columns, staged))


def merge_steps(target: Target, columns: Sequence[str], staged: Sequence[sql.Composable]) -> list[sql.Composed]:
    """Returns the statements that move the rows of staging tables to the target."""
    table = sql.Identifier(target.schema, target.table)
    into = sql.SQL("INSERT INTO {} AS target ({})").format(table, _names(columns))
    if target.mode == "append":
        return [sql.SQL("{} SELECT {} FROM {}").format(into, _names(columns), one) for one in staged]
    staged_columns = [*columns, *target.rules.staged_only(sorted(read_by(target.rules.delete_when)), columns)]
    numbered = [
        sql.SQL("SELECT {}, {} AS {}, ctid AS {} FROM {}").format(_names(staged_columns), number, _SLOT, _PLACE, one)
        for number, one in enumerate(staged)
    ]
    rows = sql.SQL(" UNION ALL ").join(numbered)
    if target.on_conflict == "nothing":
        # Without key columns, ON CONFLICT DO NOTHING applies to every unique index and exclusion constraint.
        arbiter = sql.SQL("({})").format(_names(target.keys)) if target.keys else sql.SQL("")
        return [
            sql.SQL("{} SELECT {} FROM ({}) AS r ORDER BY {}, {} ON CONFLICT {} DO NOTHING").format(
                into, _names(columns), rows, _SLOT, _PLACE, arbiter
            )
        ]
    last = [sql.SQL("{} DESC").format(one) for one in (_SLOT, _PLACE)]
    if target.rules.order_by:
        last.insert(0, sql.SQL("{} DESC NULLS LAST").format(sql.Identifier(target.rules.order_by)))
    newest = sql.SQL("SELECT DISTINCT ON ({}) {} FROM ({}) AS r ORDER BY {}, {}").format(
        _names(target.keys), _names(staged_columns), rows, _names(target.keys), sql.SQL(", ").join(last)
    )
    steps: list[sql.Composed] = []
    keep: sql.Composable = sql.SQL("")
    if target.rules.delete_when:
        condition = _condition(target.rules.delete_when)
        same = sql.SQL(" AND ").join(
            sql.SQL("target.{} = source.{}").format(*[sql.Identifier(key)] * 2) for key in target.keys
        )
        deletes = [same, *_newer(target, "source"), condition]
        steps.append(
            sql.SQL("DELETE FROM {} AS target USING ({}) AS source WHERE {}").format(
                table, newest, sql.SQL(" AND ").join(deletes)
            )
        )
        keep = sql.SQL(" WHERE ({}) IS NOT TRUE").format(condition)
    upsert = sql.SQL("{} SELECT {} FROM ({}) AS source{} ON CONFLICT ({}) DO {}").format(
        into, _names(columns), newest, keep, _names(target.keys), _update(target, columns)
    )
    return [*steps, upsert]


def _update(target: Target, columns: Sequence[str]) -> sql.Composable:
    others = [sql.Identifier(column) for column in columns if column not in target.keys]
    if not others:
        return sql.SQL("NOTHING")
    sets = sql.SQL(", ").join(sql.SQL("{} = EXCLUDED.{}").format(column, column) for column in others)
    conditions = _newer(target, "EXCLUDED")
    if target.rules.update_when:
        conditions.append(_condition(with_source(target.rules.update_when, "EXCLUDED")))
    where = sql.SQL(" WHERE {}").format(sql.SQL(" AND ").join(conditions)) if conditions else sql.SQL("")
    return sql.SQL("UPDATE SET {}{}").format(sets, where)


def _newer(target: Target, source: str) -> list[sql.Composable]:
    """Returns the condition that the batch's row is not older than the table's row. Null is older than any value."""
    if not target.rules.order_by:
        return []
    column = sql.Identifier(target.rules.order_by)
    return [sql.SQL("(target.{} IS NULL OR {}.{} >= target.{})").format(column, sql.SQL(source), column, column)]


def _condition(text: str) -> sql.Composable:
    return sql.SQL("(\n") + sql.SQL(text) + sql.SQL("\n)")


def _names(columns: Sequence[str]) -> sql.Composed:
    return sql.SQL(", ").join(map(sql.Identifier, columns))
