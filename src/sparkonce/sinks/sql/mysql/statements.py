"""The SQL statements that write and merge rows."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from sparkonce.sinks.sql.mysql.connection import Flavour
from sparkonce.sinks.sql.mysql.names import quote
from sparkonce.sinks.sql.mysql.target import MySQLColumn
from sparkonce.sinks.sql.settings import APPEND, Target, read_by


def load_into(table: str, column_list: str) -> str:
    """Returns a LOAD DATA statement for the text of `sparkonce.sinks.sql.mysql.encoding.load_text`."""
    return (
        f"LOAD DATA LOCAL INFILE 'sparkonce' INTO TABLE {quote(table)} CHARACTER SET utf8mb4 "
        f"FIELDS TERMINATED BY '\\t' ESCAPED BY '\\\\' LINES TERMINATED BY '\\n' {column_list}"
    )


def insert_into(table: str, columns: Sequence[str]) -> str:
    """Returns the beginning of an INSERT statement."""
    return f"INSERT INTO {quote(table)} ({', '.join(quote(column) for column in columns)})"


def upsert_tail(flavour: Flavour, columns: Sequence[str], keys: Sequence[str]) -> str:
    """Returns the end of an ``INSERT … VALUES`` that replaces the other columns of a row with the same key."""
    value = flavour.new_value
    return f"{flavour.row_alias} ON DUPLICATE KEY UPDATE " + ", ".join(
        f"{quote(column)} = {value.format(quote(column))}" for column in updated(columns, keys)
    )


def merge_steps(stages: Sequence[str], target: Target, columns: Sequence[str]) -> list[str]:
    """Returns the statements that merge staging tables' rows into the target.

    Without rules, rows are merged in the order they were written. With rules, one row wins for each key. New
    keys are inserted first, which locks the rows of all keys: nobody can change them during the comparison.
    """
    keys, rules, table = target.keys, target.rules, quote(target.table)
    if not rules.given():
        names = ", ".join(f"sparkonce_stage.{quote(column)}" for column in columns)
        statement = (
            f"{insert_into(target.table, columns)} SELECT {names} "  # noqa: S608 - quoted
            f"FROM {quote(stages[0])} AS sparkonce_stage ORDER BY sparkonce_row"
        )
        if target.mode == APPEND:
            return [statement]
        first = f"{table}.{quote(columns[0])}"
        sets = f"{first} = {first}"
        if target.on_conflict == "update":
            sets = ", ".join(f"{table}.{quote(one)} = sparkonce_stage.{quote(one)}" for one in updated(columns, keys))
        return [f"{statement} ON DUPLICATE KEY UPDATE {sets}"]
    listed = ", ".join(map(quote, columns))
    more = rules.staged_only(sorted(read_by(rules.delete_when)), columns, fold=True)
    staged = ", ".join(map(quote, [*columns, *more]))
    # Combine the rows of all slots first. Otherwise, a row could delete a key before an older row in a later slot is
    # merged, which would insert the key again.
    rows = " UNION ALL ".join(
        f"SELECT {staged}, sparkonce_row, {slot} AS sparkonce_slot FROM {quote(stage)}"  # noqa: S608 - quoted
        for slot, stage in enumerate(stages)
    )
    last = [f"{quote(rules.order_by)} DESC"] if rules.order_by else []
    last += ["sparkonce_slot DESC", "sparkonce_row DESC"]
    rank = f"ROW_NUMBER() OVER (PARTITION BY {', '.join(map(quote, keys))} ORDER BY {', '.join(last)})"
    newest = (
        f"(SELECT {staged} FROM (SELECT {staged}, {rank} AS sparkonce_rank FROM ({rows}) AS sparkonce_stages) "  # noqa: S608 - quoted
        "AS sparkonce_ranked WHERE sparkonce_rank = 1) AS source"
    )
    same = " AND ".join(f"target.{quote(key)} = source.{quote(key)}" for key in keys)
    joined = f"{table} AS target JOIN {newest} ON {same}"
    newer, order = [], quote(rules.order_by)
    if rules.order_by:
        newer = [f"(target.{order} IS NULL OR source.{order} >= target.{order})"]
    steps, remaining = [], []
    if rules.delete_when:
        steps.append(f"DELETE target FROM {joined} WHERE {' AND '.join([*newer, _condition(rules.delete_when)])}")
        remaining = [f"{_condition(rules.delete_when)} IS NOT TRUE"]
    where = f" WHERE {remaining[0]}" if remaining else ""
    key = f"{table}.{quote(keys[0])}"
    new = f"SELECT {listed} FROM {newest}{where}"  # noqa: S608 - quoted
    steps.append(f"{insert_into(target.table, columns)} {new} ON DUPLICATE KEY UPDATE {key} = {key}")
    update = [*newer, *([_condition(rules.update_when)] if rules.update_when else []), *remaining]
    sets = ", ".join(f"target.{quote(one)} = source.{quote(one)}" for one in updated(columns, keys))
    steps.append(f"UPDATE {joined} SET {sets} WHERE {' AND '.join(update)}")  # noqa: S608 - quoted
    return steps


def _condition(text: str) -> str:
    return f"(\n{text}\n)"


def updated(columns: Sequence[str], keys: Sequence[str]) -> list[str]:
    """Returns the columns that an upsert sets. If there are only key columns, one of them is set to itself."""
    lower = {key.lower() for key in keys}
    others = [column for column in columns if column.lower() not in lower]
    return others or list(columns[:1])


ROW = "sparkonce_row"
"""The column of a staging table that numbers its rows. It is not written to the target."""


def stage_columns(columns: Sequence[MySQLColumn], known: Collection[str]) -> list[str]:
    """Returns the definitions of a staging table's columns."""
    only_staged = [definition(column) for column in columns if column.name not in known]
    written = [definition(column) for column in columns if column.name in known]
    return [*only_staged, f"{ROW} BIGINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY", *written]


def definition(column: MySQLColumn) -> str:
    """Returns the definition of a staging table's column, which accepts the same values as the target's."""
    null = "NULL" if column.nullable else "NOT NULL"
    return f"{quote(column.name)} {column.full_type} {column.collation} {null}"
