"""Rewrites records from one Avro schema to another, in Python, until the query is restarted.

The JVM decodes all other records, so this module must return the same results as the JVM or raise an error. The module
rejects unions of several types, in which fastavro chooses a branch by the value. It also rejects schemas that fastavro
cannot resolve; Java may be able to resolve these, since fastavro compares names where Java does not.
"""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Mapping
from typing import Any

from sparkonce.arguments import missing_package
from sparkonce.avro.schemas import Schema, parts

_MALFORMED = (EOFError, ValueError, IndexError, OverflowError, MemoryError, struct.error)
"""The errors that fastavro raises for bytes that are not a record of the schema."""

_MOST_CHARACTERS = 300
"""The maximum length of a fastavro error, which quotes both schemas."""


class MalformedError(Exception):
    """The bytes are not a record of their schema."""


class UnresolvableError(Exception):
    """Python cannot read the writer's records with the reader's schema. Java may be able to."""


class Transcoder:
    """Converts records from the writer's schema to the reader's, both as bytes without a header.

    Raises:
        UnresolvableError: If Python cannot convert the records as Java would.
        ConfigurationError: If fastavro is missing.
    """

    def __init__(self, writer: str, reader: str) -> None:
        try:
            from fastavro import parse_schema
        except ImportError as error:
            raise missing_package("later_ids='ask'", "fastavro", "avro") from error
        # As in Java, logical types do not affect resolution: they only determine how a value is presented.
        read, written = _plain(json.loads(writer)), _plain(json.loads(reader))
        self._same = read == written
        if self._same:
            return
        for schema in (read, written):
            if (union := _choice(schema)) is not None:
                raise UnresolvableError(f"Python does not choose in the union {json.dumps(union)[:80]} as Java does")
        types: dict[str, Any] = {}
        try:
            self._writer, self._reader = parse_schema(read), parse_schema(written, types)
        except Exception as error:  # noqa: BLE001 - fastavro may reject, with any error, a schema that Java accepts
            raise _unresolvable("parse", error) from None
        for schema in (self._reader, *types.values()):
            _make_bytes(schema, types)

    def __call__(self, record: bytes) -> bytes:
        """Converts one record.

        Raises:
            MalformedError: If the bytes are not a record of the writer's schema.
            UnresolvableError: If fastavro cannot convert the record.
        """
        if self._same:
            return record
        from fastavro import schemaless_reader, schemaless_writer
        from fastavro.read import SchemaResolutionError

        try:
            # Decode the record with the writer's schema first. With both schemas, fastavro does not notice that the
            # record ends within a field that the reader's schema lacks.
            schemaless_reader(io.BytesIO(record), self._writer, None)
            value = schemaless_reader(io.BytesIO(record), self._writer, self._reader)
        except (SchemaResolutionError, UnicodeDecodeError) as error:
            raise _unresolvable("read", error) from None
        except _MALFORMED as error:
            raise MalformedError(f"{type(error).__name__} {error}".strip()[:_MOST_CHARACTERS]) from None
        target = io.BytesIO()
        try:
            schemaless_writer(target, self._reader, value)
        except Exception as error:  # noqa: BLE001 - the record was readable, so any error is the caller's
            raise _unresolvable("write", error) from None
        return target.getvalue()


def _unresolvable(what: str, error: Exception) -> UnresolvableError:
    said = f"{type(error).__name__} {error}"
    if len(said) > _MOST_CHARACTERS:
        said = f"{said[:_MOST_CHARACTERS]}…"
    return UnresolvableError(f"Python cannot {what} it as Java does: {said}")


def _make_bytes(schema: Any, types: Mapping[str, Any]) -> None:
    """Converts the defaults of bytes fields, which are strings in JSON, to the bytes that fastavro writes."""
    for part in parts(schema):
        _make_bytes(part, types)
    for field in schema.get("fields", ()) if isinstance(schema, dict) else ():
        if "default" in field:
            field["default"] = _default(field["type"], field["default"], types)


def _default(schema: Any, value: Any, types: Mapping[str, Any]) -> Any:
    if isinstance(schema, list):  # Such a union has null and at most one other type; larger unions are rejected.
        return value if value is None else _default(next(one for one in schema if one != "null"), value, types)
    schema = types.get(schema, schema) if isinstance(schema, str) else schema
    kind = schema if isinstance(schema, str) else schema["type"]
    if kind in ("bytes", "fixed") and isinstance(value, str):
        return value.encode("latin-1")
    if kind == "array":
        return [_default(schema["items"], one, types) for one in value]
    if kind == "map":
        return {name: _default(schema["values"], one, types) for name, one in value.items()}
    if kind in ("record", "error"):
        its = {field["name"]: field["type"] for field in schema["fields"]}
        return {name: _default(its[name], one, types) if name in its else one for name, one in value.items()}
    return value


def _plain(schema: Schema) -> Schema:
    """Returns the schema without logical types and documentation."""
    if isinstance(schema, list):
        return [_plain(one) for one in schema]
    if isinstance(schema, str):
        return schema
    left: dict[str, Any] = {name: value for name, value in schema.items() if name not in ("logicalType", "doc")}
    for name in ("type", "items", "values"):
        if isinstance(left.get(name), dict | list):
            left[name] = _plain(left[name])
    if "fields" in left:
        left["fields"] = [_plain(field) for field in left["fields"]]
    return left["type"] if set(left) == {"type"} and isinstance(left["type"], str) else left


def _choice(schema: Schema) -> Schema | None:
    """Returns the first union of several types other than null."""
    if isinstance(schema, list) and sum(one != "null" for one in schema) > 1:
        return schema
    return next((found for part in parts(schema) if (found := _choice(part)) is not None), None)
