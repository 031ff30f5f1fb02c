"""Keys in Redis."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit, urlunsplit

from sparkonce.errors import ConfigurationError, PreflightError
from sparkonce.lab.systems.injections import ServerSystem
from sparkonce.lab.systems.places import without_credentials
from sparkonce.rig.servers.process import HOST
from sparkonce.rig.servers.redis import RedisServer
from sparkonce.testing.systems.redis import RedisWitness

if TYPE_CHECKING:
    import pyarrow as pa

    from sparkonce.sink import TwoPhaseCommitSink

MEGABYTES = 3072

_ANSWERS_WITHIN_S = 5.0
_SCAN = 5_000
_CHUNK = 50_000
_LOOKS = 20
"""The most portions of keys that `newest` scans in one call."""


class RedisSystem(ServerSystem):
    """A server of our own, on a disk that can be filled where mounting is allowed; or the user's, through a proxy.

    Each row is a key, ``<place>:<kind>,<key>,<number>,<amount>,<rows>,<batch>``, which is incremented by the row's
    ``rows``: a row that is written twice has twice that number. On the user's server the keys are deleted in the end.
    The proxy works for ``redis://`` only.

    Args:
        url: The user's, ``redis://[user:password@]host[:port][/database]``; None for a server of our own.
        megabytes: The size of our own disk, which is in memory and takes as much of it as is written.

    Raises:
        ConfigurationError: if the url is another one.
    """

    name = "redis"
    witness: RedisWitness

    def __init__(self, url: str | None = None, megabytes: int = MEGABYTES) -> None:
        if url is not None and not _is_readable(url):
            raise ConfigurationError(
                f"--system redis={without_credentials(url)} is no url of Redis that can be used.",
                next_step="Name it redis://host:port, with a number for the port.",
            )
        self._users = url
        self._megabytes = megabytes
        self._direct = ""
        self._cursor = 0
        self._newest = -1
        self.injections = {}
        self.place = f"sparkonce-verify-{secrets.token_hex(5)}"

    def start(self, folder: Path) -> None:
        """See `System.start`."""
        import redis

        if self._users is None:
            server = RedisServer(folder)
            self.start_own(server, self._megabytes)
            self._direct = server.url
        else:
            self._direct = self._users
        self.witness = RedisWitness(self._direct, prefix=self.place, answers_within_s=_ANSWERS_WITHIN_S)
        try:
            self.witness.clients[0].ping()
        except redis.RedisError as error:
            raise PreflightError(
                f"{self._named} does not answer: {error}", next_step="Check the url and the credentials."
            ) from None
        self._made = True
        place = urlsplit(self._direct)
        self.start_proxy((place.hostname or "localhost", place.port or 6379), RedisWitness.requests["staged"])

    @property
    def _named(self) -> str:
        return f"--system redis={without_credentials(self._users)}" if self._users else "Redis"

    def drop_place(self) -> None:
        """See `ServerSystem.drop_place`."""
        import redis

        patterns = (f"{self.place}:*", f"sparkonce:{{{self.place}.*")
        try:
            self.witness.delete(*patterns)
        except redis.RedisError as error:
            raise PreflightError(
                f"The keys {' and '.join(patterns)} cannot be deleted: {error}", next_step="Delete them by hand."
            ) from None

    def sink_settings(self) -> Mapping[str, Any]:
        """See `System.sink_settings`. With the user's password, if there is one."""
        place = urlsplit(self._direct)
        login = f"{place.netloc.rpartition('@')[0]}@" if "@" in place.netloc else ""
        port = self.proxy.port if self.proxy is not None else 0
        return {"url": urlunsplit(place._replace(netloc=f"{login}{HOST}:{port}")), "place": self.place}

    @staticmethod
    def build(settings: Mapping[str, Any]) -> TwoPhaseCommitSink:
        """See `System.build`."""
        from sparkonce.sinks.redis.sink import RedisSink

        return RedisSink(
            settings["url"],
            structure="increment",
            key_template=f"{settings['place']}:{{kind}},{{key}},{{number}},{{amount}},{{rows}},{{batch}}",
            amount="rows",
            timeout_s=3.0,
            prefix=settings["place"],
            name=RedisSystem.name,
        )

    def read(self) -> pa.Table:
        """See `System.read`."""
        import pyarrow as pa

        from sparkonce.lab.systems.observed import of_texts

        skip = len(self.place) + 1
        values = self.witness.values(f"{self.place}:*")
        texts = (text for key, count in values for text in times_applied(key[skip:], count))
        found = [of_texts([])]
        while some := list(islice(texts, _CHUNK)):
            found.append(of_texts(some))
        return pa.concat_tables(found)

    def newest(self) -> int:
        """See `System.newest`. Each call looks at some of the keys, and the next one at the next: it may be late."""
        for _ in range(_LOOKS):
            self._cursor, keys = self.witness.clients[0].scan(self._cursor, match=f"{self.place}:*", count=_SCAN)
            batches = (key.rpartition(b",")[2] for key in keys)
            self._newest = max([self._newest, *(int(batch) for batch in batches if batch.isdigit())])
            if self._cursor == 0:
                break
        return self._newest

    def left_open(self) -> Sequence[str]:
        """See `System.left_open`: staged rows. The ledger is a hash, and stays."""
        return self.witness.left_open()


def _is_readable(url: str) -> bool:
    try:
        place = urlsplit(url)
        return place.scheme == "redis" and (place.port or 1) > 0
    except ValueError:
        return False


def times_applied(text: bytes, count: bytes | None) -> list[bytes | None]:
    """Returns a row as often as it was applied, and an unreadable one for a number that is no multiple of it."""
    rows = text.split(b",")[4:5]
    if count is None or not rows or not rows[0].isdigit() or not count.isdigit():
        return [None]
    times, rest = divmod(int(count), int(rows[0])) if int(rows[0]) else (0, 1)
    return [text] * times if times and not rest else [None]
