"""Reads the table from the server's catalog, and compares it with the columns of the query."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import psycopg
import pyarrow as pa
from psycopg import sql

from sparkonce.errors import SchemaError
from sparkonce.sinks._shared.preflight import refusal
from sparkonce.sinks.sql.postgres.connection import Connection
from sparkonce.sinks.sql.postgres.encoding import Encode, ReadText, ServerType, encoder, staged_type
from sparkonce.sinks.sql.settings import Target, quoted

MEND_PARTITION = "ALTER TABLE … SET LOGGED; take a foreign partition off by ALTER TABLE … DETACH PARTITION."
"""The next step if `CatalogTable.fragile` is not empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresColumn:
    """A column of the table.

    Attributes:
        type: Its type; for a domain, the underlying type.
        declared: The type and its collation, as SQL.
        filled: True if the server provides a value if the column is omitted.
        computed: True if the column cannot be written at all.
    """

    name: str
    type: ServerType
    declared: str
    required: bool
    filled: bool
    computed: bool


@dataclass(frozen=True, slots=True)
class CatalogTable:
    """The table.

    Attributes:
        kind: ``pg_class.relkind``.
        definition: A value that changes with the table's columns, their types and NOT NULLs, and its check constraints.
        fragile: The tables (itself or partitions) that may lose rows in a crash, and why; empty if there are none.
        checks: Its check constraints, each with its name, the columns that it uses and its condition in SQL.
    """

    oid: int
    kind: str
    definition: str
    fragile: str
    columns: tuple[PostgresColumn, ...]
    checks: tuple[tuple[str, tuple[str, ...], str], ...]

    def check(self, schema: pa.Schema, target: Target) -> None:
        """Raises `SchemaError`, with all problems, if a column of the query cannot be written."""
        columns = {column.name: column for column in self.staged(schema, target).columns}
        problems: dict[str, str] = {}
        if unknown := [name for name in schema.names if name not in columns]:
            alike = {name: one for name in unknown for one in columns if one.lower() == name.lower()}
            meant = "".join(f" {name!r} is {one!r} there." for name, one in alike.items())
            problems[f"Table {target} has no column {', '.join(map(repr, unknown))}.{meant}"] = (
                "Add what is missing to the table, or drop or rename it in the query; names are compared exactly."
            )
        found = [_problem(field, columns[field.name], target) for field in schema if field.name in columns]
        problems |= {problem.message: problem.next_step for problem in found if problem is not None}
        needed = [one.name for one in self.columns if one.required and not one.filled]
        if missing := [name for name in needed if name not in schema.names]:
            what = "has columns that may not be null, have no default, and are not in the query"
            problems[f"Table {target} {what}: {missing}."] = "Add them to the query, or give them a default."
        if problems:
            raise SchemaError(" ".join(problems), next_step=" ".join(dict.fromkeys(problems.values())))

    def staged(self, schema: pa.Schema, target: Target) -> CatalogTable:
        """Returns the table with the columns of its staging tables, which also determine whether a row deletes."""
        there = (column.name for column in self.columns)
        more = [
            PostgresColumn(name=name, type=kind, declared=kind.shown, required=False, filled=True, computed=False)
            for name in target.rules.staged_only(schema.names, there)
            if (kind := staged_type(name, schema.field(name).type))
        ]
        return replace(self, columns=(*self.columns, *more))

    def encoders(self, schema: pa.Schema, read: ReadText) -> list[Encode]:
        """Returns the encoder of each column. Raises `SchemaError` if a column no longer fits the table."""
        columns = {column.name: column for column in self.columns}
        made = []
        for field in schema:
            if field.name not in columns:
                raise SchemaError(f"The table no longer has the column {field.name!r}.", next_step="Put it back.")
            made.append(encoder(field.name, field.type, columns[field.name].type, read))
        return made


def read_table(connection: Connection, target: Target) -> CatalogTable | None:
    """Reads the table as this role sees it; None if it does not exist."""
    found = connection.execute(_TABLE, (target.schema, target.table)).fetchone()
    if found is None:
        return None
    rows = connection.execute(_COLUMNS, (found[0],)).fetchall()
    types = _read_types(connection, {row[2] for row in rows})
    checks = connection.execute(_CHECKS, (found[0],)).fetchall()
    constraints = tuple((name, tuple(about), condition) for name, about, condition in checks)
    known: list[Any] = [*found, tuple(_column(row, types) for row in rows), constraints]
    return CatalogTable(*known)


