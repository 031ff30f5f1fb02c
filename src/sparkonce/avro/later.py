"""Records whose schema was registered after the query had started: the plan is made by then, so a worker asks.

The worker finds the schema in the registry and writes the record anew, in the reader's schema and with a header before
it, so that the JVM decodes it as all others.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import pandas as pd
from pyspark.sql import Column
from pyspark.sql.functions import pandas_udf

from sparkonce.avro.registry import SchemaRegistry
from sparkonce.avro.schemas import wire_header
from sparkonce.avro.transcode import MalformedError, Transcoder, UnresolvableError
from sparkonce.errors import ConfigurationError

T = TypeVar("T")

DECODABLE = b"\0"
"""The first byte of an answer that holds a record: a registry's header begins with it."""
TOLD = b"\1"
"""The first byte of an answer that gives, in UTF-8, the reason why there is no record."""

ASK_AGAIN_AFTER_S = 1.0
"""A registry of several nodes may not know everywhere yet what was registered a moment ago."""

KEEP_S = 10.0
"""The time for which a worker keeps an answer about an id: an id may appear, or change its subject."""
MOST_KEPT = 100_000
_MOST_NAMED = 5

# What a worker has learned, for as long as it lives. A schema does not change.
_answers: dict[tuple[str, int, str], Transcoder | str | UnresolvableError] = {}
# What may change, and until when it is believed.
_kept: dict[Hashable, tuple[float, Any]] = {}

_REWRITTEN = wire_header(0)
"""The id in it means nothing: the plan knows where the record comes from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The request of a plan to a worker.

    Attributes:
        registry: Whom to ask.
        reader: The schema of the result.
        subjects: Those whose versions the plan reads in the JVM, when it is made anew.
    """

    registry: SchemaRegistry
    reader: str
    subjects: Sequence[str]


def ask_registry(asked: Asked) -> Callable[[Column], Column]:
    """A function of binary values with a header, or null, that gives `DECODABLE` or `TOLD` values, or null for null."""

    @pandas_udf("binary")  # type: ignore[untyped-decorator]  # PySpark's types are not read
    def ask(values: pd.Series) -> pd.Series:
        later = values[values.notna()]
        if later.empty:
            return values
        return values.where(values.isna(), later.map(_Answers(asked, later)))

    function: Callable[[Column], Column] = ask
    return function


class _Answers:
    """Answers for the records of one batch of rows.

    Each id is asked about once, or twice if it is not found; those that are not found are waited for together.
    """

    def __init__(self, asked: Asked, values: pd.Series) -> None:
        self._asked = asked
        ids = {_id(value) for value in values}
        self._found = {number: self._find(number) for number in ids if not _is_kept(self._unknown(number))}
        missing = [number for number, found in self._found.items() if found is None]
        if missing:
            time.sleep(ASK_AGAIN_AFTER_S)
        for number in missing:
            self._found[number] = self._find(number)
            if self._found[number] is None:
                _keep(self._unknown(number), None)

    def __call__(self, value: bytes) -> bytes:
        number = _id(value)
        found = self._found.get(number)
        if found is None:
            return _told(f"schema id {number} is not known to the registry")
        if isinstance(found, str):
            return _told(found)
        if isinstance(found, UnresolvableError):
            return _told(self._foreign(number, found))
        try:
            return _REWRITTEN + found(bytes(value)[len(_REWRITTEN) :])
        except MalformedError as error:
            return _told(f"it is malformed for schema id {number}: {error}")
        except UnresolvableError as error:
            return _told(self._foreign(number, error))

    def _find(self, number: int) -> Transcoder | str | UnresolvableError | None:
        """Returns the schema's transcoder: None if there is none, a text if it is of another kind. Raises the rest."""
        asked = self._asked
        key = (asked.registry.key, number, asked.reader)
        if key not in _answers:
            try:
                schema = asked.registry.find(number)
                if schema is None:
                    return None
                _answers[key] = Transcoder(schema.text, asked.reader)
            except UnresolvableError as error:
                _answers[key] = error
            except ConfigurationError as error:
                if "kind" not in error.details:
                    raise
                _answers[key] = error.message
        return _answers[key]

    def _foreign(self, number: int, error: UnresolvableError) -> str:
        """Returns why there is no record. Raises if a restart would find one, since Java then reads the schema."""
        registry, ours = self._asked.registry, ", ".join(self._asked.subjects)
        key = (registry.key, "subjects", number)
        subjects = _kept[key][1] if _is_kept(key) else _keep(key, registry.subjects(number))
        if set(subjects) & set(self._asked.subjects):
            raise ConfigurationError(
                f"schema id {number} was registered under {ours} after the query had started, and {error}",
                next_step="start the query again: all schemas that are registered by then are read by Java. Nothing is "
                "lost.",
            )
        named = ", ".join(subjects[:_MOST_NAMED]) + (", …" if len(subjects) > _MOST_NAMED else "")
        whose = f"belongs to subject {named}" if subjects else "belongs to no subject"
        return (
            f"schema id {number} {whose}, not to {ours}, and {error}; if such records belong here, add their subject "
            "to subject="
        )

    def _unknown(self, number: int) -> Hashable:
        return (self._asked.registry.key, "unknown", number)


def _is_kept(key: Hashable) -> bool:
    return key in _kept and time.monotonic() < _kept[key][0]


def _keep(key: Hashable, value: T) -> T:
    if len(_kept) >= MOST_KEPT:
        _kept.clear()
    _kept[key] = (time.monotonic() + KEEP_S, value)
    return value


def _id(value: bytes) -> int:
    return int.from_bytes(bytes(value)[1 : len(_REWRITTEN)], "big")


def _told(reason: str) -> bytes:
    return TOLD + reason.encode()
