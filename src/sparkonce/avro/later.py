"""Decodes records whose schema was registered after the query was started.

By then, the plan is fixed. A Python worker therefore looks up the schema in the registry, rewrites the record in the
reader's schema, and prepends a header, so that the JVM decodes it like any other record.
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
"""The first byte of an answer with a record, the same as that of a registry header."""
REASON = b"\1"
"""The first byte of an answer with the reason, in UTF-8, why there is no record."""

ASK_AGAIN_AFTER_S = 1.0
"""The pause before an unknown id is looked up again: a new schema takes a moment to reach every node of a registry."""

KEEP_S = 10.0
"""How long a worker caches an answer about an id, in seconds. Later, the id may be registered, or have other subjects.
"""
MOST_CACHED = 100_000
_MOST_NAMED = 5

# These answers are cached until the worker exits, since a schema never changes.
_answers: dict[tuple[str, int, str], Transcoder | str | UnresolvableError] = {}
# These answers may change, so each one has an expiry time.
_expiring: dict[Hashable, tuple[float, Any]] = {}

_REWRITTEN = wire_header(0)
"""The header of a rewritten record. Its id has no meaning: the plan knows that the record is in the reader's schema."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaRequest:
    """A plan's request to a worker: the registry to query, and the schema of the result.

    A new plan would decode all versions of the subjects in the JVM.
    """

    registry: SchemaRegistry
    reader: str
    subjects: Sequence[str]


def ask_registry(request: SchemaRequest) -> Callable[[Column], Column]:
    """Returns a function that maps records with a header to `DECODABLE` or `REASON` answers. Null remains null."""

    @pandas_udf("binary")  # type: ignore[untyped-decorator]  # PySpark's types are not read
    def ask(values: pd.Series) -> pd.Series:
        later = values[values.notna()]
        if later.empty:
            return values
        return values.where(values.isna(), later.map(_Rewriter(request, later)))

    function: Callable[[Column], Column] = ask
    return function


class _Rewriter:
    """Rewrites the records of one batch of rows.

    The registry is queried once for each id, and once more, after a pause, for ids that it did not know.
    """

    def __init__(self, request: SchemaRequest, values: pd.Series) -> None:
        self._request = request
        ids = {_id(value) for value in values}
        self._found = {number: self._find(number) for number in ids if not _is_fresh(self._unknown(number))}
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
            return _reason(f"schema id {number} is not known to the registry")
        if isinstance(found, str):
            return _reason(found)
        if isinstance(found, UnresolvableError):
            return _reason(self._foreign(number, found))
        try:
            return _REWRITTEN + found(bytes(value)[len(_REWRITTEN) :])
        except MalformedError as error:
            return _reason(f"it is malformed for schema id {number}: {error}")
        except UnresolvableError as error:
            return _reason(self._foreign(number, error))

    def _find(self, number: int) -> Transcoder | str | UnresolvableError | None:
        """Returns the schema's transcoder; None for an unknown id, or a message for a schema that is not Avro.

        Other errors are raised: they stop the query.
        """
        request = self._request
        key = (request.registry.key, number, request.reader)
        if key not in _answers:
            try:
                schema = request.registry.find(number)
                if schema is None:
                    return None
                _answers[key] = Transcoder(schema.text, request.reader)
            except UnresolvableError as error:
                _answers[key] = error
            except ConfigurationError as error:
                if "kind" not in error.details:
                    raise
                _answers[key] = error.message.rstrip(".")  # The message becomes a clause in the dead letter's reason.
        return _answers[key]

    def _foreign(self, number: int, error: UnresolvableError) -> str:
        """Returns the reason why a record cannot be decoded.

        Raises an error instead if a restart helps, because Java then reads the schema.
        """
        registry, ours = self._request.registry, ", ".join(self._request.subjects)
        key = (registry.key, "subjects", number)
        subjects = _expiring[key][1] if _is_fresh(key) else _keep(key, registry.subjects(number))
        if set(subjects) & set(self._request.subjects):
            raise ConfigurationError(
                f"Schema id {number} was registered under {ours} after the query started, and {error}",
                next_step="Start the query again: Java then reads all schemas registered by now. Nothing is lost.",
            )
        named = ", ".join(subjects[:_MOST_NAMED]) + (", …" if len(subjects) > _MOST_NAMED else "")
        whose = f"belongs to subject {named}" if subjects else "belongs to no subject"
        return (
            f"schema id {number} {whose}, not to {ours}, and {error}; if such records belong here, add their subject "
            "to subject="
        )

    def _unknown(self, number: int) -> Hashable:
        return (self._request.registry.key, "unknown", number)


def _is_fresh(key: Hashable) -> bool:
    return key in _expiring and time.monotonic() < _expiring[key][0]


def _keep(key: Hashable, value: T) -> T:
    if len(_expiring) >= MOST_CACHED:
        _expiring.clear()
    _expiring[key] = (time.monotonic() + KEEP_S, value)
    return value


def _id(value: bytes) -> int:
    return int.from_bytes(bytes(value)[1 : len(_REWRITTEN)], "big")


def _reason(reason: str) -> bytes:
    return REASON + reason.encode()