def read_definition(connection: Connection, target: Target) -> tuple[str, str]:
    """Reads the current `CatalogTable.definition` and `CatalogTable.fragile`. Both are empty if there is no table."""
    found = connection.execute(_TABLE, (target.schema, target.table)).fetchone()
    return ("", "") if found is None else (str(found[2]), str(found[3]))


def list_changes(target: Target, schema: str, staged: Sequence[str]) -> sql.Composed:
    """Returns a query that finds changes after which the target no longer matches these staging tables.

    It runs after the rows were merged, in the same transaction, whose lock keeps the columns unchanged. A partition
    that is added later contains none of these rows.
    """
    return _CHANGES.format(
        schema=target.schema, table=target.table, commits=schema, staged=list(staged), fragile=_FRAGILE
    )


def _problem(field: pa.Field, column: PostgresColumn, target: Target) -> SchemaError | None:
    try:
        if not column.computed:
            encoder(field.name, field.type, column.type)
            return None
    except SchemaError as error:
        return error
    what = f"Column {field.name!r} of table {target} is GENERATED ALWAYS: the server fills it."
    return SchemaError(what, next_step="Drop it in the query.")


def _column(row: tuple[Any, ...], types: dict[int, dict[str, Any]]) -> PostgresColumn:
    name, shown, oid, modifier, not_null, identity, generated, has_default, collation = row
    found = types[oid]
    return PostgresColumn(
        name=name,
        type=_server_type(oid, modifier, shown, types),
        declared=f"{shown} COLLATE {collation}" if collation else shown,
        required=not_null or found["not_null"],
        filled=bool(has_default or identity or generated or found["has_default"]),
        computed=identity == "a" or bool(generated),
    )


def _server_type(oid: int, modifier: int, shown: str, types: dict[int, dict[str, Any]]) -> ServerType:
    found = types[oid]
    while found["kind"] == "d":
        modifier = found["modifier"]
        found = types[found["base"]]
    name = "enum" if found["kind"] == "e" else found["name"]
    plain = ServerType(shown=shown, name=name, modifier=modifier, base=found["base_name"], send=found["send"])
    if found["category"] != "A" or not found["element"]:
        return plain
    element = _server_type(found["element"], modifier, shown.removesuffix("[]"), types)
    return replace(plain, element=element, element_oid=found["element"])


def _read_types(connection: Connection, oids: set[int]) -> dict[int, dict[str, Any]]:
    """Reads these types, the base types of domains, and the element types of arrays."""
    types: dict[int, dict[str, Any]] = {}
    wanted = set(oids)
    while wanted:
        for row in connection.execute(_TYPES, (sorted(wanted),)).fetchall():
            types[row[0]] = dict(zip(_TYPE_FIELDS, row[1:], strict=True))
        more = {found[link] for found in types.values() for link in ("base", "element") if found[link]}
        wanted = more - set(types)
    return types


def unique_keys(connection: Connection, oid: int) -> Sequence[tuple[frozenset[str], bool, bool]]:
    """Returns the columns of each unique index that ON CONFLICT can use, the primary key first.

    Each comes with two flags. The first is True if nulls conflict or all columns are NOT NULL. The second is True if
    the index and the columns consider the same values equal.
    """
    rows = connection.execute(_UNIQUE, (oid,)).fetchall()
    return [(frozenset(names), bool(not_null), bool(alike)) for names, not_null, alike in rows]


