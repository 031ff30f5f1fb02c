"""Clients of servers that are not there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from sparkonce.sinks.kafka.committer import KafkaCommitter


class Postgres:
    """A connection: keeps what is executed, and answers the first whose words are in the statement."""

    def __init__(self, answers: Mapping[str, Sequence[tuple[object, ...]]]) -> None:
        self._answers = answers
        self.executed: list[str] = []
        self.info = SimpleNamespace(backend_pid=1)

    def execute(self, statement: Any, values: object = None) -> Any:
        text = statement if isinstance(statement, str) else statement.as_string(None)
        self.executed.append(text)
        rows = next((rows for words, rows in self._answers.items() if words in text), ())
        first = next(iter(rows), None)
        return SimpleNamespace(fetchall=lambda: list(rows), fetchone=lambda: first, nextset=lambda: None)


def kafka_committer(**client: Any) -> KafkaCommitter:
    """A committer whose client has these methods."""
    made = KafkaCommitter.__new__(KafkaCommitter)
    made._client = SimpleNamespace(**client)  # type: ignore[assignment]
    made._name, made._attempt_timeout_s = "kafka", 10.0
    made._retention = made._leaders = SimpleNamespace(held_back=lambda *_: {})  # type: ignore[assignment]
    return made
