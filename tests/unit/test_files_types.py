from __future__ import annotations

import pyarrow as pa
import pytest

from sparkonce.errors import ConfigurationError, SchemaError
from sparkonce.guarantees import Guarantee
from sparkonce.sinks.files.formats import FORMATS, file_schema
from sparkonce.sinks.files.locations import local_folder, open_store, scheme_of
from sparkonce.sinks.files.sink import FilesSink

NESTED = {"array": pa.list_(pa.int32()), "struct": pa.struct({"a": pa.string(), "b": pa.list_(pa.float64())})}
MAP = pa.map_(pa.string(), pa.int32())


def columns(format: str, **types: pa.DataType) -> list[str]:  # noqa: A002
    return list(FilesSink("/out", format=format).columns(pa.schema(list(types.items()))))


@pytest.mark.parametrize("name", NESTED)
def test_csv_has_no_nested_types(name):
    with pytest.raises(SchemaError, match=r"'x' is .*: csv files have no nested values"):
        columns("csv", x=NESTED[name])


@pytest.mark.parametrize("format", [name for name in FORMATS if name != "text"])
@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (MAP, "no format here takes a map"),
        (pa.null(), "no type"),
        (pa.month_day_nano_interval(), "interval"),
        (pa.time64("us"), "no format"),
    ],
)
def test_other_types_are_refused_by_the_name_of_the_column(format, kind, said):  # noqa: A002
    with pytest.raises(SchemaError, match=f"'x' is .*{said}"):
        columns(format, fine=pa.int32(), x=kind)


@pytest.mark.parametrize("kind", [pa.list_(MAP), pa.struct({"deep": pa.list_(MAP)})])
def test_a_map_deep_inside_is_refused_too(kind):
    with pytest.raises(SchemaError, match=r"'x' is .*no format here takes a map"):
        columns("parquet", x=kind)


def test_text_takes_one_string():
    assert columns("text", x=pa.string()) == ["x"]
    for types in ({"x": pa.int32()}, {"x": pa.string(), "y": pa.string()}):
        with pytest.raises(SchemaError, match="one column of strings"):
            columns("text", **types)
    sink = FilesSink("/out", format="text", partition_by="day")
    assert sink.columns(pa.schema({"value": pa.string(), "day": pa.date32()})) == ["value", "day"]

    assert columns("arrow", x=pa.duration("us")) == ["x"]
    with pytest.raises(SchemaError, match="parquet files have no intervals"):
        columns("parquet", x=pa.duration("us"))

    # As passed by Spark, see ``pyspark.sql.pandas.types``.
    metadata = pa.field("metadata", pa.binary(), False, metadata={b"variant": b"true"})
    with pytest.raises(SchemaError, match=r"'x' is .*variant"):
        columns("parquet", x=pa.struct([pa.field("value", pa.binary(), False), metadata]))

    zoned = pa.timestamp("us", "Europe/Berlin")
    inside = pa.struct({"l": pa.list_(zoned)})
    found = file_schema(pa.schema({"at": zoned, "in": inside, "local": pa.timestamp("us")}))
    assert found.field("at").type == pa.timestamp("us", "UTC")
    assert found.field("in").type.field("l").type.value_type == pa.timestamp("us", "UTC")
    assert found.field("local").type == pa.timestamp("us")


@pytest.mark.parametrize("kind", [pa.float64(), pa.binary(), pa.timestamp("us", "UTC"), pa.list_(pa.int32())])
def test_a_folder_cannot_be_named_by_any_type(kind):
    with pytest.raises(SchemaError, match=r"'by', which is .*; folders are named by"):
        FilesSink("/out", partition_by="by").columns(pa.schema({"x": pa.int32(), "by": kind}))


def test_partition_columns_must_be_there_and_leave_something():
    schema = pa.schema({"x": pa.int32()})
    with pytest.raises(SchemaError, match="names 'day'"):
        FilesSink("/out", partition_by="day").columns(schema)
    with pytest.raises(SchemaError, match="leaves no column"):
        FilesSink("/out", partition_by="x").columns(schema)
    with pytest.raises(SchemaError, match="more than once"):
        FilesSink("/out").columns(pa.schema([("x", pa.int32()), ("x", pa.int32())]))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"format": "orc"}, "format='orc'"),
        ({"compression": "bz2"}, "compression='bz2'"),
        ({"options": {"header": True}}, "'header'"),
        ({"format": "csv", "options": {"header": "yes"}}, "header"),
        ({"format": "csv", "options": {"delimiter": "||"}}, "delimiter"),
        ({"options": {"row_group_bytes": 0}}, "row_group_bytes"),
        ({"name": "a/b"}, "name='a/b'"),
        ({"max_file_bytes": 0}, "max_file_bytes=0"),
        ({"partition_by": "_day"}, "'_day'"),
        ({"partition_by": ["a", "a"]}, "twice"),
        ({"path": "ftp://host/x"}, "names no location"),
        ({"path": "file://host/x"}, "names a host"),
        ({"path": "hdfs:///x"}, "names no host"),
        ({"path": "s3:///x"}, "names no bucket"),
        ({"path": ""}, "names no location"),
        ({"path": "s3://[b/x"}, "is not a URL: Invalid IPv6"),
        ({"path": "hdfs://h:1/a#b"}, "'#'"),
        ({"path": "file:/a?b"}, r"'\?'"),
    ],
)
def test_wrong_settings_are_refused_by_name(settings, said):
    with pytest.raises(ConfigurationError, match=said):
        FilesSink(**{"path": "/out", **settings})


def test_paths_and_urls():
    assert str(local_folder("file:///a%20b/c")) == "/a b/c"
    assert str(local_folder("/a%20b")) == "/a%20b"
    assert [scheme_of(path) for path in ("x", "file:/x", "s3a://b/p", "hdfs://h:1/p")] == ["file", "file", "s3", "hdfs"]

    with pytest.raises(ConfigurationError, match="credentials") as caught:
        FilesSink("s3://KEY:SECRET@bucket/x")
    assert "SECRET" not in str(caught.value)

    with pytest.raises(ConfigurationError, match="endpoint"):
        open_store("/out", {"endpoint": "x"})

    assert FilesSink("/out", guarantee=Guarantee.AT_LEAST_ONCE).conditions() == []
    assert any("fsync" in one for one in FilesSink("/out").conditions())
    assert any("datanodes" in one for one in FilesSink("hdfs://h:1/out").conditions())
