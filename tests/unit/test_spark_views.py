from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    YearMonthIntervalType,
)

from sparkonce.errors import ConfigurationError, PrepareError, SchemaError
from sparkonce.protocol.ownership import Token
from sparkonce.sink import Owner, spark_type
from sparkonce.sinks.memory import MemoryServer, MemorySink
from sparkonce.spark import views
from sparkonce.spark.views import View, arrow_schema, shares
from sparkonce.spark.work import SparkWork


class Rules:
    def big(self, df: Any) -> Any:
        return df


class Alike:
    """A function that equals every other instance, and is not hashable."""

    __hash__ = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Alike)

    def __call__(self, df: Any) -> Any:
        return df


RULES = Rules()


@pytest.mark.parametrize(
    ("views", "together"),
    [
        ((None, None), [["0", "1"]]),
        ((str, None, str), [["0", "2"], ["1"]]),
        # Python creates a new object each time a method is accessed. It equals the previous one but is not identical.
        ((RULES.big, RULES.big), [["0"], ["1"]]),
        ((Alike(), Alike(), None), [["0"], ["1"], ["2"]]),
    ],
    ids=["none", "the same function", "a method", "equal functions"],
)
def test_every_sink_is_in_one_share(views, together):
    def grouped(*views: View | None) -> list[list[str]]:
        sinks = {MemorySink(MemoryServer(), name=str(place)): view for place, view in enumerate(views)}
        return [sorted(share.sinks) for share in shares(sinks)]

    assert grouped(*views) == together


def test_columns_that_pyspark_does_not_bring_are_named():
    span = YearMonthIntervalType()
    good = StructField("good", DayTimeIntervalType())
    bad = [StructField("since", span), StructField("spans", ArrayType(span))]
    with pytest.raises(
        SchemaError, match=r"'since' is interval year to month, 'spans' is array<.*>\. Next: Cast"
    ) as told:
        arrow_schema(StructType([good, *bad]))
    assert "good" not in str(told.value)
    assert arrow_schema(StructType([good])).names == ["good"]


def test_columns_that_no_sink_could_write_are_named():
    """One check for every sink: some found the problem only in the first batch, with Spark's message."""
    two = StructType().add("s", "string").add("S", "string")
    assert arrow_schema(two).names == ["s", "S"]
    with pytest.raises(SchemaError, match="The column 'S' appears more than once"):
        arrow_schema(two, is_case_sensitive=False)
    with pytest.raises(SchemaError, match="The column 's' appears more than once"):
        arrow_schema(StructType([*two.fields[:1], *two.fields[:1]]))
    inside = StructType([StructField("a", DayTimeIntervalType())] * 2)
    with pytest.raises(SchemaError, match="Column 'x' has the field 'a' more than once"):
        arrow_schema(StructType([StructField("x", ArrayType(inside))]))

    for kind in (ArrayType(NullType(), containsNull=False), MapType(NullType(), NullType()), two.add("t", NullType())):
        with pytest.raises(SchemaError, match=r"Column 'tags' is .*void.* Next: Give what is inside a type"):
            arrow_schema(StructType([StructField("tags", kind)]))
    assert arrow_schema(StructType([StructField("nothing", NullType())])).names == ["nothing"]


def test_a_view_that_fails_without_rows_is_named():
    def first_value(df: Any) -> Any:
        return df[0]

    (share,) = shares({MemorySink(MemoryServer(), name="big"): first_value})
    with pytest.raises(ConfigurationError, match=r"view of sink \['big'\] fails.* without rows, .*: IndexError: list"):
        share.of_none([])


def test_a_pyspark_that_wants_to_be_told_the_time_zone_is_told(monkeypatch):
    """Since 4.2, PySpark asserts that a time zone is passed for each timestamp.

    Older versions have no such parameter.
    """
    real = views.to_arrow_schema
    schema = StructType([StructField("at", TimestampType())])
    before = arrow_schema(schema)

    def newer(fields: StructType, *, timezone: str | None = None) -> Any:
        assert timezone == "UTC"
        return real(fields)

    monkeypatch.setattr(views, "to_arrow_schema", newer)
    assert arrow_schema(schema) == before
    assert str(before.field("at").type) == "timestamp[us, tz=UTC]"


def test_messages_name_types_as_spark_does():
    plain = [
        *(BinaryType(), BooleanType(), ByteType(), DateType(), DayTimeIntervalType(), DecimalType(7, 2)),
        DoubleType(),
    ]
    plain += [FloatType(), IntegerType(), LongType(), NullType(), ShortType(), StringType(), TimestampNTZType()]
    nested = [ArrayType(StringType()), MapType(LongType(), BinaryType()), StructType().add("a", TimestampType())]
    schema = StructType([StructField(f"c{at}", kind) for at, kind in enumerate([*plain, *nested])])
    assert [spark_type(one.type) for one in views.to_arrow(schema)] == [one.dataType.simpleString() for one in schema]
    assert [spark_type(pa.large_string()), spark_type(pa.large_list(pa.large_binary()))] == ["string", "array<binary>"]


def test_a_sink_without_a_share_is_refused():
    owner = Owner(query="0" * 12, token=Token(0, "0" * 8))
    plan: Any = None
    with pytest.raises(PrepareError, match=r"No part of the batch is written to sinks \['other'\]"):
        SparkWork(plan, 0, shares({MemorySink(MemoryServer(), name="one"): None})).write(
            {"one": owner, "other": owner}, None
        )


TWICE = StructType([StructField(name, IntegerType()) for name in "aba"])


@pytest.mark.parametrize(
    "around", [TWICE, ArrayType(TWICE), MapType(IntegerType(), StructType([StructField("in", ArrayType(TWICE))]))]
)
def test_a_field_name_that_a_struct_has_twice_is_refused(around):
    """Spark would rename the fields to a_0 and a_1 on their way to the workers."""
    schema = StructType([StructField("id", IntegerType()), StructField("s", around)])
    with pytest.raises(SchemaError, match=r"Column 's' has the field 'a' more than once"):
        arrow_schema(schema)
