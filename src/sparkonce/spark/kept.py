"""Keeps objects of the JVM from batch to batch: each call to it takes a third of a millisecond, and they take many."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, TypeVar, cast

_Made = TypeVar("_Made")
_MOST = 16
_MISSING = object()


class Kept:
    """Objects that are made once in a run of a query, by what they were made of. Another run may have another JVM."""

    def __init__(self) -> None:
        self._made: dict[Hashable, Any] = {}

    def get(self, key: Hashable, make: Callable[[], _Made]) -> _Made:
        """Returns what was made for this key, or makes it. Threads may call it; two may both make the same."""
        made = self._made.get(key, _MISSING)
        if made is _MISSING:
            if len(self._made) >= _MOST:
                self._made.clear()
            self._made[key] = made = make()
        return cast(_Made, made)
