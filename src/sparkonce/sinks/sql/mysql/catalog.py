"""The target table as described by the server, and the Spark types that its columns store without changing a value.

A server in strict mode rejects a value that does not fit. However, it silently rounds microseconds, reads NULL as "now"
in a TIMESTAMP column and as "the next one" in an AUTO_INCREMENT column, and reads the text ``1`` as the first value of
an ENUM (measured with MariaDB 10.11). Such values are therefore rejected here.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from sparkonce.errors import PreflightError, SchemaError
from sparkonce.sink import spark_type
from sparkonce.sinks.sql.mysql.connection import MARIADB, Connection
from sparkonce.sinks.sql.settings import Target

_COLUMNS = (
    "SELECT TABLE_NAME, COLUMN_NAME, DATA_TYPE, COLUMN_TYPE, IS_NULLABLE, COLUMN_DEFAULT, EXTRA, DATETIME_PRECISION, "
    "CHARACTER_SET_NAME, COLLATION_NAME FROM information_schema.COLUMNS "
    "WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = %s ORDER BY ORDINAL_POSITION"
)
_CHECKS = (
    "SELECT CONSTRAINT_NAME, CHECK_CLAUSE FROM information_schema.CHECK_CONSTRAINTS "
    "WHERE CONSTRAINT_SCHEMA = DATABASE() AND TABLE_NAME = %s ORDER BY CONSTRAINT_NAME"
)
_CHECKS_OF_STAGES = (
    "SELECT TABLE_NAME, CONSTRAINT_NAME, CHECK_CLAUSE FROM information_schema.CHECK_CONSTRAINTS "
    "WHERE CONSTRAINT_SCHEMA = DATABASE() AND TABLE_NAME IN ({})"
)
_NULLS_OF_STAGES = (
    "SELECT COUNT(*) FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = DATABASE() AND IS_NULLABLE = 'YES' "
    "AND TABLE_NAME IN ({}) AND COLUMN_NAME IN ({})"
)
_KEYS = (
    "SELECT INDEX_NAME, COLUMN_NAME, SUB_PART FROM information_schema.STATISTICS WHERE TABLE_SCHEMA = DATABASE() "
    "AND TABLE_NAME = %s AND NON_UNIQUE = 0 ORDER BY INDEX_NAME, SEQ_IN_INDEX"
)
_ANY_CHECK = (
    "SELECT 1 FROM information_schema.TABLE_CONSTRAINTS WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = %s "
    "AND CONSTRAINT_TYPE = 'CHECK' LIMIT 1"
)
_REFUSERS = (
    "SELECT (SELECT COUNT(*) FROM information_schema.KEY_COLUMN_USAGE WHERE REFERENCED_TABLE_NAME IS NOT NULL "
    "AND (TABLE_SCHEMA = DATABASE() AND TABLE_NAME = %s "
    "OR REFERENCED_TABLE_SCHEMA = DATABASE() AND REFERENCED_TABLE_NAME = %s)) + "
    "(SELECT COUNT(*) FROM information_schema.TRIGGERS WHERE EVENT_OBJECT_SCHEMA = DATABASE() "
    "AND EVENT_OBJECT_TABLE = %s AND EVENT_MANIPULATION IN ('INSERT', %s)) + "
    "(SELECT COUNT(*) FROM information_schema.PARTITIONS WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = %s "
    "AND REGEXP_INSTR(PARTITION_METHOD, '^(RANGE|LIST)') > 0 AND NOT EXISTS "
    "(SELECT 1 FROM information_schema.PARTITIONS WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = %s "
    "AND PARTITION_DESCRIPTION IN ('MAXVALUE', 'DEFAULT')))"
)
_QUOTED = re.compile(r"`((?:[^`]|``)*)`")
_ENUM_VALUE = re.compile(r"'((?:[^']|'')*)'")

_INTEGERS = frozenset({"tinyint", "smallint", "mediumint", "int", "bigint"})
_TEXTS = frozenset({"char", "varchar", "tinytext", "text", "mediumtext", "longtext", "json"})
_BYTES = frozenset({"binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob"})
_TIMES = frozenset({"datetime", "timestamp"})
_FROM_TEXT = frozenset({"enum", "set", "uuid", "inet4", "inet6", "time", "year"})
_UNSIGNED = "bigint unsigned"
"""The type for decimals without a fraction, which can be larger than any integer type of Spark."""
_WHOLE = _INTEGERS | {"bit", "decimal"}

TAKES: dict[str, frozenset[str]] = {
    "boolean": _WHOLE,
    "integer": _WHOLE | {"double"},
    "decimal": frozenset({"decimal", _UNSIGNED}),
    "float": frozenset({"float", "double"}),
    "double": frozenset({"double"}),
    "string": _TEXTS | _FROM_TEXT,
    "binary": _BYTES,
    "date": frozenset({"date", *_TIMES}),
    "timestamp": _TIMES,
    "nested": frozenset({"json", "longtext", "mediumtext", "text"}),
}
"""The column types that accept each kind of value. Other types might change a value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MySQLColumn:
    """A column of the target table.

    Attributes:
        type: The type's name in lower case, such as ``int``; with its digits for ``double(7,2)``, which would round.
        full_type: The type with length and sign, such as ``int(10) unsigned``.
        optional: True if a row may be inserted without it.
        automatic: True if it is AUTO_INCREMENT.
        fraction_digits: The digits of fractional seconds, for ``datetime``, ``timestamp`` and ``time``.
        collation: Character set and collation, as part of a column definition; empty for types that have none.
    """

    name: str
    type: str
    full_type: str
    nullable: bool = True
    optional: bool = True
    automatic: bool = False
    generated: bool = False
    fraction_digits: int = 6
    collation: str = ""

    @property
    def choices(self) -> list[str]:
        """Returns the values of an ENUM or a SET."""
        return [value.replace("''", "'") for value in _ENUM_VALUE.findall(self.full_type)]


