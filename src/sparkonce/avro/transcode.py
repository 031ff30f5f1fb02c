"""Writes a record of one Avro schema anew in another, in Python: for the few that come before a query is started again.

Java resolves the schemas of all other records, so this must do the same or refuse. It refuses what fastavro reads or
writes by other rules: unions of several types (fastavro chooses the branch by the value), and whatever fastavro says
that it cannot resolve (it compares names where Java does not).
"""

from __future__ import annotations

import io
import json
import struct
from typing import Any

from sparkonce.avro.schemas import Schema, parts
from sparkonce.errors import ConfigurationError

_MALFORMED = (EOFError, ValueError, IndexError, OverflowError, MemoryError, struct.error)
"""What fastavro raises for bytes that are no record of the schema."""

_RESTART = "start the query again: all schemas that are registered by then are read by Java. Nothing is lost."


class MalformedError(Exception):
    """Bytes are no record of their schema."""


class Transcoder:
    """From records of the writer's schema to records of the reader's, both as bytes without a header.

    Args:
        writer: JSON, with references written out.
        reader: The same.

    Raises:
        ConfigurationError: if Python cannot do it as Java does, or fastavro is missing.
    """

    def __init__(self, writer: str, reader: str) -> None:
        try:
            from fastavro import parse_schema
        except ImportError as error:
            raise ConfigurationError(
                f"fastavro is not installed: {error}", next_step="pip install 'sparkonce[avro]'"
            ) from error
        # Logical types say how to show a value; resolving looks at the types below only, as in Java.
        read, written = _plain(json.loads(writer)), _plain(json.loads(reader))
        self._same = read == written
        for schema in () if self._same else (read, written):
            if (union := _choice(schema)) is not None:
                raise ConfigurationError(
                    f"Python does not choose in the union {json.dumps(union)[:80]} as Java does", next_step=_RESTART
                )
        self._writer, self._reader = parse_schema(read), parse_schema(written)

    def __call__(self, record: bytes) -> bytes:
        """One record.

        Raises:
            MalformedError: if it is none of the writer's schema.
            ConfigurationError: if fastavro cannot resolve it.
        """
        if self._same:
            return record
        from fastavro import schemaless_reader, schemaless_writer
        from fastavro.read import SchemaResolutionError

        try:
            # Once for itself: fastavro does not notice the end of a record in a field that the reader lacks.
            schemaless_reader(io.BytesIO(record), self._writer, None)
            value = schemaless_reader(io.BytesIO(record), self._writer, self._reader)
        except (SchemaResolutionError, UnicodeDecodeError) as error:
            raise ConfigurationError(f"Python cannot read it as Java does: {error}", next_step=_RESTART) from error
        except _MALFORMED as error:
            raise MalformedError(f"{type(error).__name__} {error}".strip()) from error
        target = io.BytesIO()
        schemaless_writer(target, self._reader, value)
        return target.getvalue()


def _plain(schema: Schema) -> Schema:
    """Without logical types and words for people."""
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
    """The first union of several types, null aside."""
    if isinstance(schema, list) and sum(one != "null" for one in schema) > 1:
        return schema
    return next((found for part in parts(schema) if (found := _choice(part)) is not None), None)
