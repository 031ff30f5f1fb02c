"""Redis: keys with a common prefix, on one server or in a cluster."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import urlsplit, urlunsplit

from sparkonce.errors import ConfigurationError, PreflightError
from sparkonce.sinks.redis import names, scripts
from sparkonce_lab.rig.process import HOST, find_program
from sparkonce_lab.rig.proxy import FaultProxy
from sparkonce_lab.rig.servers.redis import RedisCluster, RedisServer
from sparkonce_lab.systems.base import ServerSystem, VerifiedSystem, without_credentials
from sparkonce_lab.systems.injections import Together, of_connections, of_server

if TYPE_CHECKING:
    import pyarrow as pa

    from sparkonce.protocol.handles import Handle
    from sparkonce.sink import TwoPhaseCommitSink
    from sparkonce_lab.rig.proxy import Request

MEGABYTES = 3072

_ANSWERS_WITHIN_S = 5.0
_OWN = "sparkonce:"
_SCAN = 10_000
_PORTION = 5_000
_CHUNK = 50_000
_POLLS = 20
"""The maximum number of chunks of keys that `newest` scans in one call."""
_WEEK_MS = 7 * 24 * 60 * 60 * 1000


def _any_of(*several: scripts.Script) -> Request:
    return re.compile(b"|".join(script.sha.encode() for script in several))


class RedisSystem(ServerSystem, VerifiedSystem):
    """A server that is started here, on a disk that can be filled if mounting is allowed, or the user's server.

    Each row of a verified query is a key, ``<prefix>:<kind>,<key>,<number>,<amount>,<rows>,<batch>``, which is
    incremented by the row's ``rows``. A row that is written twice therefore has twice that number. The user's server is
    reached through a proxy, which works only for ``redis://``, and its keys are deleted at the end.

    Args:
        url: The user's server, ``redis://[user:password@]host[:port][/database]``; None to start a server.
        server: A running server or cluster, which is not stopped here.

    Attributes:
        prefix: The prefix of every key and of the sink's transactions. `place` creates it.
        clients: A client for each server.
    """

    name = "redis"
    REQUESTS: ClassVar[Mapping[str, Mapping[str, Request]]] = {
        "staged": {
            "prepare": _any_of(scripts.PREPARE),
            "commit": _any_of(scripts.DECIDE, scripts.APPLY),
            "abort": _any_of(scripts.ABORT),
        }
    }

    def __init__(
        self,
        url: str | None = None,
        megabytes: int = MEGABYTES,
        *,
        server: RedisServer | RedisCluster | None = None,
        alone: bool = False,
        answers_within_s: float = _ANSWERS_WITHIN_S,
    ) -> None:
        if url is not None and not _is_readable(url):
            raise ConfigurationError(
                f"--system redis={without_credentials(url)} is not a usable Redis URL.",
                next_step="Name it redis://host:port, with a number for the port.",
            )
        self._users = url
        self._borrowed = server
        self._megabytes = megabytes
        self._alone = alone
        self._answers_within_s = answers_within_s
        self._direct = self._through = ""
        self._cursor = 0
        self._newest = -1
        self.clients: list[Any] = []
        self.prefix = ""

    @classmethod
    def missing(cls) -> str:
        return "" if find_program("redis-server") else "redis-server is not installed."

    def start(self, folder: Path) -> None:
        if isinstance(self._borrowed, RedisCluster):
            self.watch(*self._borrowed.nodes)
            return
        if self._borrowed is not None:
            self.borrow(self._borrowed)
            self.watch(self._borrowed)
            return
        if self._users is None:
            server = RedisServer(folder)
            self.start_own(server, self._megabytes)
            self.watch(server)
        else:
            self._connect(self._users)
        address = urlsplit(self._direct)
        proxy = self.start_proxy((address.hostname or "localhost", address.port or 6379), self.REQUESTS["staged"])
        login = f"{address.netloc.rpartition('@')[0]}@" if "@" in address.netloc else ""
        self._through = urlunsplit(address._replace(netloc=f"{login}{HOST}:{proxy.port}"))

    def watch(self, *servers: RedisServer) -> None:
        self._connect(*(server.url for server in servers))

    def _connect(self, *urls: str) -> None:
        import redis

        self._direct = self._through = urls[0]
        limits: dict[str, Any] = {"socket_connect_timeout": 3.0, "socket_timeout": self._answers_within_s}
        self.clients = [redis.Redis.from_url(url, protocol=2, **limits) for url in urls]
        try:
            for client in self.clients:
                client.ping()
        except redis.RedisError as error:
            named = f"--system redis={without_credentials(self._users)}" if self._users else "Redis"
            raise PreflightError(
                f"{named} does not answer: {error}", next_step="Check the url and the credentials."
            ) from None

    def close(self) -> None:
        for client in self.clients:
            client.close()

    def restart(self) -> bool:
        if isinstance(self._borrowed, RedisCluster):
            self._borrowed.restart()
            return True
        return super().restart()

    # --- the keys -----------------------------------------------------------------------------------------------------

    def place(self, *columns: str) -> None:  # noqa: ARG002 - keys have none
        self.prefix = f"sparkonce-verify-{secrets.token_hex(5)}"
        self._cursor, self._newest = 0, -1
        self._made = True

    def drop_place(self) -> None:
        import redis

        patterns = (f"{self.prefix}:*", f"{_OWN}{{{self.prefix}.*")
        try:
            self.delete(*patterns)
        except redis.RedisError as error:
            raise PreflightError(
                f"The keys {' and '.join(patterns)} cannot be deleted: {error}", next_step="Delete them manually."
            ) from None

    def delete(self, *patterns: str) -> None:
        for client in self.clients:
            for pattern in patterns:
                for keys in self._scan(client, pattern):
                    with client.pipeline(transaction=False) as several:
                        # Delete one key at a time, since a cluster node accepts no command with keys of several slots.
                        for key in keys:
                            several.unlink(key)
                        several.execute()

    def arguments(self, **options: Any) -> dict[str, Any]:
        """Includes the user's password, if there is one."""
        counting = {"structure": "increment", "key_template": f"{self.prefix}:{{number}}"}
        return {"url": self._through, "cluster": len(self.clients) > 1, "prefix": self.prefix, **counting, **options}

    def sink_settings(self) -> Mapping[str, Any]:
        keys = f"{self.prefix}:{{kind}},{{key}},{{number}},{{amount}},{{rows}},{{batch}}"
        return self.arguments(name=self.name, key_template=keys, amount="rows", timeout_s=3.0)

    @staticmethod
    def build(arguments: Mapping[str, Any]) -> TwoPhaseCommitSink:
        from sparkonce.sinks.redis.sink import RedisSink

        return RedisSink(**arguments)

    def expire(self, handle: Handle) -> bool:
        """Deletes a transaction's rows, which expire at the earliest a week after they were prepared."""
        from sparkonce.protocol.ownership import TransactionName

        name = TransactionName.parse(str(handle[names.TRANSACTION]))
        if name is None:
            return False
        for client in self.clients:
            for keys in self._scan(client, f"{_OWN}*", "list"):
                for key in keys:
                    if key.endswith(str(name).encode()):
                        client.delete(key)
        if len(self.clients) > 1:
            ledger = names.ledger_of(name).name
            (home,) = (client for client in self.clients for keys in self._scan(client, ledger) if keys)
            written = home.hget(ledger, str(name)).decode()
            prepared_ms = names.LedgerEntry.parse(written).prepared_ms
            home.hset(ledger, str(name), written.replace(str(prepared_ms), str(prepared_ms - _WEEK_MS - 1)))
        return True

    # --- what a reader sees -------------------------------------------------------------------------------------------

    def values(self, pattern: str = "*") -> Iterator[tuple[bytes, bytes | None]]:
        """Yields every matching key with its value, except the sink's own keys."""
        for client in self.clients:
            for keys in self._scan(client, pattern):
                wanted = [key for key in keys if not key.startswith(_OWN.encode())]
                if len(self.clients) == 1:
                    yield from zip(wanted, client.mget(wanted) if wanted else (), strict=True)
                    continue
                several = client.pipeline(transaction=False)  # A cluster rejects MGET for keys of several hash slots.
                for key in wanted:
                    several.get(key)
                yield from zip(wanted, several.execute(), strict=True)

    def visible(self, *columns: str) -> list[Any]:
        """Returns the number in each key, or its parts, as often as it was incremented."""
        found = []
        for key, text in self.values(f"{self.prefix}:*"):
            parts = key.decode().split(":")[1:]
            times = int(text) if text is not None and text.isdigit() else 1
            found += [tuple(parts) if columns else int(parts[0])] * times
        return found

    def read(self) -> pa.Table:
        import pyarrow as pa

        from sparkonce_lab.systems.observed import of_texts

        skip = len(self.prefix) + 1
        values = self.values(f"{self.prefix}:*")
        texts = (text for key, count in values for text in times_applied(key[skip:], count))
        found = [of_texts([])]
        while some := list(islice(texts, _CHUNK)):
            found.append(of_texts(some))
        return pa.concat_tables(found)

    def newest(self) -> int:
        """Scans only some of the keys in each call, so the result may lag behind."""
        for _ in range(_POLLS):
            self._cursor, keys = self.clients[0].scan(self._cursor, match=f"{self.prefix}:*", count=_PORTION)
            batches = (key.rpartition(b",")[2] for key in keys)
            self._newest = max([self._newest, *(int(batch) for batch in batches if batch.isdigit())])
            if self._cursor == 0:
                break
        return self._newest

    # --- what is open -------------------------------------------------------------------------------------------------

    def left_open(self) -> Sequence[str]:
        """Returns staged rows. The ledger, which is a hash, remains and is not included."""
        return sorted(key.decode() for key in self.own_keys("list"))

    def own_keys(self, kind: str | None = None) -> set[bytes]:
        """Lists the sink's own keys: all of them, or those of type ``list`` (staged rows) or ``hash`` (ledgers)."""
        pattern = f"{_OWN}*" if self._alone else f"{_OWN}*{self.prefix}*"
        return {key for client in self.clients for keys in self._scan(client, pattern, kind) for key in keys}

    def state(self) -> object:
        """Includes the ledgers, which contain the state of each transaction."""
        ledgers: list[Any] = [
            (key, sorted(client.hgetall(key).items()))
            for client in self.clients
            for keys in self._scan(client, f"{_OWN}*", "hash")
            for key in keys
        ]
        return super().state(), sorted(ledgers)

    @staticmethod
    def _scan(client: Any, pattern: str, kind: str | None = None) -> Iterator[list[bytes]]:
        """Yields the matching keys in chunks, each key once."""
        cursor, seen = None, set[bytes]()
        while cursor != 0:
            cursor, found = client.scan(cursor or 0, match=pattern, count=_SCAN, _type=kind)
            keys = [key for key in dict.fromkeys(found) if key not in seen]  # A scan may return a key twice.
            seen.update(keys)
            if keys:
                yield keys


