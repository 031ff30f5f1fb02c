"""The columns that a user asks for: Avro with a Schema Registry, and of plain schema files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from sparkonce.avro.registry import SchemaRegistry
from sparkonce.avro.schemas import schema_text
from sparkonce.errors import ConfigurationError
from sparkonce.spark.avro import module
from sparkonce.spark.avro.decode import ASK, DEAD_LETTER, FAIL, LOCATED_BY, STOP, Decoding


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
    """Decodes a column.

    Raises:
        ConfigurationError: if
    """
    decoding = Decoding(
        F.col(column) if isinstance(column, str) else column,
        subjects=[subject] if isinstance(subject, str) else list(subject),
        registry=registry,
        reader=reader,
        later_ids=later_ids or (STOP if on_error == FAIL else ASK),
        options=options,
    )
    complaint = F.raise_error(decoding.complaint(located_by))
    return F.coalesce(decoding.value, F.when(decoding.failed, complaint))
