"""Handles Avro schemas as JSON: inlines references, and builds the envelope around a record.

The envelope makes Confluent's wire format plain Avro. The envelope declares the five bytes before a record (a zero, and
the schema id as a big-endian int) as a field: ``record {header: fixed(5), value: <schema>}``. Avro therefore reads and
writes the header together with the record, and no bytes are copied to remove or add the header.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import Any, TypeAlias

from sparkonce.arguments import member, one_of
from sparkonce.errors import ConfigurationError

Schema: TypeAlias = "str | dict[str, Any] | list[Any]"
"""A schema, as parsed JSON."""

HEADER_BYTES = 5
PRIMITIVES = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})
_NAMED = ("record", "error", "enum", "fixed")  # Not a set: a type may be a nested schema, which is not hashable.
_ENVELOPE = "__sparkonce_envelope"
_HEADER = "__sparkonce_header"


def wire_header(schema_id: int) -> bytes:
    """Returns the header of this schema's records: the magic byte 0 and the id, as four bytes, big-endian."""
    return b"\0" + schema_id.to_bytes(HEADER_BYTES - 1, "big")


def parse(text: str, where: str) -> Schema:
    """Parses a schema's JSON, which may be a bare name; raises ConfigurationError if it is not a schema."""
    try:
        found = json.loads(text)
    except ValueError as error:
        raise ConfigurationError(f"{where} is not JSON: {error}", next_step="Give an Avro schema as JSON.") from None
    if not isinstance(found, str | dict | list):
        raise ConfigurationError(
            f"{where} is {text[:40]!r}, which is not an Avro schema.", next_step="Give an Avro schema as JSON."
        )
    return found


def read_avsc(path: str | Path) -> str:
    """Returns the text of a file that contains one schema; raises ConfigurationError if the file is not JSON."""
    try:
        text = Path(path).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(
            f"The schema file {str(path)!r} cannot be read: {error}",
            next_step="Give the path of a readable .avsc file.",
        ) from None
    parse(text, f"The schema file {str(path)!r}")
    return text


def schema_text(schema: str | Path | Mapping[str, Any], setting: str) -> str:
    """Returns a schema as JSON text, given JSON text, the path of an ``.avsc`` file, or parsed JSON."""
    if isinstance(schema, Mapping):
        return json.dumps(dict(schema))
    if isinstance(schema, Path) or str(schema).endswith(".avsc"):
        return read_avsc(schema)
    parse(str(schema), f"{setting}={str(schema)[:60]!r}")
    return str(schema)


def full_name(schema: Schema) -> str | None:
    """Returns a named type's name with its namespace; None for other types."""
    if isinstance(schema, dict) and schema.get("type") in _NAMED:
        return _full(schema["name"], schema.get("namespace", ""))
    return None


def may_be_null(schema: Schema) -> bool:
    """Returns True if null is one of the schema's values."""
    if isinstance(schema, list):
        return any(may_be_null(one) for one in schema)
    return schema == "null" or (isinstance(schema, dict) and schema.get("type") == "null")


def is_recursive(schema: Schema) -> bool:
    """Returns True if a record contains itself, at any depth."""
    return _holds_itself(schema, "", ())


def inline(schema: Schema, references: Mapping[str, Schema]) -> Schema:
    """Returns the schema with every referenced type inlined at its first use.

    ``references`` has the schemas that define the types, under the names that the registry lists them by.

    Raises:
        ConfigurationError: If a type is not defined anywhere.
    """
    definitions = {name: one for found in references.values() for name, one in _definitions(found, "")}
    return _inlined(schema, "", definitions, set())


def writer_envelope(text: str) -> str:
    """Returns the schema of a record including its header."""
    header = {"name": "header", "type": {"type": "fixed", "name": _HEADER, "size": HEADER_BYTES}}
    return _envelope([header, {"name": "value", "type": json.loads(text)}])


def reader_envelope(text: str) -> str:
    """Returns the schema for reading a `writer_envelope`.

    The schema has no header, so Avro skips the header. If the record itself may be null, the field ``ok``, which is
    true by default, distinguishes a null value from an unreadable record. Otherwise, the field is left out to save
    time.
    """
    schema = json.loads(text)
    ok = [{"name": "ok", "type": "boolean", "default": True}] if may_be_null(schema) else []
    return _envelope([{"name": "value", "type": schema}, *ok])


def _envelope(fields: list[dict[str, Any]]) -> str:
    # Leave the envelope without a namespace, so that names inside the record still resolve the same way.
    return json.dumps({"type": "record", "name": _ENVELOPE, "fields": fields})


def _full(name: str, namespace: str | None) -> str:
    return name if "." in name or not namespace else f"{namespace}.{name}"


