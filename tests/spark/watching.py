"""A read_committed reader that looks all the time, also while everything else is killed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sparkonce.testing.kafka_reader import LiveReader

Place = tuple[int, int]
"""Partition and offset."""

_LIMIT_S = 60.0


class Watcher(LiveReader):
    """Notes each record of a topic when it first sees it.

    Args:
        bootstrap: ``bootstrap.servers``.
        topic: The query's target.
        partitions: How many it has.
        decided: Asks the query's log for the last batch that is decided now; -1 for none.

    Attributes:
        seen: The key of each record, by its place.
        early: Records that were there to be read before the log had their batch decided.
        changed: Places at which different records were seen.
    """

    def __init__(self, bootstrap: str, topic: str, partitions: int, decided: Callable[[], int]) -> None:
        super().__init__(bootstrap, topic, partitions)
        self.seen: dict[Place, bytes | None] = {}
        self.early = 0
        self.changed = 0
        self._decided = decided
        self._known = -1

    def catch_up(self, standing: Mapping[Place, bytes | None]) -> None:
        """Waits until everything that stands in the topic has been seen."""
        caught_up = self.wait_for(lambda: standing.keys() <= self.seen.keys(), _LIMIT_S)
        assert caught_up, f"{len(standing.keys() - self.seen.keys())} were never seen"

    def not_among(self, standing: Mapping[Place, bytes | None]) -> int:
        """Counts the records that were seen and do not stand there."""
        return self.changed + sum(place not in standing or standing[place] != key for place, key in self.seen.items())

    def take(self, messages: Sequence[Any]) -> None:
        # The log is read after the rows: what is not decided now was not decided when they were seen.
        if max(map(_batch, messages), default=-1) > self._known:
            self._known = self._decided()
        for message in messages:
            self.early += _batch(message) > self._known
            place = (message.partition(), message.offset())
            self.changed += place in self.seen and self.seen[place] != message.key()
            self.seen[place] = message.key()


def _batch(message: Any) -> int:
    return int(message.value().split()[0])
