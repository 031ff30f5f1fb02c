"""Decodes records with a Schema Registry header, in the JVM, with one ``from_avro`` per schema of the subject.

The plan for a value, from the outside in::

    coalesce(decoded.value, <reason why there is none>)
    decoded = CASE WHEN startswith(value, header of id 9) THEN from_avro(value, envelope of schema 9)
                   WHEN startswith(value, header of id 4) THEN from_avro(value, envelope of schema 4) ...

A good record costs one comparison and one ``from_avro``. All other parts are evaluated only if ``from_avro`` returns
null.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from pyspark.sql import Column
from pyspark.sql import functions as F

from sparkonce.avro import module
from sparkonce.avro.registry import RegisteredSchema, SchemaRegistry
from sparkonce.avro.schemas import HEADER_BYTES, may_be_null, parse, reader_envelope, schema_text, wire_header
from sparkonce.avro.schemas import writer_envelope as envelope
from sparkonce.errors import ConfigurationError

STOP, REFUSE = "stop", "refuse"
"""The two ways to handle an id that the plan does not know."""


class Decoding:
    """Derives columns from a column of records: the decoded record, and the reason if there is none.

    The plan knows all versions of the subjects. A null value is a tombstone. See `sparkonce.avro.from_registry_avro`
    for the arguments and the errors.
    """

    def __init__(
        self,
        value: Column,
        *,
        subjects: Sequence[str],
        registry: SchemaRegistry,
        reader: int | str | Path | Mapping[str, Any] | None,
        later_ids: str,
        located_by: Sequence[str],
        options: Mapping[str, str] | None,
    ) -> None:
        self._value = value
        self._subjects = ", ".join(subjects)
        self._where = [F.concat(F.lit(f"{name}="), F.col(name).cast("string")) for name in located_by]
        self._options = module.check_options(options)
        known = {version.id: version for subject in subjects for version in registry.versions(subject)}
        # Compare with the newest schema first, since most records have it. The registry assigns ids in ascending order.
        self._known = [known[schema_id] for schema_id in sorted(known, reverse=True)]
        self._schema, where = _reader_schema(reader, subjects, registry)
        module.check_readable(self._schema, where, self._options)
        self._later_ids = later_ids
        self._decoded = self._branches()

    def value_or_stop(self) -> Column:
        """Returns the record. A value that is not a record stops the query; the error gives the reason."""
        stop = self._stop(self._reason(), "Correct the record's writer, or set on_error to dead-letter or drop.")
        return F.coalesce(self._decoded["value"], F.when(self._has_failed(), stop))

    def value_and_dead_letter(self) -> Column:
        """Returns a struct of ``record`` and ``dead_letter``, of which at most one is not null."""
        dead_letter = F.struct(
            self._reason().alias("reason"), self._schema_id().alias("schema_id"), self._value.alias("value")
        )
        record = self._decoded["value"]
        dead = F.when(record.isNull() & self._has_failed(), dead_letter)
        return F.struct(record.alias("record"), dead.alias("dead_letter"))

    def _branches(self) -> Column:
        """Returns a struct of ``value`` and, if null may be a value, ``ok``. Both are null for an unreadable record."""
        reader = reader_envelope(self._schema)
        decoded: Any = F
        for version in self._known:
            row = module.read(self._value, envelope(version.text), reader, self._options)
            decoded = decoded.when(_has_id(self._value, version), row)
        if self._later_ids == REFUSE:
            return cast(Column, decoded)
        # Fail the query for any on_error: this may be a good record whose schema is newer than the plan.
        restart = (
            f"If it is registered under {self._subjects} by now, start the query again, which then reads it; nothing "
            "is lost. If it belongs to another subject, add that to subject=. If it belongs to none: "
            "later_ids='refuse', and on_error='dead-letter' or 'drop'."
        )
        return decoded.otherwise(F.when(self._is_framed(), self._stop(self._unknown(), restart)))

    def _has_failed(self) -> Column:
        """Returns True where a null record means that the value could not be decoded."""
        unread = self._decoded["ok"].isNull() if may_be_null(parse(self._schema, "")) else F.lit(True)
        return self._value.isNotNull() & unread

    def _reason(self) -> Column:
        size = F.octet_length(self._value).cast("string")
        start = F.hex(F.substring(self._value, 1, HEADER_BYTES))
        unframed = F.concat(
            F.lit("it is not in the registry's wire format ("), size, F.lit(" bytes, the first 0x"), start, F.lit(")")
        )
        malformed = F.concat(
            F.lit("it is not a record of "), self._id_text(), F.lit(", or cannot be evolved to the reader's schema")
        )
        reason = F.when(~self._is_framed(), unframed)
        if self._later_ids == REFUSE:
            reason = reason.when(~self._is_known(), self._unknown())
        return reason.otherwise(malformed)

    def _unknown(self) -> Column:
        return F.concat(self._id_text(), F.lit(f" was not one of {self._subjects} when the query started"))

    def _stop(self, why: Column, next_step: str) -> Column:
        at = [F.lit("at"), *self._where] if self._where else []
        of = F.concat(F.lit(f"(subject {self._subjects}): "), why, F.lit("."))
        return F.raise_error(
            F.concat_ws(" ", F.lit("sparkonce cannot decode the record"), *at, of, F.lit(f"Next: {next_step}"))
        )

    def _schema_id(self) -> Column:
        number = F.conv(F.hex(F.substring(self._value, 2, HEADER_BYTES - 1)), 16, 10).cast("long")
        return F.when(self._is_framed(), number)

    def _id_text(self) -> Column:
        return F.concat(F.lit("schema id "), self._schema_id().cast("string"))

    def _is_framed(self) -> Column:
        return F.startswith(self._value, F.lit(b"\0")) & (F.octet_length(self._value) >= HEADER_BYTES)

    def _is_known(self) -> Column:
        known = F.lit(False)
        for version in reversed(self._known):
            known = _has_id(self._value, version) | known
        return known


def _has_id(value: Column, version: RegisteredSchema) -> Column:
    return F.startswith(value, F.lit(wire_header(version.id)))


def _reader_schema(
    reader: int | str | Path | Mapping[str, Any] | None, subjects: Sequence[str], registry: SchemaRegistry
) -> tuple[str, str]:
    """Returns the reader's schema, and the schema's origin for messages."""
    if reader is not None and not isinstance(reader, int):
        return schema_text(reader, "reader"), f"reader={str(reader)[:60]!r}"
    if len(subjects) > 1:
        raise ConfigurationError(
            f"subject={list(subjects)} names several subjects, so there is no latest version or version {reader}.",
            next_step="Give reader the path of an .avsc file, or a schema's JSON.",
        )
    found = registry.latest(subjects[0]) if reader is None else registry.version(subjects[0], reader)
    return found.text, f"version {found.version} of subject {found.subject!r}"
