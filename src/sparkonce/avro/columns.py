"""Decodes and encodes Avro columns: records with a Schema Registry header, and plain records of schema files."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.avro.functions import from_avro, to_avro
from pyspark.sql.types import DataType

from sparkonce.arguments import one_of, shown, texts
from sparkonce.avro import module
from sparkonce.avro.decode import REFUSE, STOP, Decoding
from sparkonce.avro.registry import SchemaRegistry
from sparkonce.avro.schemas import (
    SubjectStrategy,
    full_name,
    parse,
    schema_text,
    subject_name,
    wire_header,
    writer_envelope,
)
from sparkonce.errors import ConfigurationError, SchemaError

FAIL, DROP, DEAD_LETTER = "fail", "drop", "dead-letter"
LOCATED_BY = ("topic", "partition", "offset")
"""The columns of Spark's Kafka source that identify a record."""


def from_registry_avro(
    column: Column | str,
    *,
    subject: str | Sequence[str],
    registry: SchemaRegistry,
    reader: int | str | Path | Mapping[str, Any] | None = None,
    on_error: str = FAIL,
    later_ids: str = STOP,
    located_by: Sequence[str] = LOCATED_BY,
    options: Mapping[str, str] | None = None,
) -> Column:
    """Decodes records with a Schema Registry header (a zero byte, the schema id in four bytes, the Avro data).

    This call queries the registry for every version of the subject. The JVM decodes each version with ``from_avro``,
    and converts it to the reader's schema. A null value (a tombstone) remains null.

    Args:
        column: The binary column.
        subject: The subject of the records' schemas; or several subjects, whose types must all fit ``reader``.
        registry: The registry that stores the schemas.
        reader: The schema of the result: a version of the subject, the path of an ``.avsc`` file, or JSON. Defaults to
            the latest version at the time of this call. Pin it in stateful queries, whose schema could otherwise change
            with a restart.
        on_error: What to do with values that cannot be decoded. ``fail``: the query stops, and the error names the
            record. ``dead-letter``: the result is a struct of ``record`` and ``dead_letter``, one of which is null;
            ``dead_letter`` has ``reason``, ``schema_id`` and ``value``. For ``drop``, see `decode_registry_avro`.
        later_ids: What to do with a schema id that the subject did not have when this call was made. ``stop``: the
            query stops. Its next start reads such records, if the schema is registered under the subject by then.
            ``refuse``: such a record counts as undecodable.
        located_by: The columns that identify a record in the error. If one of them is missing, Spark rejects the plan,
            and `decode_registry_avro` names it. Pass ``()`` for none.
        options: More options for ``from_avro``, such as ``recursiveFieldMaxDepth``.

    Raises:
        ConfigurationError: If a setting is wrong, a schema is not Avro or has no Spark type, or Spark's Avro module is
            missing.
        RegistryError: If the registry does not know the subject or version, rejects the request, or does not respond.
    """
    if on_error == DROP:
        raise ConfigurationError(
            "on_error='drop' removes rows, which a column cannot do.",
            next_step="Use decode_registry_avro(df, on_error='drop', …).",
        )
    one_of("on_error", on_error, (FAIL, DEAD_LETTER))
    one_of("later_ids", later_ids, (STOP, REFUSE))
    _check_registry(registry)
    subjects = texts("subject", [subject] if isinstance(subject, str) else subject, example="'orders-value', or a list")
    decoding = Decoding(
        F.col(column) if isinstance(column, str) else column,
        subjects=list(subjects),
        registry=registry,
        reader=reader,
        later_ids=later_ids,
        located_by=located_by,
        options=options,
    )
    return decoding.value_or_stop() if on_error == FAIL else decoding.value_and_dead_letter()


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
    """Adds a column with the decoded records. Can also drop records that cannot be decoded.

    Args:
        df: A DataFrame with the column, and the columns that identify a record.
        column: The name of the binary column.
        into: The name of the new column.
        on_error: As in `from_registry_avro`, or ``drop``: such rows are removed, and counted in
            ``query.lastProgress["observedMetrics"][metric]["undecodable"]``. The metric ``records`` counts all rows.
        dead_letter: The name of the column for dead letters, which is null where there is a record.
        metric: The name of the counts; see ``DataFrame.observe``. It must be unique within a query.
        settings: The other arguments of `from_registry_avro`.

    Raises:
        SchemaError: If the column is missing or not binary, or if a column in ``located_by`` is missing and an error
            may need it.
        ConfigurationError, RegistryError: See `from_registry_avro`.
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
    """Encodes a column as records with a Schema Registry header. A null stays null, as a tombstone.

    This call registers the schema, unless the registry already has it.

    Args:
        column: The values to encode; a struct for a record.
        registry: The registry that stores the schemas.
        schema: The path of an ``.avsc`` file, JSON, or a Spark type such as ``df.schema``. Defaults to the latest
            version of the subject.
        topic: The topic of the records, for the subject name.
        field: ``value`` or ``key``, for the subject name.
        strategy: The strategy for the subject name.
        subject: The subject name, instead of the strategy's.
        auto_register: True to register the schema. If False, it must already be registered.
        record_name: With a Spark type, the record's name, which may include a namespace: ``com.example.Order``.

    Raises:
        ConfigurationError: If a setting is wrong, the schema has no Spark type, or Spark's Avro module is missing.
        RegistryError: If the schema is incompatible with earlier ones of the subject, if it must be registered but is
            not, or if the registry does not respond.
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
    """Decodes plain Avro, without a header, with ``from_avro``. A value that cannot be decoded stops the query.

    Args:
        column: The binary column.
        schema: The schema of the records: the path of an ``.avsc`` file, or JSON.
        reader: The schema of the result, if it differs.
        options: More options for ``from_avro``.

    Raises:
        ConfigurationError: If a schema cannot be read or has no Spark type, or Spark's Avro module is missing.
    """
    checked = module.check_options(options)
    writer = schema_text(schema, "schema")
    read = writer if reader is None else schema_text(reader, "reader")
    module.check_readable(read, f"schema={str(reader or schema)[:60]!r}", checked)
    return from_avro(column, writer, {**checked, "avroSchema": read, "mode": "FAILFAST"})


def to_avro_file(column: Column | str, schema: str | Path | Mapping[str, Any]) -> Column:
    """Encodes plain Avro, without a header, with ``to_avro``. A null stays null.

    Args:
        column: The values to encode.
        schema: The path of an ``.avsc`` file, or JSON.

    Raises:
        ConfigurationError: If the schema cannot be read, or Spark's Avro module is missing.
    """
    module.require_module()
    value = F.col(column) if isinstance(column, str) else column
    text = json.dumps(parse(schema_text(schema, "schema"), "schema"))
    return F.when(value.isNotNull(), to_avro(value, text))


def _check_located(df: DataFrame, on_error: str, settings: Mapping[str, Any]) -> None:
    located_by = settings.get("located_by", LOCATED_BY)
    if on_error != FAIL and settings.get("later_ids") == REFUSE:
        return  # Without such a column, errors cannot identify the record.
    missing = [name for name in located_by if not _has_column(df, name)]
    if missing:
        raise SchemaError(
            f"located_by={tuple(located_by)!r}: there is no column {', '.join(missing)}; the columns are "
            f"{', '.join(df.columns)}.",
            next_step="Keep the columns of Spark's Kafka source, name others in located_by, or set located_by=().",
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
