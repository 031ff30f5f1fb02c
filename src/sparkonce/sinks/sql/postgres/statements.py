"""This sink's SQL statements. Names are quoted, and psycopg turns values into literals."""

from __future__ import annotations

from collections.abc import Sequence

from psycopg import sql

from sparkonce.protocol.ownership import TransactionName
from sparkonce.sinks.sql.postgres.catalog import CatalogTable, PostgresColumn
from sparkonce.sinks.sql.postgres.settings import COMMITS_TABLE, staging_table
from sparkonce.sinks.sql.settings import APPEND, Target, condition, conditions, quoted, same_keys, staged_columns

STAGED_STATE = "staged"
COMMITTED_STATE = "committed"
_ORDER = '"sparkonce slot"{0}, "sparkonce place"{0}'


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
) -> str:
    """Creates a task attempt's staging table: the written columns, and the target's checks that use only them.

    With these checks, the server rejects a row that violates one before the batch is decided. The comment shows
    whether the target has changed since.
    """
    known = {column.name: column for column in table.columns}
    # A row that deletes has a key, and possibly nothing else.
    parts = [
        definition(known[name], may_be_null=bool(target.rules.delete_when) and name not in target.keys)
        for name in columns
    ]
    parts += [
        f"CONSTRAINT {quoted(check)} CHECK ({text})"
        for check, about, text in table.checks
        if set(about) <= set(columns)
    ]
    staging = quoted(schema, staging_table(name))
    return (
        f"CREATE TABLE {staging} ({', '.join(parts)}) WITH (autovacuum_enabled = false); "
        f"COMMENT ON TABLE {staging} IS '{table.definition}';"
    )


def definition(column: PostgresColumn, *, may_be_null: bool) -> str:
    """Returns the definition of a staging table's column."""
    # The server itself formatted the type name, so it needs no quotes.
    return f"{quoted(column.name)} {column.declared}{'' if may_be_null or not column.required else ' NOT NULL'}"


def merge_steps(target: Target, columns: Sequence[str], staged: Sequence[str]) -> list[str]:
    """Returns the statements that move the rows of staging tables, named in SQL, to the target."""
    rules, written, keys = target.rules, names(columns), names(target.keys)
    into = f"INSERT INTO {target} AS target ({written})"
    if target.mode == APPEND:
        return [f"{into} SELECT {written} FROM {one}" for one in staged]
    read = names(staged_columns(target, columns))
    rows = " UNION ALL ".join(
        f'SELECT {read}, {slot} AS "sparkonce slot", ctid AS "sparkonce place" FROM {one}'
        for slot, one in enumerate(staged)
    )
    if target.on_conflict == "nothing":
        # Without key columns, ON CONFLICT DO NOTHING applies to every unique index and exclusion constraint.
        arbiter = f"({keys})" if keys else ""
        return [
            f"{into} SELECT {written} FROM ({rows}) AS r ORDER BY {_ORDER.format('')} ON CONFLICT {arbiter} DO NOTHING"
        ]
    order = f"{quoted(rules.order_by)} DESC NULLS LAST, " if rules.order_by else ""
    order = f"{keys}, {order}{_ORDER.format(' DESC')}"
    newest = f"(SELECT DISTINCT ON ({keys}) {read} FROM ({rows}) AS r ORDER BY {order}) AS source"
    steps, kept, action = [], "", "NOTHING"
    if rules.delete_when:
        deleted = [same_keys(target, quoted), *conditions(target, quoted, rules.delete_when)]
        steps = [f"DELETE FROM {target} AS target USING {newest} WHERE {' AND '.join(deleted)}"]
        kept = f" WHERE {condition(rules.delete_when)} IS NOT TRUE"
    if others := [quoted(column) for column in columns if column not in target.keys]:
        replaced = " AND ".join(conditions(target, quoted, rules.update_when, "EXCLUDED"))
        sets = ", ".join(f"{column} = EXCLUDED.{column}" for column in others)
        action = f"UPDATE SET {sets}{replaced and f' WHERE {replaced}'}"
    return [*steps, f"{into} SELECT {written} FROM {newest}{kept} ON CONFLICT ({keys}) DO {action}"]


def names(columns: Sequence[str]) -> str:
    """Returns quoted names, separated by commas."""
    return ", ".join(map(quoted, columns))
