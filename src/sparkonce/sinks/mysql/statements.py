"""The statements that write and merge rows."""

from __future__ import annotations

from collections.abc import Sequence

from sparkonce.sinks._shared.settings import UpsertRules
from sparkonce.sinks.mysql.connection import Flavour
from sparkonce.sinks.mysql.markers import quote
from sparkonce.sinks.mysql.target import MySQLColumn


def load_into(table: str, column_list: str) -> str:
    """Returns LOAD DATA for the text of `sparkonce.sinks.mysql.encoding.load_text`."""
    return (
        f"LOAD DATA LOCAL INFILE 'sparkonce' INTO TABLE {quote(table)} CHARACTER SET utf8mb4 "
        f"FIELDS TERMINATED BY '\\t' ESCAPED BY '\\\\' LINES TERMINATED BY '\\n' {column_list}"
    )


def insert_into(table: str, columns: Sequence[str]) -> str:
    """Returns the head of an INSERT."""
    return f"INSERT INTO {quote(table)} ({', '.join(quote(column) for column in columns)})"


def placeholders(count: int) -> str:
    """Returns a row of a prepared INSERT."""
    return f"({', '.join('?' * count)})"


def upsert_tail(flavour: Flavour, columns: Sequence[str], keys: Sequence[str]) -> str:
    """Returns the tail that makes an ``INSERT … VALUES`` replace the other columns of a row with the same key."""
    value = flavour.new_value
    return f"{flavour.row_alias} ON DUPLICATE KEY UPDATE " + ", ".join(
        f"{quote(column)} = {value.format(quote(column))}" for column in updated(columns, keys)
    )


def merge(stage: str, table: str, columns: Sequence[str], keys: Sequence[str], on_conflict: str = "") -> str:
    """Merges a staging table's rows into the target, in the order in which they were written.

    Args:
        stage: The staging table.
        table: The target.
        columns: The columns that the staging table has of the target.
        keys: The key columns of an upsert; none to append.
        on_conflict: What appended rows do whose keys are there: ``nothing``, or ``update`` them. Empty to fail.
    """
    names = ", ".join(f"sparkonce_stage.{quote(column)}" for column in columns)
    statement = (
        f"{insert_into(table, columns)} SELECT {names} "  # noqa: S608 - quoted
        f"FROM {quote(stage)} AS sparkonce_stage ORDER BY sparkonce_row"
    )
    if not keys and not on_conflict:
        return statement
    if not keys and on_conflict == "nothing":
        same = f"{quote(table)}.{quote(columns[0])}"
        return f"{statement} ON DUPLICATE KEY UPDATE {same} = {same}"
    sets = ", ".join(
        f"{quote(table)}.{quote(column)} = sparkonce_stage.{quote(column)}" for column in updated(columns, keys)
    )
    return f"{statement} ON DUPLICATE KEY UPDATE {sets}"


def upsert_steps(stage: str, table: str, columns: Sequence[str], keys: Sequence[str], rules: UpsertRules) -> list[str]:
    """Returns the statements that merge a staging table by rules: of each key one row of it counts.

    New keys are inserted first. That locks the rows of all keys, so that nobody changes them before they are compared.
    """
    listed = ", ".join(map(quote, columns))
    last = [*([f"{quote(rules.order_by)} DESC"] if rules.order_by else []), "sparkonce_row DESC"]
    rank = f"ROW_NUMBER() OVER (PARTITION BY {', '.join(map(quote, keys))} ORDER BY {', '.join(last)})"
    newest = (
        f"(SELECT {listed} FROM (SELECT {listed}, {rank} AS sparkonce_rank FROM {quote(stage)}) AS sparkonce_ranked "  # noqa: S608 - quoted
        "WHERE sparkonce_rank = 1) AS source"
    )
    same = " AND ".join(f"target.{quote(key)} = source.{quote(key)}" for key in keys)
    joined = f"{quote(table)} AS target JOIN {newest} ON {same}"
    newer, order = [], quote(rules.order_by)
    if rules.order_by:
        newer = [f"(target.{order} IS NULL OR source.{order} >= target.{order})"]
    steps, remaining = [], []
    if rules.delete_when:
        steps.append(f"DELETE target FROM {joined} WHERE {' AND '.join([*newer, _condition(rules.delete_when)])}")
        remaining = [f"{_condition(rules.delete_when)} IS NOT TRUE"]
    where = f" WHERE {remaining[0]}" if remaining else ""
    key = f"{quote(table)}.{quote(keys[0])}"
    new = f"SELECT {listed} FROM {newest}{where}"  # noqa: S608 - quoted
    steps.append(f"{insert_into(table, columns)} {new} ON DUPLICATE KEY UPDATE {key} = {key}")
    update = [*newer, *([_condition(rules.update_when)] if rules.update_when else []), *remaining]
    sets = ", ".join(f"target.{quote(one)} = source.{quote(one)}" for one in updated(columns, keys))
    steps.append(f"UPDATE {joined} SET {sets} WHERE {' AND '.join(update)}")  # noqa: S608 - quoted
    return steps


def _condition(text: str) -> str:
    return f"(\n{text}\n)"


def updated(columns: Sequence[str], keys: Sequence[str]) -> list[str]:
    """Returns the columns that an upsert sets; a key sets itself where there is no other."""
    lower = {key.lower() for key in keys}
    others = [column for column in columns if column.lower() not in lower]
    return others or list(columns[:1])


def definition(column: MySQLColumn) -> str:
    """Returns the definition of a staging table's column, which takes the values that the target's takes."""
    null = "NULL" if column.nullable else "NOT NULL"
    return f"{quote(column.name)} {column.full_type} {column.collation} {null}"
