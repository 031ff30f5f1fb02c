"""Records whose schema was registered after the query had started: the plan is made by then, so a worker asks.

The worker finds the schema in the registry and writes the record anew, in the reader's schema and with a header before
it, so that the JVM decodes it as all others.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import pandas as pd
from pyspark.sql import Column
from pyspark.sql.functions import pandas_udf

from sparkonce.avro.registry import SchemaRegistry
from sparkonce.avro.schemas import wire_header
from sparkonce.avro.transcode import MalformedError, Transcoder
from sparkonce.errors import ConfigurationError

DECODABLE = b"\0"
"""What an answer begins with that holds a record: a registry's header is its beginning."""
TOLD = b"\1"
"""What an answer begins with that says in UTF-8 why there is no record."""

ASK_AGAIN_AFTER_S = 1.0
"""A registry of several nodes may not know everywhere yet what was registered a moment ago."""

# What a worker has learned, for as long as it lives. A schema does not change; that there is none may.
_answers: dict[tuple[str, int, str], Transcoder | str] = {}

_REWRITTEN = wire_header(0)
"""The id in it means nothing: the plan knows where the record comes from."""


def ask_registry(registry: SchemaRegistry, reader: str) -> Callable[[Column], Column]:
    """A function of binary values with a header, or null, that gives `DECODABLE` or `TOLD` values, or null for null."""

    @pandas_udf("binary")  # type: ignore[untyped-decorator]  # PySpark's types are not read
    def ask(values: pd.Series) -> pd.Series:
        later = values[values.notna()]
        if later.empty:
            return values
        return values.where(values.isna(), later.map(_Answers(registry, reader, later)))

    function: Callable[[Column], Column] = ask
    return function


class _Answers:
    """Answers for the records of one batch of rows: each id is asked about once, or twice if it is not found."""

    def __init__(self, registry: SchemaRegistry, reader: str, values: pd.Series) -> None:
        ids = {_id(value) for value in values}
        self._transcoders = {number: _transcoder(registry, number, reader) for number in ids}
        missing = [number for number, found in self._transcoders.items() if found is None]
        if missing:
            time.sleep(ASK_AGAIN_AFTER_S)
            self._transcoders.update({number: _transcoder(registry, number, reader) for number in missing})

    def __call__(self, value: bytes) -> bytes:
        number = _id(value)
        found = self._transcoders[number]
        if found is None:
            return _told(f"schema id {number} is not known to the registry")
        if isinstance(found, str):
            return _told(found)
        try:
            return _REWRITTEN + found(bytes(value)[len(_REWRITTEN) :])
        except MalformedError as error:
            return _told(f"it is malformed for schema id {number}: {error}")


def _transcoder(registry: SchemaRegistry, number: int, reader: str) -> Transcoder | str | None:
    """None if there is no such schema, a text if it is of another kind. Whatever else goes wrong is raised."""
    key = (registry.key, number, reader)
    if key not in _answers:
        try:
            schema = registry.find(number)
        except ConfigurationError as error:
            if "kind" not in error.details:
                raise
            _answers[key] = error.message
            return error.message
        if schema is None:
            return None
        _answers[key] = Transcoder(schema.text, reader)
    return _answers[key]


def _id(value: bytes) -> int:
    return int.from_bytes(bytes(value)[1 : len(_REWRITTEN)], "big")


def _told(reason: str) -> bytes:
    return TOLD + reason.encode()