def check_keys(connection: Connection, target: Target, table: CatalogTable) -> None:
    """Raises `PreflightError` if a table cannot be upserted by these key columns."""
    fitting = [found for found in unique_keys(connection, table.oid) if found[0] == frozenset(target.keys)]
    if not fitting:
        why = (
            f"table {target} has no unique index on exactly these columns (partial, deferrable and expression "
            "indexes do not count)"
        )
        step = "Create a primary key or a unique index on them, or correct key_columns."
    elif not any(not_null for _, not_null, _ in fitting):
        why = "they may be null, and null keys never conflict: such rows would be added with each batch"
        step = "Set them NOT NULL, make them the primary key, or make the index NULLS NOT DISTINCT."
    elif not all(alike for _, _, alike in fitting):
        why = (
            f"a unique index of table {target} on these columns has a different collation, and one of the two treats "
            "different strings, such as 'A' and 'a', as equal: two rows of a batch would have one key"
        )
        step = "Give index and columns the same collation."
    else:
        return
    raise refusal("key_columns", list(target.keys), why, step)


# A foreign server commits its part before this server's marker is durable, so a crash in between would duplicate rows.
_FRAGILE = sql.SQL("""
SELECT coalesce(pg_catalog.string_agg(
    pg_catalog.quote_ident(n.nspname) || '.' || pg_catalog.quote_ident(l.relname) || CASE
        WHEN l.relkind = 'f' THEN ' is a foreign table, which commits apart from this server'
        ELSE ' is unlogged or temporary: the server empties it after a crash' END, '; ' ORDER BY l.oid), '')
FROM pg_catalog.pg_class l JOIN pg_catalog.pg_namespace n ON n.oid = l.relnamespace
WHERE (l.relkind = 'f' OR l.relkind <> 'p' AND l.relpersistence <> 'p')
  AND l.oid IN (SELECT relid FROM pg_catalog.pg_partition_tree(c.oid) UNION ALL SELECT c.oid)
""")
_DEFINITION = """
    pg_catalog.encode(pg_catalog.sha256(pg_catalog.convert_to(pg_catalog.concat(c.oid,
        (SELECT pg_catalog.string_agg(pg_catalog.format(' %%s %%s %%s %%s', attname, atttypid, atttypmod, attnotnull),
                                      ',' ORDER BY attnum)
         FROM pg_catalog.pg_attribute WHERE attrelid = c.oid AND attnum > 0 AND NOT attisdropped),
        (SELECT pg_catalog.string_agg(conname || pg_catalog.pg_get_constraintdef(oid), ',' ORDER BY conname)
         FROM pg_catalog.pg_constraint WHERE conrelid = c.oid AND contype = 'c')), 'UTF8')), 'hex')
"""
_TABLE = sql.SQL(f"""
SELECT c.oid::int8, c.relkind::text, {_DEFINITION}, ({{}})
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %s AND c.relname = %s
""").format(_FRAGILE)
_CHANGES = sql.SQL("""
WITH c AS (
    SELECT c.oid FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = {schema} AND c.relname = {table}
)
SELECT DISTINCT pg_catalog.quote_ident(a.attname) || ' was ' || pg_catalog.format_type(a.atttypid, a.atttypmod) ||
       ' and is ' || pg_catalog.format_type(b.atttypid, b.atttypmod)
FROM c JOIN pg_catalog.pg_attribute b ON b.attrelid = c.oid AND b.attnum > 0 AND NOT b.attisdropped
JOIN pg_catalog.pg_attribute a ON a.attname = b.attname AND a.attnum > 0
JOIN pg_catalog.pg_class s ON s.oid = a.attrelid AND s.relname = ANY ({staged})
JOIN pg_catalog.pg_namespace n ON n.oid = s.relnamespace AND n.nspname = {commits}
WHERE (a.atttypid, a.atttypmod) <> (b.atttypid, b.atttypmod)
UNION ALL SELECT f FROM c, LATERAL ({fragile}) AS fragile (f) WHERE f <> ''
""")
_COLUMNS = """
SELECT a.attname::text, pg_catalog.format_type(a.atttypid, a.atttypmod), a.atttypid::int8, a.atttypmod, a.attnotnull,
       a.attidentity::text, a.attgenerated::text, a.atthasdef,
       CASE WHEN a.attcollation <> t.typcollation
            THEN pg_catalog.quote_ident(n.nspname) || '.' || pg_catalog.quote_ident(l.collname) END
FROM pg_catalog.pg_attribute a
JOIN pg_catalog.pg_type t ON t.oid = a.atttypid
LEFT JOIN pg_catalog.pg_collation l ON l.oid = a.attcollation
LEFT JOIN pg_catalog.pg_namespace n ON n.oid = l.collnamespace
WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum
"""
_TYPE_FIELDS = (
    *("name", "kind", "base", "modifier", "category", "element", "not_null", "has_default", "base_name", "send"),
)
_TYPES = """
SELECT oid::int8, typname::text, typtype::text, typbasetype::int8, typtypmod, typcategory::text,
       CASE WHEN typcategory = 'A' THEN typelem::int8 ELSE 0 END, typnotnull, typdefault IS NOT NULL,
       pg_catalog.format_type(oid, -1), CASE WHEN typsend <> 0 THEN typsend::pg_catalog.regproc::text ELSE '' END
FROM pg_catalog.pg_type WHERE oid = ANY (%s)
"""
_CHECKS = """
SELECT conname::text, ARRAY(
           SELECT attname::text FROM pg_catalog.pg_attribute WHERE attrelid = conrelid AND attnum = ANY (conkey)),
       pg_catalog.pg_get_expr(conbin, conrelid)
FROM pg_catalog.pg_constraint c
WHERE conrelid = %s AND contype = 'c' AND 0 < ALL (conkey)  -- the row as a whole, which is 0, names the table
  AND coalesce((to_jsonb(c) ->> 'conenforced')::bool, true)  -- a column of PostgreSQL 18
ORDER BY conname
"""
_UNIQUE = """
SELECT array_agg(a.attname::text),
       bool_and(a.attnotnull OR coalesce((to_jsonb(i) ->> 'indnullsnotdistinct')::bool, false)),  -- since PostgreSQL 15
       bool_and(k.coll = a.attcollation OR (SELECT bool_and(collisdeterministic) FROM pg_catalog.pg_collation l
                                                 WHERE l.oid IN (k.coll, a.attcollation)))
FROM pg_catalog.pg_index i
CROSS JOIN ROWS FROM (unnest(i.indkey::int2[]), unnest(i.indcollation::oid[])) WITH ORDINALITY AS k (num, coll, n)
JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.num AND k.n <= i.indnkeyatts
WHERE i.indrelid = %s AND i.indisunique AND i.indisvalid AND i.indimmediate AND i.indpred IS NULL
  AND i.indexprs IS NULL
GROUP BY i.indexrelid, i.indisprimary ORDER BY i.indisprimary DESC, i.indexrelid
"""


