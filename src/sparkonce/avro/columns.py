"""Decodes and encodes Avro columns: records of a Schema Registry, and plain ones of schema files."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it
from pyspark.sql.avro.functions import from_avro, to_avro
from pyspark.sql.types import DataType

from sparkonce.arguments import one_of, shown, texts
from sparkonce.avro import module
from sparkonce.avro.decode import ASK, STOP, Decoding
from sparkonce.avro.registry import SchemaRegistry
from sparkonce.avro.schemas import full_name, parse, schema_text, wire_header, writer_envelope
from sparkonce.avro.strategies import SubjectStrategy, subject_name
from sparkonce.errors import ConfigurationError, SchemaError

FAIL, DROP, DEAD_LETTER = "fail", "drop", "dead-letter"
LOCATED_BY = ("topic", "partition", "offset")
"""The columns of Spark's Kafka source that locate a record."""


def from_registry_avro(
    column: Column | str,
    *,
    subject: str | Sequence[str],
    registry: SchemaRegistry,
    reader: int | str | Path | Mapping[str, Any] | None = None,
    on_error: str = FAIL,
    later_ids: str | None = None,
    located_by: Sequence[str] = LOCATED_BY,
    options: Mapping[str, str] | None = None,
) -> Column:
    """Decodes records with a Schema Registry's header (a zero byte, the schema's id in four bytes, the Avro).

    The registry is asked for every version of the subject now, not while the query runs. The JVM decodes each by
    ``from_avro``, evolved to the reader's schema. A null value (a tombstone) stays null.

    Args:
        column: Binary.
        subject: The subject of the records' schemas; several for several types with one reader that fits all.
        registry: The registry that holds the schemas.
        reader: The schema of the result: a version of the subject, the path of an ``.avsc`` file, or JSON. By default
            the latest version as it is now; pin it for queries with state, whose schema would change at a restart.
        on_error: What to do with values that cannot be decoded. ``fail``: the query stops and names the record.
            ``dead-letter``: the result is a struct of ``record`` and ``dead_letter``, of which one is null;
            ``dead_letter`` has ``reason``, ``schema_id`` and ``value``. For ``drop`` see `decode_registry_avro`.
        later_ids: What to do with a schema id that the subject does not have yet. ``stop``: the query stops. Its next
            start reads such records in the JVM, if the schema is registered under the subject by then.
            ``ask``: a Python worker asks the registry, and the query decodes such records as well. A record of
            another subject is decoded too if Python can resolve its schema to the reader's. Every record then costs
            the transfer to Python. By default ``stop`` for ``fail``, and ``ask`` otherwise.
        located_by: The columns that locate a record, for the error. Spark refuses the plan if one is missing; name
            others, or none: ``located_by=()``. `decode_registry_avro` names the missing ones.
        options: More options of ``from_avro``, such as ``recursiveFieldMaxDepth``.

    Raises:
        ConfigurationError: if a setting is wrong, a schema is not Avro or has no type in Spark, or Spark's Avro module
            is missing.
        RegistryError: if the registry does not know the subject or version, refuses, or gives no answer.
    """
    if on_error == DROP:
        raise ConfigurationError(
            "on_error='drop' removes rows, which a column cannot do.",
            next_step="Use decode_registry_avro(df, on_error='drop', …).",
        )
    one_of("on_error", on_error, (FAIL, DEAD_LETTER))
    if later_ids is not None:
        one_of("later_ids", later_ids, (STOP, ASK))
    _check_registry(registry)
    subjects = texts("subject", [subject] if isinstance(subject, str) else subject, example="'orders-value', or a list")
    decoding = Decoding(
        F.col(column) if isinstance(column, str) else column,
        subjects=list(subjects),
        registry=registry,
        reader=reader,
        later_ids=later_ids or (STOP if on_error == FAIL else ASK),
        located_by=located_by,
        options=options,
    )
    return decoding.value_or_stop() if on_error == FAIL else decoding.value_and_letter()


def decode_registry_avro(
    df: DataFrame,
    column: str = "value",
    *,
    into: str = "record",
    on_error: str = FAIL,
    dead_letter: str = "dead_letter",
    metric: str = "sparkonce_avro",
    **settings: Any,
) -> DataFrame:
    """Adds a column with the decoded records; it can also drop those that cannot be decoded.

    Args:
        df: A DataFrame with the column, and with those that locate a record.
        column: Binary.
        into: The name of the new column.
        on_error: As in `from_registry_avro`, or ``drop``: such rows are removed and counted, in
            ``query.lastProgress["observedMetrics"][metric]["undecodable"]``; ``records`` there counts all rows.
        dead_letter: The name of the column for dead letters, which is null where there is a record.
        metric: The name of the counts, see ``DataFrame.observe``; each of a query needs its own.
        settings: Those of `from_registry_avro`.

    Raises:
        SchemaError: if the column is missing or not binary, or one of ``located_by`` is missing that an error needs.
        ConfigurationError, RegistryError: see `from_registry_avro`.
    """
    one_of("on_error", on_error, (FAIL, DROP, DEAD_LETTER))
    found = dict(df.dtypes).get(column)
    if found != "binary":
        raise SchemaError(
            f"column={column!r} is {found or 'missing'}, and must be binary: the columns are {', '.join(df.columns)}.",
            next_step="Name the column that holds the records.",
        )
    _check_located(df, on_error, settings)
    if on_error == FAIL:
        return df.withColumn(into, from_registry_avro(column, on_error=FAIL, **settings))
    # This column is dropped in the next step.
    both = "__sparkonce_decoded"
    decoded = df.withColumn(both, from_registry_avro(column, on_error=DEAD_LETTER, **settings))
    decoded = decoded.withColumns({into: F.col(both)["record"], dead_letter: F.col(both)["dead_letter"]}).drop(both)
    if on_error == DEAD_LETTER:
        return decoded
    is_dead = F.col(dead_letter).isNotNull()
    counts = (F.count(F.lit(1)).alias("records"), F.count_if(is_dead).alias("undecodable"))
    return decoded.observe(metric, *counts).where(~is_dead).drop(dead_letter)