def describe(connection: Connection, table: str) -> list[MySQLColumn]:
    """Returns the columns of a table; none if it does not exist, or the user may not see it."""
    rows = connection.rows(_COLUMNS, (table,))
    exact = [row for row in rows if row[0] == table]
    return [_column(row) for row in exact or rows]


def checks_of(connection: Connection, table: str, columns: Sequence[str]) -> dict[str, str]:
    """Returns a table's CHECK conditions that use only these columns, by name. Each JSON column has one, too.

    Only for MariaDB: on MySQL, the columns of staging tables have the JSON type itself.
    """
    return {
        str(name): str(condition)
        for name, condition in connection.rows(_CHECKS, (table,))
        if {one.replace("``", "`") for one in _QUOTED.findall(str(condition))} <= set(columns)
    }


def may_refuse(connection: Connection, target: Target, columns: Sequence[str], staged: Sequence[str]) -> bool:
    """Returns True if a table may reject a row that these staging tables have accepted.

    On MariaDB, staging tables also have the CHECKs that use only written columns, unless those were added later.
    """
    table, keys = target.table, target.keys
    if target.rules.conditions:
        return True
    written = {column.lower() for column in columns}
    known = describe(connection, table)
    # Ignore keys that the server generates: a trial merge would prove nothing about them.
    drawn = {one.name.lower() for one in known if one.automatic} - written
    unique, partial = unique_keys(connection, table)
    lower = {index: {name.lower() for name in names} for index, names in unique.items()}
    own = {index for index in lower.keys() - partial if lower[index] == {key.lower() for key in keys}}
    if any(not lower[index] & drawn for index in lower.keys() - own) or any(one.generated for one in known):
        return True
    stages = ", ".join(["%s"] * len(staged))
    if needed := [one.name for one in known if not one.nullable]:
        if any(not one.optional and one.name.lower() not in written for one in known):
            return True
        nullable = _NULLS_OF_STAGES.format(stages, ", ".join(["%s"] * len(needed)))
        if connection.row(nullable, (*staged, *needed)) != (0,):
            return True
    (count,) = connection.row(_REFUSERS, (table, table, table, "UPDATE" if keys else "", table, table))
    if count or connection.flavour is not MARIADB:
        return bool(count or connection.rows(_ANY_CHECK, (table,)))
    if not (every := connection.rows(_CHECKS, (table,))):
        return False
    checks = checks_of(connection, table, columns)
    found = {tuple(map(str, row)) for row in connection.rows(_CHECKS_OF_STAGES.format(stages), staged)}
    is_newer = any((stage, *check) not in found for stage in staged for check in checks.items())
    return is_newer or len(every) > len(checks)


def unique_keys(connection: Connection, table: str) -> tuple[dict[str, list[str]], set[str]]:
    """Returns the columns of each unique key, by the key's name, and the keys that cover only a part of a column."""
    rows = connection.rows(_KEYS, (table,))
    found: dict[str, list[str]] = {}
    for index, column, _ in rows:
        found.setdefault(str(index), []).append(str(column))
    return found, {str(index) for index, _, part in rows if part is not None}


def _column(row: Sequence[object]) -> MySQLColumn:
    _, name, kind, full, nullable, default, extra, digits, charset, collation = row
    extras = str(extra or "").lower()
    automatic = "auto_increment" in extras
    generated = "generated" in extras and "default_generated" not in extras
    return MySQLColumn(
        name=str(name),
        type=str(full if str(kind).lower() in {"double", "float"} and "(" in str(full) else kind).lower(),
        full_type=str(full),
        nullable=str(nullable) == "YES",
        optional=str(nullable) == "YES" or default is not None or automatic or generated,
        automatic=automatic,
        generated=generated or "invisible" in extras,
        fraction_digits=int(str(digits)) if digits is not None else 6,
        collation=f"CHARACTER SET {charset} COLLATE {collation}" if charset and collation else "",
    )