def may_refuse(connection: Connection, target: Target, columns: Sequence[str], staged: Sequence[str]) -> bool:
    """Returns True if the table may reject a row that these staging tables have accepted.

    The catalog is read each time: a constraint may be added while a query runs.
    """
    if target.rules.conditions:
        return True
    is_upsert = target.mode != "append"
    values = {
        "schema": target.schema,
        "table": target.table,
        "columns": list(columns),
        "staged": list(staged),
        "keys": sorted(target.keys),
        "upsert": is_upsert,
        "update": is_upsert and target.on_conflict == "update",
    }
    ((count,),) = connection.execute(_REFUSERS, values).fetchall()
    return bool(count)


# The query leaves out the index used for upserts, and indexes on a column filled by a sequence or with random UUIDs: a
# trial would prove nothing about those.
_REFUSERS = f"""
WITH t AS (
    SELECT c.oid FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = %(schema)s AND c.relname = %(table)s
), tree AS (
    SELECT oid AS relid FROM t UNION SELECT p.relid FROM t, pg_catalog.pg_partition_tree(t.oid) p
), col AS (
    SELECT attrelid, attnum, attname::text AS name, attgenerated, attnotnull AND attrelid NOT IN (SELECT oid FROM t) AND
           attname NOT IN (SELECT r.attname FROM pg_catalog.pg_attribute r JOIN t ON r.attrelid = t.oid
                           WHERE r.attnotnull) AS narrower,
           attnotnull AND adbin IS NULL AND attidentity = '' AND attrelid IN (SELECT oid FROM t)
               AND attname <> ALL (%(columns)s::text[]) AS missing,
           attname = ANY (%(columns)s::text[]) AS written,
           attidentity <> '' OR coalesce(pg_catalog.pg_get_expr(adbin, adrelid) ~ '^(nextval|[a-z_.]*uuid)', false)
               AS drawn
    FROM pg_catalog.pg_attribute LEFT JOIN pg_catalog.pg_attrdef ON adrelid = attrelid AND adnum = attnum
    WHERE attrelid IN (SELECT relid FROM tree) AND attnum > 0 AND NOT attisdropped
), con AS (
    SELECT c.*,
           ARRAY(SELECT name FROM col WHERE attrelid = conrelid AND attnum = ANY (conkey) AND NOT written) AS others,
           ARRAY(SELECT name FROM col WHERE attrelid = confrelid AND attnum = ANY (confkey) AND written
                 AND name <> ALL (%(keys)s::text[])) AS updated
    FROM pg_catalog.pg_constraint c
    WHERE coalesce((to_jsonb(c) ->> 'conenforced')::bool, true)  -- a column of PostgreSQL 18
)
SELECT (SELECT count(*) FROM pg_catalog.pg_index i
        CROSS JOIN LATERAL (
            SELECT coalesce(array_agg(name ORDER BY name), '{{}}'), coalesce(bool_or(drawn AND NOT written), false)
            FROM unnest(i.indkey::int2[]) WITH ORDINALITY AS k (num, n) JOIN col ON attrelid = indrelid AND attnum = num
            WHERE n <= indnkeyatts) AS k (names, drawn)
        WHERE indrelid IN (SELECT relid FROM tree) AND (indexprs IS NOT NULL OR indpred IS NOT NULL OR
            (indisunique OR indisexclusion) AND NOT drawn
            AND (NOT %(upsert)s OR names <> %(keys)s OR NOT indimmediate)))
       + (SELECT count(*) FROM con WHERE contype = 'f' AND (conrelid IN (SELECT relid FROM tree)
            OR %(update)s AND confrelid IN (SELECT relid FROM tree) AND updated <> '{{}}'))
       + (SELECT count(*) FROM pg_catalog.pg_trigger WHERE tgrelid IN (SELECT relid FROM tree) AND NOT tgisinternal
            AND tgenabled IN ('O', 'A') AND (tgtype & 4 > 0 OR %(update)s AND tgtype & 16 > 0))
       + (SELECT count(*) FROM con WHERE contype = 'c' AND conrelid IN (SELECT relid FROM tree) AND coninhcount = 0
            AND (conrelid NOT IN (SELECT oid FROM t) OR 0 = ANY (conkey) OR others <> '{{}}'))
           + (SELECT count(*) FROM col WHERE narrower OR missing)
       + (SELECT count(*) FROM pg_catalog.pg_partitioned_table WHERE partdefid = 0 AND partstrat <> 'h'
            AND partrelid IN (SELECT relid FROM tree))
       + (SELECT count(*) FROM t WHERE pg_catalog.row_security_active(oid))
       + (SELECT count(*) FROM col WHERE attgenerated <> '' AND attrelid IN (SELECT oid FROM t))
       + (SELECT count(*) FROM pg_catalog.pg_rewrite WHERE ev_class IN (SELECT oid FROM t) AND ev_type = '3')
       + (SELECT count(*) FROM t c, unnest(%(staged)s::text[]) AS staged
        WHERE pg_catalog.obj_description(pg_catalog.to_regclass(staged), 'pg_class') IS DISTINCT FROM {_DEFINITION})
"""


def named(connection: Connection, error: psycopg.Error, _target: Target) -> str:
    """Returns the constraint or index that an error is about, in SQL; empty if there is none."""
    schema, table, name = error.diag.schema_name, error.diag.table_name, error.diag.constraint_name
    if not schema or not table or not name:
        return ""
    rows = connection.execute(
        "SELECT pg_catalog.pg_get_constraintdef(oid) FROM pg_catalog.pg_constraint "
        "WHERE conname = %(name)s AND conrelid = pg_catalog.to_regclass(%(table)s) "
        "UNION ALL SELECT pg_catalog.pg_get_indexdef(pg_catalog.to_regclass(%(index)s)) LIMIT 1",
        {"name": name, "table": quoted(schema, table), "index": quoted(schema, name)},
    ).fetchall()
    return str(rows[0][0] or "") if rows else ""
