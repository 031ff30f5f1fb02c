"""Calls Spark's own Avro module, which is a separate jar, and explains how to get it if it is missing."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pyspark.sql import Column, SparkSession
from pyspark.sql.avro import functions as avro

from sparkonce.avro.limits import warn_without_limits
from sparkonce.avro.schemas import is_recursive
from sparkonce.errors import ConfigurationError
from sparkonce.jvm import require_class
from sparkonce.packages import AVRO_MODULE

_OURS = ("mode", "avroSchema", "avroSchemaUrl")
"""The options of ``from_avro`` that sparkonce itself sets."""

_DEPTH = "recursiveFieldMaxDepth"


def read(value: Column, writer: str, reader: str, options: Mapping[str, str]) -> Column:
    """Applies ``from_avro``. Unreadable values become null, or structs of nulls if the reader's schema is a record."""
    return avro.from_avro(value, writer, {**options, "avroSchema": reader, "mode": "PERMISSIVE"})


def check_options(options: Mapping[str, str] | None) -> dict[str, str]:
    """Returns the user's options for ``from_avro``; raises ConfigurationError if sparkonce itself sets one of them."""
    texts = {str(name): str(value) for name, value in (options or {}).items()}
    for name in texts:
        if name.lower() in {ours.lower() for ours in _OURS}:
            raise ConfigurationError(f"options[{name!r}] is set by on_error and reader.", next_step="Leave it out.")
    return texts


def check_readable(schema: str, where: str, options: Mapping[str, str]) -> None:
    """Rejects an Avro schema for which Spark has no type.

    Raises:
        ConfigurationError: If there is no classic Spark session, the Avro module is missing, or Spark has no such type.
    """
    jvm = require_module()
    warn_without_limits(SparkSession.active(), jvm)
    if is_recursive(json.loads(schema)) and _DEPTH not in options:
        raise ConfigurationError(
            f"{where} is recursive, and Spark has no recursive types.",
            next_step=f"Limit the depth: options={{'{_DEPTH}': '3'}}.",
        )
    try:
        parsed = getattr(jvm, "org.apache.avro.Schema$Parser")().parse(schema)
        # If a recursion depth is given, only `from_avro` can check the schema, because only `from_avro` knows the
        # depth.
        if _DEPTH not in options:
            jvm.org.apache.spark.sql.avro.SchemaConverters.toSqlType(parsed)
    except Exception as error:
        raise ConfigurationError(
            f"{where} has no type in Spark: {_first_line(error)}", next_step="Change what it names in the schema."
        ) from error


def avro_type(struct: Any, name: str, namespace: str) -> str:
    """Returns the Avro schema that Spark derives from one of its types (a Python ``StructType``), as JSON.

    Raises:
        ConfigurationError: If there is no classic Spark session, the Avro module is missing, or Avro has no such type
            or does not allow a name.
    """
    jvm = require_module()
    jtype = jvm.org.apache.spark.sql.types.DataType.fromJson(struct.json())
    try:
        return str(jvm.org.apache.spark.sql.avro.SchemaConverters.toAvroType(jtype, False, name, namespace).toString())
    except Exception as error:
        raise ConfigurationError(
            f"The type {struct.simpleString()} has no schema in Avro: {_first_line(error)}",
            next_step="Rename such a column (letters, digits, and _), or cast it: a variant with to_json.",
            setting="schema",
        ) from error


def require_module() -> Any:
    """Returns the session's JVM, after checking that it has Spark's Avro module."""
    session = SparkSession.getActiveSession()
    if session is None or not hasattr(session, "_jvm"):
        raise ConfigurationError(
            "There is no Spark session.", next_step="Create one first: a classic one, not Spark Connect."
        )
    require_class(session, AVRO_MODULE, "org.apache.spark.sql.avro.AvroDataToCatalyst")
    return session._jvm


def _first_line(error: Exception) -> str:
    java = getattr(error, "java_exception", None)
    text = str(java.getMessage()) if java is not None else str(error)
    return (text.strip().splitlines() or [type(error).__name__])[0]
