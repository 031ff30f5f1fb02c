"""Writes a record of one Avro schema anew in another, in Python: for the few that come before a query is started again.

Java resolves the schemas of all other records, so this must do the same or refuse. It refuses what fastavro reads or
writes by other rules: unions of several types (fastavro chooses the branch by the value), and whatever fastavro says
that it cannot resolve (it compares names where Java does not). Whether Java could is for the caller to learn.
"""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Mapping
from typing import Any

from sparkonce.avro.schemas import Schema, parts
from sparkonce.errors import ConfigurationError

_MALFORMED = (EOFError, ValueError, IndexError, OverflowError, MemoryError, struct.error)
"""The errors that fastavro raises for bytes that are no record of the schema."""

_MOST_CHARACTERS = 300
"""The longest text of a fastavro error to keep: it quotes both schemas."""


class MalformedError(Exception):
    """Bytes are no record of their schema."""


class UnresolvableError(Exception):
    """Python cannot read the writer's records as the reader's: Java may, or may not."""


class Transcoder:
    """Turns records of the writer's schema into records of the reader's, both as bytes without a header.

    Args:
        writer: JSON, with references written out.
        reader: The same.

    Raises:
        UnresolvableError: if Python cannot do it as Java does.
        ConfigurationError: if fastavro is missing.
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
        if self._same:
            return
        for schema in (read, written):
            if (union := _choice(schema)) is not None:
                raise UnresolvableError(f"Python does not choose in the union {json.dumps(union)[:80]} as Java does")
        types: dict[str, Any] = {}
        try:
            self._writer, self._reader = parse_schema(read), parse_schema(written, types)
        except Exception as error:  # noqa: BLE001 - of whatever kind: fastavro refuses what Java may take
            raise _unresolvable("parse", error) from None
        for schema in (self._reader, *types.values()):
            _make_bytes(schema, types)

    def __call__(self, record: bytes) -> bytes:
        """Turns one record.

        Raises:
            MalformedError: if it is none of the writer's schema.
            UnresolvableError: if fastavro cannot resolve it.
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
            raise _unresolvable("read", error) from None
        except _MALFORMED as error:
            raise MalformedError(f"{type(error).__name__} {error}".strip()[:_MOST_CHARACTERS]) from None
        target = io.BytesIO()
        try:
            schemaless_writer(target, self._reader, value)
        except Exception as error:  # noqa: BLE001 - of whatever kind: what was read is no bad record
            raise _unresolvable("write", error) from None
        return target.getvalue()


def _unresolvable(what: str, error: Exception) -> UnresolvableError:
    said = f"{type(error).__name__} {error}"
    if len(said) > _MOST_CHARACTERS:
        said = f"{said[:_MOST_CHARACTERS]}…"
    return UnresolvableError(f"Python cannot {what} it as Java does: {said}")


def _make_bytes(schema: Any, types: Mapping[str, Any]) -> None:
    """Gives fields the defaults that fastavro writes: JSON has text for bytes, a character for each."""
    for part in parts(schema):
        _make_bytes(part, types)
    for field in schema.get("fields", ()) if isinstance(schema, dict) else ():
        if "default" in field:
            field["default"] = _default(field["type"], field["default"], types)


def _default(schema: Any, value: Any, types: Mapping[str, Any]) -> Any:
    if isinstance(schema, list):  # Of null and one more at most: others are refused.
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
