"""A read_committed reader that looks all the time, also while everything else is killed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import closing
from typing import Any

from striking.kafka_reader import KafkaReader

Place = tuple[int, int]
"""Partition and offset."""

_POLL_S = 0.1
_LIMIT_S = 60.0


class Watcher:
    """Reads a topic from its beginning in a thread of its own.

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
        self.seen: dict[Place, bytes | None] = {}
        self.early = 0
        self.changed = 0
        self._where = bootstrap, topic, partitions
        self._decided = decided
        self._known = -1
        self._changed = threading.Condition()
        self._stopping = threading.Event()
        self._failed: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=f"watcher of {topic}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(_LIMIT_S)
        if self._failed is not None:
            raise self._failed

    def catch_up(self, standing: Mapping[Place, bytes | None]) -> None:
        """Waits until everything that stands in the topic has been seen."""
        with self._changed:
            self._changed.wait_for(lambda: self._failed is not None or standing.keys() <= self.seen.keys(), _LIMIT_S)
        if self._failed is not None:
            raise self._failed
        assert standing.keys() <= self.seen.keys(), f"{len(standing.keys() - self.seen.keys())} were never seen"

    def not_among(self, standing: Mapping[Place, bytes | None]) -> int:
        """Counts the records that were seen and do not stand there."""
        return self.changed + sum(place not in standing or standing[place] != key for place, key in self.seen.items())

    def _run(self) -> None:
        try:
            with closing(KafkaReader(*self._where, wait_ms=500)) as reader:
                while not self._stopping.is_set():
                    self._take(reader.read(_POLL_S))
        except BaseException as error:  # noqa: BLE001 - raised where it is seen
            with self._changed:
                self._failed = error
                self._changed.notify_all()

    def _take(self, messages: list[Any]) -> None:
        # The log is read after the rows: what is not decided now was not decided when they were seen.
        if max(map(_batch, messages), default=-1) > self._known:
            self._known = self._decided()
        with self._changed:
            for message in messages:
                self.early += _batch(message) > self._known
                place = (message.partition(), message.offset())
                self.changed += place in self.seen and self.seen[place] != message.key()
                self.seen[place] = message.key()
            self._changed.notify_all()


def _batch(message: Any) -> int:
    return int(message.value().split()[0])
