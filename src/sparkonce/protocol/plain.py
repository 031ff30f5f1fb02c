"""Reads JSON from a file on a disk: gives plain values or a ValueError, whatever the file holds."""

from __future__ import annotations

import json
from typing import Any, NoReturn

_MOST = 2**64
"""Above every number that is ever written: a fingerprint is the largest."""


def read_json(data: bytes) -> Any:
    """Reads objects, arrays, texts, whole numbers, booleans and null.

    Raises:
        ValueError: for anything else: text that is no UTF-8, no JSON, or nested too deep for Python's reader; a
            fraction, NaN or infinity, none of which is ever written; a key that an object has twice.
    """
    try:
        return json.loads(
            data.decode("utf-8"),
            object_pairs_hook=_once,
            parse_float=_refuse,
            parse_constant=_refuse,
        )
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error


def text(value: Any) -> str:
    """Returns the value, which is a text.

    Raises:
        ValueError: if it is not.
    """
    if not isinstance(value, str):
        raise ValueError(f"{type(value).__name__} where a text is written")
    return value


def number(value: Any) -> int:
    """Returns the value, which is a whole number of at most 64 bits.

    Raises:
        ValueError: if it is not.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not -_MOST < value < _MOST:
        raise ValueError(f"{type(value).__name__} where a whole number of at most 64 bits is written")
    return value


def is_scalar(value: Any) -> bool:
    """Tells if the value is a text or such a number: a handle's fields hold nothing else."""
    try:
        return isinstance(value, str) or number(value) == value
    except ValueError:
        return False


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("an object has a key twice")
    return found


def _refuse(word: str) -> NoReturn:
    raise ValueError(f"{word[:20]} is no whole number")
