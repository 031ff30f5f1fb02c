"""Adapts rows to a table's types, and checks them against the table's rules.

Types are compared by field names at every level, and by nullability. Rows are checked against the rules before their
batch is decided, because after the decision, a rejected row would stop the query.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sparkonce.jvm import quoted, types_inside
from sparkonce.sinks.tables.merging import SOURCE, TARGET, Merge

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructField, StructType


_WHOLE_NUMBERS = ("ByteType", "ShortType", "IntegerType", "LongType")
_TEXTS = ("StringType", "CharType", "VarcharType")


def difference(actual: DataType, wanted: DataType, what: str) -> str:
    """Returns why a table's type cannot represent all values of another type, apart from nulls; empty if it can.

    ``what`` is the name of the column or field, for the reason.
    """
    from pyspark.sql.types import ArrayType, MapType, StructType

    actual, wanted = _stored(actual), _stored(wanted)
    if isinstance(actual, ArrayType) and isinstance(wanted, ArrayType):
        return difference(actual.elementType, wanted.elementType, f"an element of {what}")
    if isinstance(actual, MapType) and isinstance(wanted, MapType):
        return difference(actual.keyType, wanted.keyType, f"a key of {what}") or difference(
            actual.valueType, wanted.valueType, f"a value of {what}"
        )
    if isinstance(actual, StructType) and isinstance(wanted, StructType):
        there, fields = _by_name(actual), _by_name(wanted)
        for name in [*fields, *there]:
            if (name in there) != (name in fields):
                found = "of the rows only" if name in there else "of the table only"
                return f"{what} has a field {(there.get(name) or fields[name]).name!r} {found}"
        reasons = (
            difference(there[name].dataType, one.dataType, f"field {one.name!r} of {what}")
            for name, one in fields.items()
        )
        return next(filter(None, reasons), "")
    if _takes(wanted, actual):
        return ""
    return f"{what} is {actual.simpleString()} in the rows, and {wanted.simpleString()} in the table"


def _takes(wanted: DataType, actual: DataType) -> bool:
    from pyspark.sql.types import DecimalType

    kinds = type(actual).__name__, type(wanted).__name__
    if isinstance(actual, DecimalType) and isinstance(wanted, DecimalType):
        return bool(wanted.scale >= actual.scale and wanted.precision - wanted.scale >= actual.precision - actual.scale)
    if set(kinds) <= {*_WHOLE_NUMBERS}:
        return _WHOLE_NUMBERS.index(kinds[0]) <= _WHOLE_NUMBERS.index(kinds[1])
    return actual == wanted or set(kinds) <= {*_TEXTS} or kinds == ("FloatType", "DoubleType")


def in_tables_order(rows: DataFrame, fields: Sequence[StructField]) -> DataFrame:
    """Returns rows whose structs have the table's order of fields, because casts and some writers use positions."""
    there = _by_name(fields)
    wanted = {one.name: there.get(one.name.lower(), one).dataType for one in rows.schema}
    moved = [one for one in rows.schema if not _is_in_order(one.dataType, wanted[one.name])]
    made = {one.name: ordered(rows[quoted(one.name)], one.dataType, wanted[one.name]) for one in moved}
    return rows.withColumns(made) if made else rows


def _is_in_order(actual: DataType, wanted: DataType) -> bool:
    from pyspark.sql.types import StructType

    actual, wanted = _stored(actual), _stored(wanted)
    if isinstance(actual, StructType) and isinstance(wanted, StructType) and actual.names != wanted.names:
        return False
    return all(_is_in_order(one, other) for one, other in zip(types_inside(actual), types_inside(wanted), strict=False))


def ordered(value: Column, actual: DataType, wanted: DataType) -> Column:
    """Returns a value whose structs have the fields of a table's type, in the same order."""
    if _is_in_order(actual, wanted):
        return value
    from pyspark.sql import functions as F
    from pyspark.sql.types import ArrayType, MapType, StructType

    if isinstance(actual, ArrayType) and isinstance(wanted, ArrayType):
        of, to = actual.elementType, wanted.elementType
        return F.transform(value, lambda one: ordered(one, of, to))
    if isinstance(actual, MapType) and isinstance(wanted, MapType):
        keys = ordered(F.map_keys(value), ArrayType(actual.keyType), ArrayType(wanted.keyType))
        values = ordered(F.map_values(value), ArrayType(actual.valueType), ArrayType(wanted.valueType))
        return F.map_from_arrays(keys, values)
    if isinstance(actual, StructType) and isinstance(wanted, StructType):
        there = _by_name(actual)
        fields = [(one, there[one.name.lower()]) for one in wanted]
        made = [ordered(value.getField(of.name), of.dataType, to.dataType).alias(to.name) for to, of in fields]
        return F.when(value.isNotNull(), F.struct(*made))
    return value


