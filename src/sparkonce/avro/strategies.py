"""Names the subject of a schema with one of the three strategies that every registry client supports.

See
https://docs.confluent.io/platform/current/schema-registry/fundamentals/serdes-develop/index.html#subject-name-strategy
"""

from __future__ import annotations

from enum import Enum

from sparkonce.arguments import member, one_of
from sparkonce.errors import ConfigurationError


class SubjectStrategy(str, Enum):
    """The strategies for naming subjects."""

    TOPIC_NAME = "topic-name"
    """``<topic>-value`` or ``<topic>-key``: one schema for all records of a topic. The default of every client."""
    RECORD_NAME = "record-name"
    """The record's full name: one schema for a type, across topics."""
    TOPIC_RECORD_NAME = "topic-record-name"
    """``<topic>-<full name>``: several types in one topic, each with its own history."""


def subject_name(strategy: SubjectStrategy | str, *, topic: str | None, field: str, record: str | None) -> str:
    """Returns the subject of a schema whose field is ``value`` or ``key``.

    Raises:
        ConfigurationError: If the strategy needs a topic or a record's full name, and there is none.
    """
    chosen = member("strategy", strategy, SubjectStrategy)
    one_of("field", field, ("value", "key"))
    if chosen is not SubjectStrategy.RECORD_NAME and not topic:
        raise ConfigurationError(
            f"strategy={chosen.value} needs topic, and topic={topic!r}.", next_step="Give the topic's name."
        )
    if chosen is SubjectStrategy.TOPIC_NAME:
        return f"{topic}-{field}"
    if not record:
        raise ConfigurationError(
            f"strategy={chosen.value} needs a named type, and the schema has no name.",
            next_step="Make the schema a record with a name, or use strategy=topic-name.",
        )
    return record if chosen is SubjectStrategy.RECORD_NAME else f"{topic}-{record}"
