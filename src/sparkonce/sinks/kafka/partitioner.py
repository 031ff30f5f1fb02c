"""Chooses partitions for a whole Arrow batch of rows by their keys, as Kafka's own producers do."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from sparkonce.sinks.kafka.rows import bounds

Numbers = np.ndarray[Any, np.dtype[Any]]

_BY_HASH = "murmur2_random"
_STICKY = "sticky.partitioning.linger.ms"
_BYTES_ON_PARTITION = 1 << 20
_KNOWN_FOR_S = 300.0
"""librdkafka's ``topic.metadata.refresh.interval.ms``: partitions may have been added since the last refresh."""
_LONGEST_KEY = 1024
"""The maximum size of a key in bytes: hashing takes one step in Python for every four bytes of the longest key."""
_SEED, _FACTOR = np.uint32(0x9747B28C), np.uint32(0x5BD1E995)


class Partitioner:
    """Chooses partitions if the settings leave the choice to Kafka's default rule.

    librdkafka chooses partitions row by row: it locks the topic for each row, and cannot borrow the memory of rows
    whose partition it will choose. This class makes the same choice as librdkafka, so equal keys stay together.
    """

    def __init__(self, settings: Mapping[str, Any]) -> None:
        name = str(settings.get("partitioner", ""))
        self._hashes = name == _BY_HASH
        self._is_sticky = name.endswith("_random") and _STICKY not in settings
        self._at, self._on_partition = secrets.randbelow(1 << 16), 0
        self._counts: dict[str, int] = {}
        self._led: dict[str, Sequence[int]] = {}
        self._learnt_s: dict[str, float] = {}

    @property
    def chooses(self) -> bool:
        return self._hashes or self._is_sticky

    def knows(self, topic: str) -> bool:
        """Returns True if the topic was described so recently that librdkafka itself would not refresh it."""
        return time.monotonic() - self._learnt_s.get(topic, -_KNOWN_FOR_S) < _KNOWN_FOR_S

    def learn(self, topic: str, count: int, led: Sequence[int]) -> None:
        """Records how many partitions a topic has, and which of them have a leader."""
        self._counts[topic], self._led[topic], self._learnt_s[topic] = count, led, time.monotonic()

    def learn_nothing(self, topic: str) -> None:
        """Records that no broker answered. What is already known about the topic is used for longer."""
        self._learnt_s[topic] = time.monotonic()

    def forget(self) -> None:
        """Forgets all topics, so that they are looked up again."""
        self._counts.clear()
        self._led.clear()
        self._learnt_s.clear()

    def without_key(self, topic: str, size_bytes: int) -> int | None:
        """Returns one partition for about a megabyte of rows without keys, as Kafka's own producers do (KIP-794).

        librdkafka instead chooses a partition for each row until it knows the leaders, and checks for each row whether
        the partition has a leader. Returns None if librdkafka has to choose, because the brokers did not answer or a
        setting determines the choice.
        """
        led = self._led.get(topic)
        if not self._is_sticky or not led:
            return None
        self._on_partition += size_bytes
        if self._on_partition > _BYTES_ON_PARTITION:
            self._on_partition, self._at = size_bytes, self._at + 1
        return led[self._at % len(led)]

    def by_key(self, topic: str, keys: pa.Array) -> Numbers | None:
        """Returns a partition for each key, with an arbitrary number for a null; None if librdkafka has to choose."""
        count = self._counts.get(topic)
        if not self._hashes or not count or np.diff(bounds(keys)[0]).max(initial=0) > _LONGEST_KEY:
            return None
        return ((murmur2(keys) & np.uint32(0x7FFFFFFF)) % np.uint32(count)).astype(np.int32)


def murmur2(column: pa.Array) -> Numbers:
    """Returns the hash of each string as an unsigned number, as in ``org.apache.kafka.common.utils.Utils.murmur2``."""
    limits, data = bounds(column)
    starts, sizes = limits[:-1].astype(np.int64), np.diff(limits)
    octets = np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8)
    hashes = _SEED ^ sizes.astype(np.uint32)
    words = np.ndarray(len(octets) - 3, "<u4", octets, strides=(1,)) if len(octets) > 3 else octets
    rows, wanted = np.arange(len(sizes)), sizes >> 2
    for number in range(int(wanted.max(initial=0))):
        rows = rows[wanted[rows] > number]
        word = words[starts[rows] + 4 * number] * _FACTOR
        word = (word ^ (word >> np.uint32(24))) * _FACTOR
        hashes[rows] = (hashes[rows] * _FACTOR) ^ word
    rest, behind = sizes & 3, starts + (sizes & ~3)
    for octet in (2, 1, 0):
        rows = np.flatnonzero(rest > octet)
        hashes[rows] ^= octets[behind[rows] + octet].astype(np.uint32) << np.uint32(8 * octet)
    hashes[rows] *= _FACTOR
    hashes = (hashes ^ (hashes >> np.uint32(13))) * _FACTOR
    return hashes ^ (hashes >> np.uint32(15))