class RedisClusterSystem(RedisSystem):
    """A cluster of three masters that are started here. Each master announces the proxy's port as its own."""

    name = "redis-cluster"

    def start(self, folder: Path) -> None:
        self._cluster = cluster = RedisCluster(folder)
        first, *others = cluster.nodes
        self.proxy = proxy = FaultProxy((HOST, first.port), self.REQUESTS["staged"])
        ports = [proxy.port, *(proxy.add((HOST, node.port)) for node in others)]
        for node, port in zip(cluster.nodes, ports, strict=True):
            bus = node.settings["cluster-port"]
            node.settings |= {"cluster-announce-port": str(port), "cluster-announce-bus-port": bus}
        proxy.start()
        cluster.start()
        self.watch(*cluster.nodes)
        self.requests = proxy.requests
        self.injections = {**of_server(Together(cluster.nodes, cluster.restart)), **of_connections(proxy)}
        self._through = f"redis://{HOST}:{proxy.port}/0"

    def stop(self) -> None:
        self._made = False
        super().stop()
        self._cluster.stop()


def _is_readable(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme == "redis" and (parts.port or 1) > 0
    except ValueError:
        return False


def times_applied(text: bytes, count: bytes | None) -> list[bytes | None]:
    """Returns a row as often as it was applied, or an unreadable row if the count is not a multiple of its rows."""
    rows = text.split(b",")[4:5]
    if count is None or not rows or not rows[0].isdigit() or not count.isdigit():
        return [None]
    times, rest = divmod(int(count), int(rows[0])) if int(rows[0]) else (0, 1)
    return [text] * times if times and not rest else [None]