def never_null_inside(rows: DataFrame, fields: Sequence[StructField]) -> DataFrame:
    """Returns rows whose types declare nested values as non-null if the table does not allow nulls there.

    Nulls were ruled out when the rows were computed (see `not_null_inside`), but files do not record that. Columns that
    are not in the table's order, or differ from the table's, are returned unchanged.
    """
    there, made = _by_name(fields), {}
    for one in rows.schema:
        wanted = there.get(one.name.lower(), one).dataType
        fits = _is_in_order(one.dataType, wanted) and not difference(one.dataType, wanted, "")
        if fits and wanted != nullable(wanted):
            made[one.name] = _never_null(rows[quoted(one.name)], wanted)
    return rows.withColumns(made) if made else rows


def _never_null(value: Column, kind: DataType) -> Column:
    from pyspark.sql import functions as F
    from pyspark.sql.types import ArrayType, MapType, StructType

    def part(one: Column, of: DataType, may_be_null: bool) -> Column:
        made = _never_null(one, of)
        return made if may_be_null else _known_not_null(made)

    if kind == nullable(kind):
        return value
    if isinstance(kind, ArrayType):
        return F.transform(value, lambda one: part(one, kind.elementType, kind.containsNull))
    if isinstance(kind, MapType):
        keys = F.transform(F.map_keys(value), lambda one: part(one, kind.keyType, False))
        values = F.transform(F.map_values(value), lambda one: part(one, kind.valueType, kind.valueContainsNull))
        return F.map_from_arrays(keys, values)
    if isinstance(kind, StructType):
        fields = [part(value.getField(one.name), one.dataType, one.nullable).alias(one.name) for one in kind]
        return F.when(value.isNotNull(), F.struct(*fields))
    return value


def _known_not_null(value: Column) -> Column:
    from pyspark import SparkContext
    from pyspark.sql.classic.column import Column

    spark = SparkContext._active_spark_context._jvm.org.apache.spark.sql
    known = spark.catalyst.expressions.KnownNotNull(spark.classic.ExpressionUtils.expression(value._jc))
    return Column(spark.classic.ExpressionUtils.column(known))


def nullable(kind: DataType) -> DataType:
    """Returns a type in which all elements, values and fields are nullable, so a cast to it accepts any nulls."""
    from pyspark.sql.types import ArrayType, MapType, StructField, StructType

    if isinstance(kind, ArrayType):
        return ArrayType(nullable(kind.elementType), containsNull=True)
    if isinstance(kind, MapType):
        return MapType(nullable(kind.keyType), nullable(kind.valueType), valueContainsNull=True)
    if isinstance(kind, StructType):
        return StructType([StructField(one.name, nullable(one.dataType), nullable=True) for one in kind])
    return kind


def as_stored(value: Column, wanted: DataType) -> Column:
    """Returns a value cast to a table's type.

    A value of a user-defined type is returned unchanged: it already has that type, and cannot be cast to it.
    """
    from pyspark.sql.types import UserDefinedType

    return value if isinstance(wanted, UserDefinedType) else value.cast(nullable(wanted))


def with_own_types(schema: StructType, fields: Sequence[StructField]) -> StructType:
    """Returns the columns of waiting rows with the table's user-defined types. Files do not record these types."""
    from pyspark.sql.types import StructField, StructType, UserDefinedType

    own = {name: one.dataType for name, one in _by_name(fields).items() if isinstance(one.dataType, UserDefinedType)}
    return StructType([StructField(one.name, own.get(one.name.lower(), one.dataType), one.nullable) for one in schema])


def is_nested(schema: StructType) -> bool:
    """Returns True if a column has a nested type."""
    return any(types_inside(one.dataType) for one in schema)


def not_null_inside(field: StructField) -> Mapping[str, Column]:
    """Returns the conditions that no required nested field of a column is null, keyed by description."""
    from pyspark.sql import functions as F

    return dict(_required(F.col(quoted(field.name)), field.dataType, quoted(field.name)))


