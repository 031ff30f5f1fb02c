"""Keeps objects of the JVM from batch to batch: each call to it takes a third of a millisecond, and they take many."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, TypeVar, cast

_Made = TypeVar("_Made")
_MOST = 64


class Kept:
    """What is made once in a run of a query, by what it was made of. Another run may have another JVM."""

    def __init__(self) -> None:
        self._made: dict[Hashable, Any] = {}

    def get(self, key: Hashable, make: Callable[[], _Made]) -> _Made:
        """Returns what was made for this key, or makes it. Keys must not come anew with every batch for long."""
        if key not in self._made:
            if len(self._made) >= _MOST:
                self._made.clear()
            self._made[key] = make()
        return cast(_Made, self._made[key])