def kind_of(kind: pa.DataType) -> str:
    """Returns the kind of values that an Arrow type holds; empty if the sink does not support it."""
    tests = (
        (pa.types.is_boolean, "boolean"),
        (pa.types.is_integer, "integer"),
        (pa.types.is_decimal, "decimal"),
        (pa.types.is_float32, "float"),
        (pa.types.is_float64, "double"),
        (lambda one: pa.types.is_string(one) or pa.types.is_large_string(one), "string"),
        (lambda one: pa.types.is_binary(one) or pa.types.is_large_binary(one), "binary"),
        (pa.types.is_date32, "date"),
        (pa.types.is_timestamp, "timestamp"),
        (_is_nested_json, "nested"),
    )
    return next((name for test, name in tests if test(kind)), "")


def _is_nested_json(kind: pa.DataType) -> bool:
    """Returns True for an array or a struct with a lossless form in JSON."""
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _is_json(kind.value_type)
    return bool(pa.types.is_struct(kind)) and all(map(_is_json, (field.type for field in kind)))


def _is_json(kind: pa.DataType) -> bool:
    return kind_of(kind) not in {"", "binary"}


def check_kinds(schema: pa.Schema) -> None:
    """Raises `SchemaError` if the sink does not support a column's type, regardless of the table."""
    for field in schema:
        if not kind_of(field.type):
            what = f"Column {field.name!r} is {spark_type(field.type)}, which the sink cannot write."
            raise SchemaError(what, next_step="Cast it, turn it into a string (to_json), or drop it.")


_STAGED = {
    "boolean": "tinyint(1)",
    "integer": "bigint",
    "float": "double",
    "double": "double",
    "string": "longtext",
    "binary": "longblob",
    "date": "date",
    "timestamp": "datetime(6)",
    "nested": "longtext",
}


def _staged_column(field: pa.Field) -> MySQLColumn:
    """Returns a staging table's column that the target lacks. Such a column only determines whether a row deletes."""
    kind = kind_of(field.type)
    full = f"decimal({field.type.precision},{field.type.scale})" if kind == "decimal" else _STAGED[kind]
    collation = "CHARACTER SET utf8mb4 COLLATE utf8mb4_bin" if full == "longtext" else ""
    return MySQLColumn(name=field.name, type=full.partition("(")[0], full_type=full, collation=collation)


def bind(target: Target, columns: Sequence[MySQLColumn], schema: pa.Schema) -> list[MySQLColumn]:
    """Returns the table's column for each column of the rows, or the staging table's, see `UpsertRules.staged_only`.

    Raises `PreflightError` if a column is missing, or the table cannot store it unchanged.
    """
    table = target.table
    by_name = {column.name.lower(): column for column in columns}
    staged_only = target.rules.staged_only(schema.names, by_name, fold=True)
    by_name |= {name.lower(): _staged_column(schema.field(name)) for name in staged_only}
    bound = [_bound(table, by_name, field) for field in schema]
    written = {column.name for column in bound}
    if len(written) != len(bound):
        what = f"Columns {schema.names} name a column of table {table!r} twice: its names are the same in either case."
        raise PreflightError(what, next_step="Rename or drop one of them.")
    missing = [column.name for column in columns if not column.optional and column.name not in written]
    if missing:
        what = f"Table {table!r} needs a value in {missing}, which have no default and are not among the rows' columns."
        raise PreflightError(what, next_step="Add them to the DataFrame, or give them a default in the table.")
    return bound


def _bound(table: str, by_name: dict[str, MySQLColumn], field: pa.Field) -> MySQLColumn:
    column = by_name.get(field.name.lower())
    if column is None:
        what = f"Table {table!r} has no column {field.name!r}; it has {sorted(one.name for one in by_name.values())}."
        raise PreflightError(what, next_step="Rename or drop the column, or add it to the table.")
    if column.generated:
        what = f"Column {column.name!r} of table {table!r} is generated by the server."
        raise PreflightError(what, next_step="Drop it from the DataFrame.")
    kind = kind_of(field.type)
    taken = TAKES.get(kind, frozenset())
    is_whole = kind == "decimal" and field.type.scale == 0 and column.full_type.startswith("bigint")
    name = _UNSIGNED if is_whole and "unsigned" in column.full_type else column.type
    if name not in taken:
        to = " to string" if column.type in _FROM_TEXT else ""
        raise PreflightError(
            f"Column {column.name!r} of table {table!r} is {column.full_type}, and the rows have "
            f"{spark_type(field.type)}: values might change.",
            next_step=f"Cast it{to} in the DataFrame, or use one of {', '.join(sorted(taken))} in the table.",
        )
    return column


def check_names(schema: pa.Schema, key_columns: Sequence[str]) -> None:
    """Raises `SchemaError` if the rows lack a key column of an upsert."""
    have = {name.lower() for name in schema.names}
    for key in key_columns:
        if key.lower() not in have:
            what = f"key_columns names {key!r}, and the rows have {schema.names}."
            raise SchemaError(what, next_step="Add the column to the DataFrame, or name another.")
