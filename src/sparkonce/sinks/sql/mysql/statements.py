"""The SQL statements that write and merge rows."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from sparkonce.sinks.sql.mysql.catalog import MySQLColumn
from sparkonce.sinks.sql.mysql.settings import quote
from sparkonce.sinks.sql.settings import APPEND, Target, condition, conditions, same_keys, staged_columns

ROW = "sparkonce_row"
"""The column of a staging table that numbers its rows. It is not written to the target."""


def insert_into(table: str, columns: Sequence[str]) -> str:
    """Returns the beginning of an INSERT statement."""
    return f"INSERT INTO {quote(table)} ({', '.join(quote(column) for column in columns)})"


def merge_steps(stages: Sequence[str], target: Target, columns: Sequence[str]) -> list[str]:
    """Returns the statements that merge staging tables' rows into the target.

    Without rules, rows are merged in the order they were written. With rules, one row wins for each key. New
    keys are inserted first, which locks the rows of all keys: nobody can change them during the comparison.
    """
    keys, rules, table, into = target.keys, target.rules, quote(target.table), insert_into(target.table, columns)
    if not rules.to_dict():
        names = ", ".join(f"sparkonce_stage.{quote(column)}" for column in columns)
        statement = f"{into} SELECT {names} FROM {quote(stages[0])} AS sparkonce_stage ORDER BY {ROW}"
        if target.mode == APPEND:
            return [statement]
        source, others = "sparkonce_stage", updated(columns, keys)
        if target.on_conflict != "update":
            source, others = table, list(columns[:1])
        sets = ", ".join(f"{table}.{quote(one)} = {source}.{quote(one)}" for one in others)
        return [f"{statement} ON DUPLICATE KEY UPDATE {sets}"]
    staged = ", ".join(map(quote, staged_columns(target, columns, fold=True)))
    # Combine the rows of all slots first. Otherwise, a row could delete a key before an older row in a later slot is
    # merged, which would insert the key again.
    rows = " UNION ALL ".join(
        f"SELECT {staged}, {ROW}, {slot} AS sparkonce_slot FROM {quote(stage)}" for slot, stage in enumerate(stages)
    )
    order = f"{quote(rules.order_by)} DESC, " if rules.order_by else ""
    order += f"sparkonce_slot DESC, {ROW} DESC"
    rank = f"ROW_NUMBER() OVER (PARTITION BY {', '.join(map(quote, keys))} ORDER BY {order}) AS sparkonce_rank"
    newest = (
        f"(SELECT {staged} FROM (SELECT {staged}, {rank} FROM ({rows}) AS sparkonce_stages) AS sparkonce_ranked "
        "WHERE sparkonce_rank = 1) AS source"
    )
    joined = f"{table} AS target JOIN {newest} ON {same_keys(target, quote)}"
    steps, kept = [], ""
    if rules.delete_when:
        deleted = conditions(target, quote, rules.delete_when)
        steps = [f"DELETE target FROM {joined} WHERE {' AND '.join(deleted)}"]
        kept = f"{condition(rules.delete_when)} IS NOT TRUE"
    new = f"SELECT {', '.join(map(quote, columns))} FROM {newest}{kept and f' WHERE {kept}'}"
    key = f"{table}.{quote(keys[0])}"
    sets = ", ".join(f"target.{quote(one)} = source.{quote(one)}" for one in updated(columns, keys))
    replaced = " AND ".join(filter(None, [*conditions(target, quote, rules.update_when), kept]))
    return [
        *steps,
        f"{into} {new} ON DUPLICATE KEY UPDATE {key} = {key}",
        f"UPDATE {joined} SET {sets} WHERE {replaced}",
    ]


def updated(columns: Sequence[str], keys: Sequence[str]) -> list[str]:
    """Returns the columns that an upsert sets. If there are only key columns, one of them is set to itself."""
    lower = {key.lower() for key in keys}
    others = [column for column in columns if column.lower() not in lower]
    return others or list(columns[:1])


def stage_columns(columns: Sequence[MySQLColumn], known: Collection[str]) -> list[str]:
    """Returns the definitions of a staging table's columns."""
    only_staged = [definition(column) for column in columns if column.name not in known]
    written = [definition(column) for column in columns if column.name in known]
    return [*only_staged, f"{ROW} BIGINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY", *written]


def definition(column: MySQLColumn) -> str:
    """Returns the definition of a staging table's column, which accepts the same values as the target's."""
    null = "NULL" if column.nullable else "NOT NULL"
    return f"{quote(column.name)} {column.full_type} {column.collation} {null}"
