"""Decides whether records written with one Avro schema can be read with another: BACKWARD of the registry double."""

from __future__ import annotations

from typing import Any

from sparkonce.avro.schemas import Schema, full_name

_WIDER = {
    "int": {"long", "float", "double"},
    "long": {"float", "double"},
    "float": {"double"},
    "string": {"bytes"},
    "bytes": {"string"},
}
"""https://avro.apache.org/docs/1.12.0/specification/#schema-resolution"""


def can_read(reader: Schema, writer: Schema) -> bool:
    """Tells whether every record of the writer's schema can be read. A type that is only named again is not checked."""
    if isinstance(writer, list):
        return all(can_read(reader, one) for one in writer)
    if isinstance(reader, list):
        return any(can_read(one, writer) for one in reader)
    wanted, given = _kind(reader), _kind(writer)
    if wanted != given:
        return wanted in _WIDER.get(given, ())
    if not isinstance(reader, dict) or not isinstance(writer, dict):
        return True
    return _parts_can_be_read(wanted, reader, writer)


def _parts_can_be_read(kind: str, reader: dict[str, Any], writer: dict[str, Any]) -> bool:
    if kind == "record":
        written = {field["name"]: field["type"] for field in writer["fields"]}
        return all(_field_can_be_read(field, written) for field in reader["fields"])
    if kind == "array":
        return can_read(reader["items"], writer["items"])
    if kind == "map":
        return can_read(reader["values"], writer["values"])
    if kind == "enum":
        return "default" in reader or set(writer["symbols"]) <= set(reader["symbols"])
    if kind == "fixed":
        return bool(full_name(reader) == full_name(writer) and reader["size"] == writer["size"])
    return True


def _field_can_be_read(field: dict[str, Any], written: dict[str, Any]) -> bool:
    for name in (field["name"], *field.get("aliases", ())):
        if name in written:
            return can_read(field["type"], written[name])
    return "default" in field


def _kind(schema: Schema) -> str:
    if isinstance(schema, dict):
        kind = schema["type"]
        return _kind(kind) if isinstance(kind, dict) else str(kind)
    return str(schema)