def parts(schema: Schema) -> list[Schema]:
    """Returns the schemas that are directly inside a schema."""
    if isinstance(schema, list):
        return schema
    if isinstance(schema, str):
        return []
    kind = schema.get("type")
    if kind in ("record", "error"):
        return [field["type"] for field in schema["fields"]]
    if kind == "array":
        return [schema["items"]]
    if kind == "map":
        return [schema["values"]]
    return [kind] if isinstance(kind, dict | list) else []


def _named(schema: Schema, namespace: str) -> tuple[str | None, str]:
    """Returns the full name that a schema defines, and the namespace inside it."""
    if isinstance(schema, dict) and schema.get("type") in _NAMED:
        full = _full(schema["name"], schema.get("namespace", namespace))
        return full, full.rpartition(".")[0]
    return None, namespace


def _definitions(schema: Schema, namespace: str) -> Iterator[tuple[str, Schema]]:
    """Yields all named types that a schema defines, each with its namespace, so that each can be read independently."""
    full, inside = _named(schema, namespace)
    if full is not None and isinstance(schema, dict):
        yield full, {**schema, "name": full.rpartition(".")[2], "namespace": inside}
    for part in parts(schema):
        yield from _definitions(part, inside)


def _holds_itself(schema: Schema, namespace: str, around: tuple[str, ...]) -> bool:
    if isinstance(schema, str):
        return schema not in PRIMITIVES and (_full(schema, namespace) in around or schema in around)
    if isinstance(schema, dict) and isinstance(schema.get("type"), str) and not parts(schema):
        return _holds_itself(schema["type"], namespace, around) if schema["type"] not in _NAMED else False
    full, inside = _named(schema, namespace)
    around = (*around, full) if full is not None else around
    return any(_holds_itself(part, inside, around) for part in parts(schema))


def _inlined(schema: Schema, namespace: str, definitions: Mapping[str, Schema], done: set[str]) -> Schema:
    if isinstance(schema, list):
        return [_inlined(one, namespace, definitions, done) for one in schema]
    if isinstance(schema, str):
        return _inlined_name(schema, namespace, definitions, done)
    kind = schema["type"]
    if kind == "array":
        return {**schema, "items": _inlined(schema["items"], namespace, definitions, done)}
    if kind == "map":
        return {**schema, "values": _inlined(schema["values"], namespace, definitions, done)}
    full, inside = _named(schema, namespace)
    if full is None:
        return {**schema, "type": _inlined(kind, namespace, definitions, done)}
    if full in done:
        return full
    done.add(full)
    own = {**schema, "name": full.rpartition(".")[2], "namespace": inside}
    if kind in ("record", "error"):
        own["fields"] = [
            {**field, "type": _inlined(field["type"], inside, definitions, done)} for field in schema["fields"]
        ]
    return own


def _inlined_name(name: str, namespace: str, definitions: Mapping[str, Schema], done: set[str]) -> Schema:
    if name in PRIMITIVES:
        return name
    # Like Java's parser, look up an unqualified name in the enclosing namespace first, and then without a namespace.
    for full in (_full(name, namespace), name):
        if full in done:
            return full
        if full in definitions:
            return _inlined(definitions[full], "", definitions, done)
    raise ConfigurationError(
        f"The schema names the type {name!r}, which neither it nor its references define.",
        next_step="Register the schema that defines it, and list it among the references.",
    )


class SubjectStrategy(str, Enum):
    """The strategies for naming subjects."""

    TOPIC_NAME = "topic-name"
    """``<topic>-value`` or ``<topic>-key``: one schema for all records of a topic. The default of every client."""
    RECORD_NAME = "record-name"
    """The record's full name: one schema for a type, across topics."""
    TOPIC_RECORD_NAME = "topic-record-name"
    """``<topic>-<full name>``: several types in one topic, each with its own history."""


def subject_name(strategy: SubjectStrategy | str, *, topic: str | None, field: str, record: str | None) -> str:
    """Returns the subject of a schema whose field is ``value`` or ``key``.

    Raises:
        ConfigurationError: If the strategy needs a topic or a record's full name, and there is none.
    """
    chosen = member("strategy", strategy, SubjectStrategy)
    one_of("field", field, ("value", "key"))
    if chosen is not SubjectStrategy.RECORD_NAME and not topic:
        raise ConfigurationError(
            f"strategy={chosen.value} needs topic, and topic={topic!r}.", next_step="Give the topic's name."
        )
    if chosen is SubjectStrategy.TOPIC_NAME:
        return f"{topic}-{field}"
    if not record:
        raise ConfigurationError(
            f"strategy={chosen.value} needs a named type, and the schema has no name.",
            next_step="Make the schema a record with a name, or use strategy=topic-name.",
        )
    return record if chosen is SubjectStrategy.RECORD_NAME else f"{topic}-{record}"
