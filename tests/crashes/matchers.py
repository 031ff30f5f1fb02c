"""Requests that are known by what came before them on their connection."""

from __future__ import annotations

import re
from collections.abc import Callable

from sparkonce.testing.proxy import Matcher


def after(first: bytes | re.Pattern[bytes], then: bytes, *, always: bool = False) -> Callable[[], Matcher]:
    """Knows the next request with these words after a piece with those; with ``always`` every one that follows."""
    before = first if isinstance(first, re.Pattern) else re.compile(re.escape(first))

    def new() -> Matcher:
        armed = False

        def match(piece: bytes) -> int | None:
            nonlocal armed
            place = piece.find(then)
            if armed and place >= 0:
                armed = always
                return place
            armed = armed or before.search(piece) is not None
            return None

        return match

    return new