def _required(value: Column, kind: DataType, name: str) -> Iterator[tuple[str, Column]]:
    from pyspark.sql import functions as F
    from pyspark.sql.types import ArrayType, MapType, StructType

    if isinstance(kind, StructType):
        for one in kind:
            part, at = value.getField(one.name), f"{name}.{quoted(one.name)}"
            if not one.nullable:
                yield f"{at} must not be null", value.isNull() | part.isNotNull()
            yield from _required(part, one.dataType, at)
    elif isinstance(kind, ArrayType):
        yield from _of_all(value, kind.elementType, kind.containsNull, f"an element of {name}")
    elif isinstance(kind, MapType):
        yield from _of_all(F.map_keys(value), kind.keyType, True, f"a key of {name}")
        yield from _of_all(F.map_values(value), kind.valueType, kind.valueContainsNull, f"a value of {name}")


def _of_all(values: Column, kind: DataType, may_be_null: bool, name: str) -> Iterator[tuple[str, Column]]:
    from pyspark.sql import functions as F

    if not may_be_null:
        yield f"{name} must not be null", values.isNull() | F.forall(values, lambda one: one.isNotNull())
    inside = [text for text, _ in _required(F.lit(None), kind, name)]
    for at, text in enumerate(inside):
        whole = lambda one, at=at: F.coalesce(list(_required(one, kind, name))[at][1], F.lit(True))  # noqa: E731
        yield text, values.isNull() | F.forall(values, whole)


def _stored(kind: DataType) -> DataType:
    from pyspark.sql.types import UserDefinedType

    return kind.sqlType() if isinstance(kind, UserDefinedType) else kind


def _by_name(fields: Sequence[StructField] | StructType) -> dict[str, StructField]:
    return {one.name.lower(): one for one in fields}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The rules of a table, beyond its types, for every row that is added.

    Attributes:
        fills: For columns that are missing in a row, the values that the table computes. Other columns become null.
        conditions: The conditions that a row must meet, by their names in the table.
    """

    fills: Mapping[str, Column]
    conditions: Mapping[str, Column]


def not_null(column: str) -> tuple[str, Column]:
    """Returns the condition that a column, or a field inside one, is not null. The name must be quoted."""
    from pyspark.sql import functions

    return f"{column} must not be null", functions.col(column).isNotNull()


REASON = "__sparkonce_reason"
_ACTUAL = "__sparkonce_actual"


def with_reason(
    rows: DataFrame, values: Mapping[str, Column], fields: Sequence[StructField], rules: Rules, where: str
) -> DataFrame:
    """Adds the column `REASON` to rows: why the table would reject the inserted row, or null if it would accept it."""
    from pyspark.sql import functions as F

    plain = [
        as_stored(values.get(one.name.lower(), F.lit(None).cast(one.dataType)), one.dataType).alias(one.name)
        for one in fields
        if one.name not in rules.fills
    ]
    filled = [
        as_stored(fill, one.dataType).alias(one.name)
        for one in fields
        if (fill := rules.fills.get(one.name)) is not None
    ]
    broken = F.coalesce(
        *(
            F.when(~F.coalesce(condition, F.lit(False)), F.lit(f"{where} does not take a row: {name}"))
            for name, condition in rules.conditions.items()
        )
    )
    actual = F.struct(*(F.col(quoted(name)) for name in rows.columns)).alias(_ACTUAL)
    return rows.select(actual, *plain).select("*", *filled).select(f"{_ACTUAL}.*", broken.alias(REASON))


def refused_insert(
    merge: Merge, rows: DataFrame, table: DataFrame, fields: Sequence[StructField], rules: Rules, where: str
) -> str:
    """Returns why the table would reject a row that `when_not_matched` inserts; empty if it would not.

    Only rows without a match in the table are inserted. Matches are therefore looked up if a row breaks a rule. The
    rules are those for rows whose columns are the columns of the expressions.
    """
    from pyspark.sql import functions as F

    if not isinstance(merge.not_matched, Mapping) or not rules.conditions:
        return ""
    spark, counting = rows.sparkSession, merge.last(rows).alias(SOURCE)
    inserts = merge.inserts(spark)
    wanted = counting if inserts is None else counting.where(inserts)
    values = {column.lower(): F.expr(text) for column, text in merge.not_matched.items()}
    broken = with_reason(wanted.alias(SOURCE), values, fields, rules, where).where(F.col(REASON).isNotNull())
    if broken.isEmpty():
        return ""
    on = F.expr(merge.plan(spark, rows.columns, fields).on)
    found = broken.alias(SOURCE).join(table.alias(TARGET), on, "left_anti").select(REASON).limit(1).collect()
    return str(found[0][0]) if found else ""
