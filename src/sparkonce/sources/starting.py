"""Turns the position at which a Kafka source first starts into options of Spark's source."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime

from sparkonce.errors import ConfigurationError

Position = int | str | datetime
Starting = str | datetime | Mapping[str, Mapping[int, Position]]
"""``earliest``, ``latest``, a time, or for each topic and partition an offset, one of the two words, or a time."""

_WORDS = {"earliest": -2, "latest": -1}
"""Spark's numbers for these words (Structured Streaming + Kafka Integration Guide, ``startingOffsets``)."""


def starting_options(starting: Starting) -> dict[str, str]:
    """Returns Spark's options for the position.

    Raises:
        ConfigurationError: naming the value that is no position, or times and offsets that are mixed.
    """
    if isinstance(starting, datetime):
        return {"startingTimestamp": str(_milliseconds(starting))}
    if isinstance(starting, str):
        if starting not in _WORDS:
            raise _refused(starting)
        return {"startingOffsets": starting}
    if (
        not isinstance(starting, Mapping)
        or not starting
        or not all(isinstance(one, Mapping) and one for one in starting.values())
    ):
        raise _refused(starting)
    positions = [position for partitions in starting.values() for position in partitions.values()]
    times = [isinstance(position, datetime) for position in positions]
    if any(times) and not all(times):
        raise ConfigurationError(
            "starting holds both times and offsets, and Spark takes one kind for all partitions.",
            next_step="Give times only, or offsets, 'earliest' and 'latest' only.",
            setting="starting",
        )
    option = "startingOffsetsByTimestamp" if any(times) else "startingOffsets"
    numbers = {
        topic: {str(partition): _number(position) for partition, position in partitions.items()}
        for topic, partitions in starting.items()
    }
    return {option: json.dumps(numbers)}


def _number(position: Position) -> int:
    if isinstance(position, datetime):
        return _milliseconds(position)
    if isinstance(position, str) and position in _WORDS:
        return _WORDS[position]
    if isinstance(position, int) and not isinstance(position, bool) and position >= 0:
        return position
    raise _refused(position)


def _milliseconds(time: datetime) -> int:
    if time.tzinfo is None:
        raise ConfigurationError(
            f"starting={time!r} has no time zone, so it is not clear which instant it is.",
            next_step="Use an aware datetime, for example datetime(2026, 1, 31, tzinfo=timezone.utc).",
            setting="starting",
        )
    return int(time.timestamp() * 1000)


def _refused(value: object) -> ConfigurationError:
    return ConfigurationError(
        f"starting={value!r} is no position.",
        next_step="Use 'earliest', 'latest', an aware datetime, or {topic: {partition: offset, word or datetime}} that "
        "names every partition.",
        setting="starting",
    )