def to_registry_avro(
    column: Column | str,
    *,
    registry: SchemaRegistry,
    schema: str | Path | Mapping[str, Any] | DataType | None = None,
    topic: str | None = None,
    field: str = "value",
    strategy: SubjectStrategy | str = SubjectStrategy.TOPIC_NAME,
    subject: str | None = None,
    auto_register: bool = True,
    record_name: str = "topLevelRecord",
) -> Column:
    """Encodes a column as records with a Schema Registry's header. Null becomes null, a tombstone.

    The schema is registered now, once, unless the registry has it.

    Args:
        column: The values to encode; a struct for a record.
        registry: The registry that holds the schemas.
        schema: The path of an ``.avsc`` file, JSON, or a type of Spark's such as ``df.schema``. By default the latest
            version of the subject.
        topic: The topic of the records, for the subject's name.
        field: ``value`` or ``key``, for the subject's name.
        strategy: How the subject is named.
        subject: The subject's name, in place of the strategy's.
        auto_register: Whether to register the schema; if not, it must be there.
        record_name: With a type of Spark's, the record's name, which may have a namespace: ``com.example.Order``.

    Raises:
        ConfigurationError: if a setting is wrong, the schema has no type in Spark, or Spark's Avro module is missing.
        RegistryError: if the schema is not compatible with the subject's earlier ones, is not there though it must be,
            or the registry gives no answer.
    """
    _check_registry(registry)
    module.require_module()
    text = None
    if isinstance(schema, DataType):
        namespace, _, name = record_name.rpartition(".")
        text = module.avro_type(schema, name, namespace)
    elif schema is not None:
        text = schema_text(schema, "schema")
    if subject is None:
        record = full_name(parse(text, "schema")) if text is not None else None
        subject = subject_name(strategy, topic=topic, field=field, record=record)
    if text is None:
        latest = registry.latest(subject)
        text, schema_id = latest.text, latest.id
    else:
        schema_id = registry.register(subject, text) if auto_register else registry.lookup(subject, text)
    value = F.col(column) if isinstance(column, str) else column
    framed = F.struct(F.lit(wire_header(schema_id)).alias("header"), value.alias("value"))
    return F.when(value.isNotNull(), to_avro(framed, writer_envelope(text)))


def from_avro_file(
    column: Column | str,
    schema: str | Path | Mapping[str, Any],
    *,
    reader: str | Path | Mapping[str, Any] | None = None,
    options: Mapping[str, str] | None = None,
) -> Column:
    """Decodes plain Avro, without a header, by ``from_avro``. A value that cannot be decoded stops the query.

    Args:
        column: Binary.
        schema: The schema of the records: the path of an ``.avsc`` file, or JSON.
        reader: The schema of the result, if it is another.
        options: More options of ``from_avro``.

    Raises:
        ConfigurationError: if a schema cannot be read or has no type in Spark, or Spark's Avro module is missing.
    """
    given = module.check_options(options)
    writer = schema_text(schema, "schema")
    read = writer if reader is None else schema_text(reader, "reader")
    module.check_readable(read, f"schema={str(reader or schema)[:60]!r}", given)
    return from_avro(column, writer, {**given, "avroSchema": read, "mode": "FAILFAST"})


def to_avro_file(column: Column | str, schema: str | Path | Mapping[str, Any]) -> Column:
    """Encodes plain Avro, without a header, by ``to_avro``. Null becomes null.

    Args:
        column: The values to encode.
        schema: The path of an ``.avsc`` file, or JSON.

    Raises:
        ConfigurationError: if the schema cannot be read, or Spark's Avro module is missing.
    """
    module.require_module()
    value = F.col(column) if isinstance(column, str) else column
    text = json.dumps(parse(schema_text(schema, "schema"), "schema"))
    return F.when(value.isNotNull(), to_avro(value, text))


def _check_located(df: DataFrame, on_error: str, settings: Mapping[str, Any]) -> None:
    located_by = settings.get("located_by", LOCATED_BY)
    if on_error != FAIL and settings.get("later_ids") != STOP:
        return  # no error will locate a record
    missing = [name for name in located_by if not _has_column(df, name)]
    if missing:
        raise SchemaError(
            f"located_by={tuple(located_by)!r}: there is no column {', '.join(missing)}; the columns are "
            f"{', '.join(df.columns)}.",
            next_step="Keep the columns of Spark's Kafka source, name others in located_by, or say located_by=().",
        )


def _has_column(df: DataFrame, name: str) -> bool:
    try:
        return bool(df.select(F.col(name)).columns)
    except AnalysisException:
        return False


def _check_registry(registry: object) -> None:
    if not isinstance(registry, SchemaRegistry):
        raise ConfigurationError(
            f"registry={shown(registry)} is not a SchemaRegistry.",
            next_step="Give SchemaRegistry({'url': 'https://registry:8081'}).",
            setting="registry",
        )
