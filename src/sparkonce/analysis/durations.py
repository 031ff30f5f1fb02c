"""Reads and writes durations in people's notation: ``90s``, ``2h``, ``1 day 12 hours``."""

from __future__ import annotations

import re
from datetime import timedelta

from sparkonce.errors import ConfigurationError

_UNITS = {"ms": 0.001, "s": 1, "second": 1, "m": 60, "minute": 60, "h": 3600, "hour": 3600, "d": 86400, "day": 86400}
_UNITS |= {"sec": 1, "min": 60, "w": 604800, "week": 604800, "millisecond": 0.001}
_ONE = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]+)")


def parse_duration(text: str, what: str) -> timedelta:
    """Returns the duration that a text names; a number alone is milliseconds, as for Spark and Kafka.

    Args:
        text: For example ``2h``, ``7d``, ``10 minutes``.
        what: The name of the setting, for the error.

    Raises:
        ConfigurationError: if it names none.
    """
    said = text.strip().lower()
    if said.isdecimal():
        return timedelta(milliseconds=int(said))
    seconds = 0.0
    for number, unit in _ONE.findall(said):
        if (each := _UNITS.get(unit, _UNITS.get(unit.removesuffix("s")))) is None:
            break
        seconds += float(number) * each
    else:
        if said and not _ONE.sub("", said).strip():
            return timedelta(seconds=seconds)
    raise ConfigurationError(f"{what}={text!r} is not a duration.", next_step="Write it like 90s, 15m, 2h or 7d.")


def say(duration: timedelta) -> str:
    """Returns the duration in the largest units that fit, two at most."""
    left = round(duration.total_seconds() * 1000)
    parts = []
    for unit, size in (("day", 86_400_000), ("hour", 3_600_000), ("minute", 60_000), ("second", 1000), ("ms", 1)):
        count, left = divmod(left, size)
        if count:
            parts.append(f"{count} {unit}{'s' if count > 1 and unit != 'ms' else ''}")
    return " ".join(parts[:2]) or "0 s"
