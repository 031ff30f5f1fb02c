"""Connections to a server, or to the nodes of a cluster, with many requests in flight and a result for each of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sparkonce.arguments import missing_package
from sparkonce.errors import ConfigurationError, one_line
from sparkonce.sinks._shared.settings import see_files
from sparkonce.sinks.redis.names import HASH_SLOTS, shown_url
from sparkonce.sinks.redis.outcomes import Refusal, code_of
from sparkonce.sinks.redis.scripts import BY_SHA, Script

if TYPE_CHECKING:
    from sparkonce.sinks.redis.names import Key

Address = tuple[str, int]
RedisReply = Any
"""A reply of Redis (bytes, int, None, or a list of them), or a `Refusal`."""

SCAN_COUNT = 1000
TLS_FILES = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")
_PAUSE_S = 0.05
_NOT_MASTER = frozenset({"READONLY", "MASTERDOWN"})
_AGAIN = frozenset({"MOVED", "TRYAGAIN", "NOSCRIPT", "ASK"})
_CODES = {
    "MovedError": "MOVED",
    "AskError": "ASK",
    "TryAgainError": "TRYAGAIN",
    "ClusterDownError": "CLUSTERDOWN",
    "BusyLoadingError": "LOADING",
    "MasterDownError": "MASTERDOWN",
    "ReadOnlyError": "READONLY",
    "NoScriptError": "NOSCRIPT",
    "OutOfMemoryError": "OOM",
    "AuthenticationError": "WRONGPASS",
    "AuthenticationWrongNumberOfArgsError": "WRONGPASS",
    "AuthenticationRequiredError": "NOAUTH",
    "NoPermissionError": "NOPERM",
    "ClusterCrossSlotError": "CROSSSLOT",
}
"""The codes that belong to redis-py's error classes, whose messages do not contain them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """The address of a server or cluster, and how to connect to it.

    Attributes:
        url: A URL that redis-py accepts: ``redis://``, ``rediss://`` or ``unix://``.
        cluster: True for a Redis Cluster. The URL then names any of its nodes.
        sentinels: Addresses of Sentinels that know the master.
        service: The name that the Sentinels use for the master.
        options: Other connection settings of redis-py.
        timeout_s: How long to wait for a connection or a response.
    """

    url: str = field(repr=False)
    cluster: bool = False
    sentinels: tuple[Address, ...] = ()
    service: str = ""
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    timeout_s: float = 10.0


@dataclass(frozen=True, slots=True)
class Request:
    """A command for the node that holds a hash slot."""

    hash_slot: int
    args: tuple[Any, ...]


def run_script(script: Script, keys: Sequence[Key], *args: Any) -> Request:
    """Creates a request to run a script on keys of one hash slot."""
    names = (key.name for key in keys)
    return Request(keys[0].hash_slot, ("EVALSHA", script.sha, len(keys), *names, *args))


class Nodes:
    """Sends each request to the node of its hash slot. Connects when needed. Not thread-safe.

    Raises:
        ConfigurationError: If redis-py is missing, or does not accept the URL or the options.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        redis = import_redis()
        defaults = {"socket_timeout": endpoint.timeout_s, "socket_connect_timeout": endpoint.timeout_s, "protocol": 2}
        try:
            pool = redis.Redis.from_url(endpoint.url, **{**defaults, **endpoint.options}).connection_pool
        except (ValueError, TypeError):
            # Do not show redis-py's message, which contains the text after the colon: that may be part of a password
            # instead of a port.
            shown = shown_url(endpoint.url)
            raise ConfigurationError(
                f"redis-py does not accept url={shown!r} with the options {sorted(endpoint.options)}.",
                next_step="Give redis://[user:password@]host[:port][/database], with %2F for '/' in a password and so "
                "on, and options of redis.Connection.",
                setting="url",
            ) from None
        self._make: Callable[..., Any] = pool.connection_class
        self._kwargs = dict(pool.connection_kwargs)
        self._errors = (redis.exceptions.RedisError, OSError)
        self._refused = redis.exceptions.ResponseError
        self._connections: dict[Address | None, Any] = {}
        self._owners: list[Address] = []
        self._demoted: set[Address | None] = set()

    def ask(self, request: Request) -> RedisReply:
        return self.run([request])[0]

    def run(
        self, requests: Sequence[Request], *, window: int = 256, follow: bool = True, limit_s: float | None = None
    ) -> list[RedisReply]:
        """Sends each request to its node, several at a time, and returns the replies in request order.

        If a node rejects a request because another node has the hash slot, this method sends the request to that node.
        A request without a reply is not repeated, because the server may have carried it out.

        Args:
            requests: The requests.
            window: The maximum number of requests in flight to one node.
            follow: True to follow a slot that is being moved (ASK); False to return the refusal.
            limit_s: How long to wait for a slot that is being moved. Defaults to the endpoint's timeout.
        """
        give_up_at = time.monotonic() + (self.endpoint.timeout_s if limit_s is None else limit_s)
        replies: list[RedisReply] = [None] * len(requests)
        waiting = list(range(len(requests)))
        self._leave_replicas()
        while waiting:
            self._round(requests, waiting, replies, window)
            waiting = [number for number in waiting if self._is_sent_again(replies[number], follow)]
            if not waiting or time.monotonic() >= give_up_at:
                break
            self._prepare_again(requests, waiting, replies)
            waiting = [number for number in waiting if replies[number] is None]
        return replies

    def everywhere(self, *args: Any) -> dict[str, RedisReply]:
        """Sends one command to each master, and returns the replies by address."""
        found = {}
        for address in self.masters():
            node = f"{address[0]}:{address[1]}" if address else shown_url(self.endpoint.url)
            found[node] = self._exchange(address, [args])[0]
        return found

    def scan(self, match: str) -> Iterator[RedisReply]:
        """Yields the matching keys of all masters, in groups; a `Refusal` for a master that does not respond."""
        for address in self.masters():
            cursor: Any = 0
            while True:
                reply = self._exchange(address, [("SCAN", cursor, "MATCH", match, "COUNT", SCAN_COUNT)])[0]
                if isinstance(reply, Refusal):
                    yield reply
                    break
                cursor, keys = reply
                yield keys
                if int(cursor) == 0:
                    break

    def masters(self) -> list[Address | None]:
        """Returns the addresses of the masters; None stands for the address in the URL, if no node reports others."""
        if not self.endpoint.cluster:
            return [None]
        if not self._owners:
            self.look_up()
        return [*dict.fromkeys(self._owners)] or [None]

    def look_up(self) -> None:
        """Looks up which node has which hash slot. Keeps the known assignment if no node responds."""
        for address in [None, *dict.fromkeys(self._owners)]:
            answer = self._exchange(address, [("CLUSTER", "SLOTS")])[0]
            if isinstance(answer, list) and answer:
                self._owners = self._read_slots(answer)
                return
            self._hang_up(address)

    def close(self) -> None:
        for address in list(self._connections):
            self._hang_up(address)

    # --- routing ----------------------------------------------------------------------------------------------------

    def owner(self, hash_slot: int) -> Address | None:
        if not self.endpoint.cluster:
            return None
        if not self._owners:
            self.look_up()
        return self._owners[hash_slot] if self._owners else None

    def _leave_replicas(self) -> None:
        """Closes the connections to nodes whose last replies were lost or came from a replica."""
        for address in self._demoted:
            self._hang_up(address)
        if self._demoted and self.endpoint.cluster:
            self.look_up()
        self._demoted.clear()

    def _read_slots(self, ranges: Sequence[Any]) -> list[Address]:
        seed = str(self._kwargs.get("host", "localhost"))
        owners: list[Address] = [(seed, int(self._kwargs.get("port", 6379)))] * HASH_SLOTS
        for first, last, master, *_ in ranges:
            host = master[0].decode() if master[0] else ""
            owners[first : last + 1] = [(host or seed, int(master[1]))] * (last - first + 1)
        return owners

    def _round(
        self, requests: Sequence[Request], waiting: Sequence[int], replies: list[RedisReply], window: int
    ) -> None:
        """Sends a window of requests to each node before it reads any reply, so that the nodes work in parallel."""
        queues: dict[Address | None, list[int]] = {}
        for number in waiting:
            queues.setdefault(self.owner(requests[number].hash_slot), []).append(number)
        start = 0
        while any(start < len(queue) for queue in queues.values()):
            in_flight = {address: queue[start : start + window] for address, queue in queues.items()}
            sent = {
                address: self._send(address, [requests[number].args for number in numbers])
                for address, numbers in in_flight.items()
            }
            for address, numbers in in_flight.items():
                for number in numbers:
                    replies[number] = sent[address] or self._receive(address)
            start += window

    @staticmethod
    def _is_sent_again(answer: RedisReply, follow: bool) -> bool:
        return isinstance(answer, Refusal) and answer.code in _AGAIN and (follow or answer.code != "ASK")

    def _prepare_again(self, requests: Sequence[Request], waiting: Sequence[int], replies: list[RedisReply]) -> None:
        """Prepares a retry of rejected requests. Sends redirected requests, and records their replies."""
        codes = {replies[number].code for number in waiting}
        if "MOVED" in codes:
            self.look_up()
        if codes & {"MOVED", "TRYAGAIN"}:
            time.sleep(_PAUSE_S)
        unloaded = [number for number in waiting if replies[number].code == "NOSCRIPT"]
        for number in waiting:
            refusal = replies[number]
            replies[number] = None
            if refusal.code == "ASK":
                replies[number] = self._ask_there(refusal, requests[number])
        refused = {(self.owner(requests[one].hash_slot), requests[one].args[1]) for one in unloaded}
        for address, sha in refused:
            self._exchange(address, [("SCRIPT", "LOAD", BY_SHA[sha].text)])

    def _ask_there(self, refusal: Refusal, request: Request) -> RedisReply:
        host, _, port = refusal.text.split()[-1].rpartition(":")
        address = (host or str(self._kwargs.get("host", "localhost")), int(port))
        answer = self._exchange(address, [("ASKING",), request.args])[1]
        if isinstance(answer, Refusal) and answer.code in {"NOSCRIPT", "TRYAGAIN"}:
            time.sleep(_PAUSE_S)
            if answer.code == "NOSCRIPT":
                self._exchange(address, [("SCRIPT", "LOAD", BY_SHA[request.args[1]].text)])
            return None
        return answer

    # --- connections ------------------------------------------------------------------------------------------------

    def _exchange(self, address: Address | None, commands: Sequence[tuple[Any, ...]]) -> list[RedisReply]:
        failed = self._send(address, commands)
        return [failed or self._receive(address) for _ in commands]

    def _send(self, address: Address | None, commands: Sequence[tuple[Any, ...]]) -> Refusal | None:
        if not commands:
            return None
        try:
            connection = self._connection(address)
            connection.send_packed_command(connection.pack_commands(commands), check_health=False)
        except self._errors as error:
            self._hang_up(address)
            self._demoted.add(address)
            return self._refusal(error)
        return None

    def _receive(self, address: Address | None) -> RedisReply:
        connection = self._connections.get(address)
        if connection is None:
            return Refusal("", "The connection was lost before the answer.")
        try:
            return connection.read_response()
        except self._refused as error:
            refusal = self._refusal(error)
            if refusal.code in _NOT_MASTER:
                self._demoted.add(address)
            return refusal
        except self._errors as error:
            self._hang_up(address)
            self._demoted.add(address)
            return self._refusal(error)

    def _connection(self, address: Address | None) -> Any:
        if address not in self._connections:
            see_files(self._kwargs, TLS_FILES)
            connection = self._make(**self._kwargs_for(address))
            connection.connect()
            self._connections[address] = connection
        return self._connections[address]

    def _kwargs_for(self, address: Address | None) -> dict[str, Any]:
        if address is None and self.endpoint.sentinels:
            address = self._find_master()
        return self._kwargs if address is None else {**self._kwargs, "host": address[0], "port": address[1]}

    def _find_master(self) -> Address:
        redis = import_redis()
        once = redis.retry.Retry(redis.backoff.NoBackoff(), 0)
        limits = {
            "socket_timeout": self.endpoint.timeout_s,
            "socket_connect_timeout": self.endpoint.timeout_s,
            "retry": once,
        }
        sentinel = redis.Sentinel(list(self.endpoint.sentinels), sentinel_kwargs=limits)
        try:
            host, port = sentinel.discover_master(self.endpoint.service)
            return str(host), int(port)
        finally:
            for client in sentinel.sentinels:
                client.close()

    def _hang_up(self, address: Address | None) -> None:
        connection = self._connections.pop(address, None)
        if connection is not None:
            with suppress(*self._errors):
                connection.disconnect()

    def _refusal(self, error: BaseException) -> Refusal:
        text = one_line(error)
        known = next((_CODES[kind.__name__] for kind in type(error).__mro__ if kind.__name__ in _CODES), None)
        if known is not None:
            return Refusal(known, text if text.startswith(known) else f"{known} {text}")
        if isinstance(error, self._refused):
            return Refusal(code_of(text), text)
        return Refusal("", f"{type(error).__name__}: {text}")


def import_redis() -> Any:
    """Returns the client library.

    Raises:
        ConfigurationError: If it is not installed.
    """
    try:
        import redis
    except ImportError as error:
        raise missing_package("RedisSink", "redis", "redis") from error
    return redis
