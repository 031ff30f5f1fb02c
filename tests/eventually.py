"""Retries until the result is as wanted: this is how tests wait."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

LIMIT_S = 600.0 * float(os.environ.get("SPARKONCE_PATIENCE", "1"))
"""Multiplies all waits; set SPARKONCE_PATIENCE=4 on a busy machine."""
_POLL_S = 0.02


def eventually(
    ask: Callable[[], T], what: str = "", *, until: Callable[[T], bool] = bool, limit_s: float = LIMIT_S
) -> T:
    """Calls a function until its result is true or meets another condition, and returns the result.

    Raises:
        AssertionError: If the time is up. The message says what was waited for, or the last result.
    """
    give_up_at = time.monotonic() + limit_s
    while not until(answer := ask()):
        assert time.monotonic() < give_up_at, f"not after {limit_s:.0f} s: {what or answer!r}"
        time.sleep(_POLL_S)
    return answer
