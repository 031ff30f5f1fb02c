"""Decodes records with a Schema Registry's header, in the JVM, by one ``from_avro`` for each schema of the subject.

The plan for a value, from the outside::

    coalesce(decoded.value, <why there is none>)
    decoded = CASE WHEN startswith(value, header of id 9) THEN from_avro(value, envelope of schema 9)
                   WHEN startswith(value, header of id 4) THEN from_avro(value, envelope of schema 4) ...

so a good record costs one comparison and one ``from_avro``, and everything else is looked at only where that gave null.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from sparkonce.avro.registry import RegisteredSchema, SchemaRegistry
from sparkonce.avro.schemas import HEADER_BYTES, may_be_null, parse, reader_envelope, schema_text, wire_header
from sparkonce.avro.schemas import writer_envelope as envelope
from sparkonce.errors import ConfigurationError
from sparkonce.spark.avro import module
from sparkonce.spark.avro.later import DECODABLE, ask_registry

STOP, ASK = "stop", "ask"
"""What to do with an id that the plan does not know."""


class Decoding:
    """The columns that come of a column of records: the value, and why there is none.

    Args:
        value: Binary, or null for a tombstone.
        subjects: Whose versions are known to the plan.
        registry: The registry.
        reader: See `sparkonce.from_registry_avro`.
        later_ids: See `sparkonce.from_registry_avro`.
        options: See `sparkonce.from_registry_avro`.

    Raises:
        ConfigurationError, RegistryError: see `sparkonce.from_registry_avro`.
    """

    def __init__(
        self,
        value: Column,
        *,
        subjects: Sequence[str],
        registry: SchemaRegistry,
        reader: int | str | Path | Mapping[str, Any] | None,
        later_ids: str,
        options: Mapping[str, str] | None,
    ) -> None:
        self._value = value
        self._subjects = subjects
        self._options = module.check_options(options)
        known = {version.id: version for subject in subjects for version in registry.versions(subject)}
        # Ids are given in order: the highest is the newest, and most records have it.
        self._known = [known[schema_id] for schema_id in sorted(known, reverse=True)]
        self._schema, where = _reader_schema(reader, subjects, registry)
        module.check_readable(self._schema, where, self._options)
        self._late = self._asked(registry) if later_ids == ASK else None
        self._decoded = self._branches()

    @property
    def value(self) -> Column:
        """The record; null if there is none."""
        return self._decoded["value"]

    def value_or_stop(self, located_by: Sequence[str]) -> Column:
        """The record. Where there are bytes and no record, the query stops and says why."""
        stop = F.raise_error(self.complaint(located_by))
        return F.coalesce(self.value, F.when(self._failed, stop))

    def value_and_letter(self, located_by: Sequence[str]) -> Column:
        """A struct of ``record`` and ``dead_letter``, of which one at most is not null."""
        letter = F.struct(self.reason.alias("reason"), self.schema_id.alias("schema_id"), self._value.alias("value"))
        if self._late is None:
            # It may be a good record, of a schema that is younger than the plan: never a dead letter.
            stop = F.raise_error(self.complaint(located_by))
            letter = F.when(self._is_framed() & ~self._is_known(), stop).otherwise(letter)
        dead = F.when(self.value.isNull() & self._failed, letter)
        return F.struct(self.value.alias("record"), dead.alias("dead_letter"))

    @property
    def _failed(self) -> Column:
        """Of a value that is null: whether there are bytes that should have been a record."""
        unread = self._decoded["ok"].isNull() if may_be_null(parse(self._schema, "")) else F.lit(True)
        return self._value.isNotNull() & unread

    @property
    def reason(self) -> Column:
        """Why a value could not be decoded."""
        size = F.octet_length(self._value).cast("string")
        unframed = F.concat(
            F.lit("it is not in the registry's wire format: "),
            size,
            F.lit(" bytes that begin with 0x"),
            F.hex(F.substring(self._value, 1, HEADER_BYTES)),
        )
        malformed = F.concat(F.lit("it is malformed for schema id "), self.schema_id.cast("string"))
        unknown = F.concat(
            F.lit("schema id "),
            self.schema_id.cast("string"),
            F.lit(f" was not among those of {_listed(self._subjects)} when the query started"),
        )
        if self._late is not None:
            told = F.decode(F.substring(self._late, 2, 1 << 20), "utf-8")
            unknown = F.when(F.startswith(self._late, F.lit(DECODABLE)), malformed).otherwise(told)
        return F.when(~self._is_framed(), unframed).when(self._is_known(), malformed).otherwise(unknown)

    @property
    def schema_id(self) -> Column:
        """The id in the header, or null if there is no header."""
        number = F.conv(F.hex(F.substring(self._value, 2, HEADER_BYTES - 1)), 16, 10).cast("long")
        return F.when(self._is_framed(), number)

    def complaint(self, located_by: Sequence[str]) -> Column:
        """What a query says that stops at a value which cannot be decoded."""
        where = [F.concat(F.lit(f"{name}="), F.col(name).cast("string")) for name in located_by]
        next_step = F.lit("Next: correct the record's writer, or set on_error to dead-letter or drop.")
        if self._late is None:
            restart = (
                "Next: if it was registered since then, start the query again, which reads it; nothing is lost. "
                "Otherwise set later_ids to ask, and on_error to dead-letter or drop."
            )
            next_step = F.when(self._is_framed() & ~self._is_known(), restart).otherwise(next_step)
        at = [F.lit("at"), *where] if where else []
        why = F.concat(F.lit(f"(subject {_listed(self._subjects)}): "), self.reason, F.lit("."))
        return F.concat_ws(" ", F.lit("sparkonce: cannot decode the record"), *at, why, next_step)

    def _is_framed(self) -> Column:
        return F.startswith(self._value, F.lit(b"\0")) & (F.octet_length(self._value) >= HEADER_BYTES)

    def _is_known(self) -> Column:
        known = F.lit(False)
        for version in reversed(self._known):
            known = _has_id(self._value, version) | known
        return known

    def _asked(self, registry: SchemaRegistry) -> Column:
        unknown = F.when(~self._is_known() & self._is_framed(), self._value)
        return ask_registry(registry, self._schema)(unknown)

    def _branches(self) -> Column:
        reader = reader_envelope(self._schema)
        decoded: Any = F
        for version in self._known:
            row = module.read(self._value, envelope(version.text), reader, self._options)
            decoded = decoded.when(_has_id(self._value, version), row)
        if self._late is not None:
            # What the worker gives back is written in the reader's own schema.
            late = F.when(F.startswith(self._late, F.lit(DECODABLE)), self._late)
            decoded = decoded.otherwise(module.read(late, envelope(self._schema), reader, self._options))
        return decoded


def _has_id(value: Column, version: RegisteredSchema) -> Column:
    return F.startswith(value, F.lit(wire_header(version.id)))


def _listed(subjects: Sequence[str]) -> str:
    return ", ".join(subjects)


def _reader_schema(
    reader: int | str | Path | Mapping[str, Any] | None, subjects: Sequence[str], registry: SchemaRegistry
) -> tuple[str, str]:
    """The reader's schema, and where it is from."""
    if reader is not None and not isinstance(reader, int):
        return schema_text(reader, "reader"), f"reader={str(reader)[:60]!r}"
    if len(subjects) > 1:
        raise ConfigurationError(
            f"subject={list(subjects)} are several, so there is no latest version or version {reader}",
            next_step="give reader the path of an .avsc file, or a schema's JSON.",
        )
    found = registry.latest(subjects[0]) if reader is None else registry.version(subjects[0], reader)
    return found.text, f"version {found.version} of subject {found.subject!r}"
