"""Redis, asked by connections of redis-py's: one server, or each node of a cluster."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from sparkonce.sinks.redis import scripts
from sparkonce.testing.systems.base import Witness

if TYPE_CHECKING:
    from sparkonce.rig.proxy import Request

_SCAN = 10_000
_OWN = "sparkonce:"


def _any_of(*several: scripts.Script) -> Request:
    return re.compile(b"|".join(script.sha.encode() for script in several))


class RedisWitness(Witness):
    """One server, or the nodes of a cluster, asked one by one.

    Args:
        urls: Of each server, as redis-py takes them.
        prefix: Only transactions with this prefix are looked at; empty for all of the server's.
        answers_within_s: The longest wait for an answer, in seconds.

    Attributes:
        clients: A client for each server.
    """

    requests: ClassVar[Mapping[str, Mapping[str, Request]]] = {
        "staged": {
            "prepare": _any_of(scripts.PREPARE),
            "commit": _any_of(scripts.DECIDE, scripts.APPLY),
            "abort": _any_of(scripts.ABORT),
        }
    }

    def __init__(self, *urls: str, prefix: str = "", answers_within_s: float = 10.0) -> None:
        import redis

        limits: dict[str, Any] = {"socket_connect_timeout": 3.0, "socket_timeout": answers_within_s}
        self.clients: list[Any] = [redis.Redis.from_url(url, protocol=2, **limits) for url in urls]
        self._prefix = prefix

    def values(self, pattern: str = "*") -> Iterator[tuple[bytes, bytes | None]]:
        """Yields every key of this pattern that is not the sink's own, with its text."""
        for client in self.clients:
            for keys in self._scan(client, pattern):
                wanted = [key for key in keys if not key.startswith(_OWN.encode())]
                if len(self.clients) == 1:
                    yield from zip(wanted, client.mget(wanted) if wanted else (), strict=True)
                    continue
                several = client.pipeline(transaction=False)  # a cluster refuses MGET for keys of several hash slots
                for key in wanted:
                    several.get(key)
                yield from zip(wanted, several.execute(), strict=True)

    def own_keys(self, kind: str | None = None) -> set[bytes]:
        """Lists the sink's own keys, all or those of one type: ``list`` for staged rows, ``hash`` for ledgers."""
        pattern = f"{_OWN}*{self._prefix}*" if self._prefix else f"{_OWN}*"
        return {key for client in self.clients for keys in self._scan(client, pattern, kind) for key in keys}

    def ledgers(self) -> list[Any]:
        """Lists the ledgers, which have the state of each transaction."""
        found: list[Any] = [
            (key, sorted(client.hgetall(key).items()))
            for client in self.clients
            for keys in self._scan(client, f"{_OWN}*", "hash")
            for key in keys
        ]
        return sorted(found)

    def delete(self, *patterns: str) -> None:
        """Deletes the keys of these patterns."""
        for client in self.clients:
            for pattern in patterns:
                for keys in self._scan(client, pattern):
                    with client.pipeline(transaction=False) as several:
                        for key in keys:  # one by one: a node of a cluster takes no keys of several slots at once
                            several.unlink(key)
                        several.execute()

    def left_open(self) -> Sequence[str]:
        """See `Witness.left_open`: staged rows. Ledgers stay."""
        return sorted(key.decode() for key in self.own_keys("list"))

    def close(self) -> None:
        """See `Witness.close`."""
        for client in self.clients:
            client.close()

    @staticmethod
    def _scan(client: Any, pattern: str, kind: str | None = None) -> Iterator[list[bytes]]:
        """Yields the keys of a pattern, each once, in portions."""
        cursor, seen = None, set[bytes]()
        while cursor != 0:
            cursor, found = client.scan(cursor or 0, match=pattern, count=_SCAN, _type=kind)
            keys = [key for key in dict.fromkeys(found) if key not in seen]  # a scan may give a key twice
            seen.update(keys)
            if keys:
                yield keys
