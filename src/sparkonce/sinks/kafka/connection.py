"""The driver's connections to Kafka. Calls wait for kafka-python's network thread, each until a deadline.

Connections are opened when they are first needed, and stay open between batches. A connection that gets no answer is
closed. If no broker answers, all connections are dropped, and the next call starts again with ``bootstrap.servers``. As
a result, brokers may restart under different addresses, and the driver retries credentials that were once rejected,
which kafka-python would not do.

`Waiting` pauses between repeated requests, and logs why. `token_provider` turns confluent-kafka's ``oauth_cb`` into a
token provider for kafka-python (KIP-255, OAUTHBEARER).
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from copy import copy
from typing import Any, TypeVar
from weakref import WeakSet

from kafka.errors import KafkaConnectionError, KafkaError, KafkaTimeoutError, SaslAuthenticationFailedError
from kafka.net.inet import KafkaNetSocket
from kafka.net.manager import KafkaConnectionManager
from kafka.net.sasl.oauth import AbstractTokenProvider
from kafka.net.selector import NetworkSelector

from sparkonce.errors import ConfigurationError, one_line
from sparkonce.sinks.kafka.outcomes import BrokerAnswer

log = logging.getLogger(__name__)

T = TypeVar("T")

Request = Any
"""A request class of ``kafka.protocol``."""
Response = Any
"""A response class of ``kafka.protocol``, or a `BrokerAnswer` without a code if there is no response."""

_GRACE_S = 1.0
"""A caller waits this much longer than the deadline for the network thread, which enforces the deadline itself."""

_STOP_WITHIN_S = 10.0
"""The time limit for a network thread to end, in seconds."""

_FIRST_PAUSE_S = 0.02
_LONGEST_PAUSE_S = 1.0
_SAY_AFTER_S = 2.0
_SAY_EVERY_S = 60.0

Again = Callable[[BrokerAnswer], bool]
"""Receives the reason why a request failed, pauses, and returns True to retry; False if the deadline is near."""

_REFRESH_AT = 0.8
"""The fraction of a token's lifetime after which a new one is fetched, as in librdkafka."""

_OURS = {
    # kafka-python refuses to send more than this many requests.
    "max_in_flight_requests_per_connection": 100_000,
    # The list of a large cluster's transactions can be long.
    "receive_message_max_bytes": 100_000_000,
    "proxy_url": "sparkonce://direct",
    # Reconnect quickly to a broker that was unreachable for minutes.
    "reconnect_backoff_max_ms": 1000,
}

_NO_ANSWER = (KafkaError, OSError)
"""The errors that kafka-python raises if there is no answer: OSError stands for an unreadable certificate file."""

_SAY_LESS: WeakSet[threading.Thread] = WeakSet()
"""The threads in which kafka-python works for a `KafkaConnection`."""


def _say_less(record: logging.LogRecord) -> bool:
    """Lowers kafka-python's log records about our connections to DEBUG.

    The caller gets each failure as a `BrokerAnswer` anyway. Without this filter, a broker that closes an idle
    connection would cause six warnings.
    """
    if record.levelno > logging.DEBUG and threading.current_thread() in _SAY_LESS:
        record.levelno, record.levelname = logging.DEBUG, logging.getLevelName(logging.DEBUG)
    return logging.getLogger(record.name).isEnabledFor(record.levelno)


for _module in ("net.connection", "net.inet", "net.manager", "net.selector", "net.transport", "cluster"):
    logging.getLogger(f"kafka.{_module}").addFilter(_say_less)


class _Socket(KafkaNetSocket):  # type: ignore[misc]  # kafka-python has no types
    """A socket that is closed if it cannot connect. kafka-python would leave that to the garbage collector."""

    SCHEMES = ("sparkonce",)

    async def sock_connect(self, net: Any, sock: Any, sockaddr: Any, timeout_at: float | None = None) -> Any:
        try:
            return await super().sock_connect(net, sock, sockaddr, timeout_at=timeout_at)
        except BaseException:
            sock.close()
            raise


class KafkaConnection:
    """All connections to one cluster, with kafka-python's settings. Thread-safe; calls run one at a time."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._settings = dict(settings)
        self._turn = threading.Lock()
        self._net: NetworkSelector | None = None
        self._manager: KafkaConnectionManager | None = None
        self._failed = self._answered = False

    def call(self, ask: Callable[[], Coroutine[Any, Any, T]], deadline_s: float) -> T | BrokerAnswer:
        """Runs a coroutine on the network thread. Returns a `BrokerAnswer` without a code if no broker is connected."""
        with self._turn:
            self._failed = self._answered = connected = False
            try:
                self._connect(deadline_s)
                connected = True
                result: T = self._wait(self._schedule(ask), deadline_s)
            except _NO_ANSWER as error:
                self._failed, self._answered = True, False
                return _no_answer(error, never_sent=not connected)
            else:
                return result
            finally:
                if (self._failed and not self._answered) or self._manager is None:
                    self._discard()

    async def gather(self, requests: Sequence[tuple[Request, int | str | None]], deadline_s: float) -> list[Response]:
        """Sends all requests, each to its node (None for any node), before it waits for the first response."""
        # Send a copy, because kafka-python stores in each request object the version with which it was sent.
        waiting = [self._send(copy(request), node_id, deadline_s) for request, node_id in requests]
        return [one if isinstance(one, BrokerAnswer) else await self._response(one, deadline_s) for one in waiting]

    @property
    def manager(self) -> KafkaConnectionManager:
        """The connections of kafka-python, for use inside `call`. Raises KafkaConnectionError if there are none."""
        if self._manager is None:
            raise KafkaConnectionError("not connected")
        return self._manager

    def close(self) -> None:
        with self._turn:
            self._discard()

    def _send(self, request: Request, node_id: int | str | None, deadline_s: float) -> Any:
        manager = self.manager
        try:
            # Do not use `manager.send`, which looks up the brokers again after a lost connection, without a deadline.
            chosen = manager.least_loaded_node() if node_id is None else node_id
            connection = manager.get_connection(chosen, refresh_metadata_on_err=False)
            return request, connection, connection.send_request(request, request_timeout_ms=_remaining_ms(deadline_s))
        except _NO_ANSWER as error:
            self._failed = True
            return _no_answer(error, never_sent=not _is_written(request))

    async def _response(self, sent: tuple[Request, Any, Any], deadline_s: float) -> Response:
        request, connection, future = sent
        # A request's own timeout only starts once the connection is open, so also limit the wait here.
        try:
            response = await self.manager.wait_for(future, _remaining_ms(deadline_s))
        except _NO_ANSWER as error:
            self._failed = True
            connection.close(error)
            self.manager._auth_failures.pop(connection.node_id, None)
            return _no_answer(error, never_sent=not _is_written(request))
        self._answered = True
        return response

    def _connect(self, deadline_s: float) -> None:
        if self._manager is not None:
            return
        self._net = net = NetworkSelector(**self._settings)
        net.start()
        _SAY_LESS.add(net._io_thread)
        # Create the manager on the network thread, where the deadline applies: with client.dns.lookup, the manager
        # queries a DNS server.
        made = net.call_soon_with_future(lambda: KafkaConnectionManager(net, **{**_OURS, **self._settings}))
        self._manager = self._wait(made, deadline_s)
        self._wait(self._manager.call_soon(self._bootstrap, deadline_s), deadline_s)

    async def _bootstrap(self, deadline_s: float) -> None:
        """Queries each bootstrap server once for the cluster's brokers."""
        # kafka-python's own broker lookup retries until the deadline, and then does not say what was wrong.
        servers = self.manager.cluster.bootstrap_brokers()
        random.shuffle(servers)
        reasons = []
        for left, server in zip(range(len(servers), 0, -1), servers, strict=True):
            # Leave enough time for the other servers if this one does not answer.
            failure = await self._learn_brokers(server.node_id, _remaining_ms(deadline_s) / left)
            if failure is None:
                return
            reasons.append(f"{server.host}:{server.port}: {failure}")
        raise KafkaConnectionError("; ".join(reasons))

    async def _learn_brokers(self, node_id: str, timeout_ms: float) -> Exception | None:
        cluster = self.manager.cluster
        try:
            connection = self.manager.get_connection(node_id, timeout_ms=timeout_ms, refresh_metadata_on_err=False)
            await self.manager.wait_for(connection.init_future, timeout_ms)
            await self.manager.wait_for(self.manager.call_soon(cluster.refresh_metadata, node_id), timeout_ms)
        except _NO_ANSWER as error:
            return error
        finally:
            self.manager.close(node_id)
        return None if cluster.brokers() else KafkaConnectionError("it knows no brokers yet")

    def _schedule(self, ask: Callable[[], Coroutine[Any, Any, T]]) -> Any:
        try:
            return self.manager.call_soon(ask)
        except Exception as error:  # This is the error that ended the network thread.
            raise KafkaConnectionError(f"the network thread has ended: {type(error).__name__}: {error}") from error

    def _wait(self, future: Any, deadline_s: float) -> Any:
        done = threading.Event()
        future.add_both(lambda _: done.set())
        if not done.wait(_remaining_ms(deadline_s) / 1000 + _GRACE_S):
            raise KafkaTimeoutError("the network thread did not answer in time")
        if future.exception is not None:
            raise future.exception
        return future.value

    def _discard(self) -> None:
        self._failed = False
        manager, net, self._manager, self._net = self._manager, self._net, None, None
        if net is None:
            return
        # Stop the network thread first: kafka-python's connections must not be closed while the thread runs.
        thread = net._io_thread
        net.stop(timeout_ms=_STOP_WITHIN_S * 1000)
        if thread.is_alive():
            log.warning(
                "kafka-python's network thread does not end: it may be waiting for a DNS server. It is left alone."
            )
            return
        if manager is None:
            net.close()
            return
        _SAY_LESS.add(threading.current_thread())
        try:
            manager.close()
        except Exception as error:  # noqa: BLE001 - the error that ended the thread; its requests have already failed
            log.warning("kafka-python's network thread had ended: %s: %s.", type(error).__name__, error)
            for connection in list(manager._conns.values()):
                connection.close()
        finally:
            _SAY_LESS.discard(threading.current_thread())
        net.close()


def _no_answer(error: Exception, *, never_sent: bool) -> BrokerAnswer:
    # kafka-python's messages repeat the error's class name, and wrap the error in KafkaConnectionErrors that add
    # nothing.
    name = type(error).__name__
    told = f"{name}: {str(error).removeprefix(f'{name}: ')}".replace(f"{KafkaConnectionError.__name__}: ", "")
    return BrokerAnswer(None, one_line(told), never_sent=never_sent)


def _is_written(request: Request) -> bool:
    """Returns True if a request may have been sent: kafka-python sets its version just before writing it."""
    return request.API_VERSION is not None


def _remaining_ms(deadline_s: float) -> float:
    return max(0.0, deadline_s - time.monotonic()) * 1000


class Waiting:
    """Logs what one client is waiting for: first after a while, then rarely, counting all of its calls."""

    def __init__(self) -> None:
        self._say_at = 0.0

    def until(self, deadline_s: float, what: str) -> Again:
        """Starts a wait for ``what``, as named in the log, and returns the function that pauses before each retry."""
        began_s, pause_s = time.monotonic(), _FIRST_PAUSE_S

        def again(why: BrokerAnswer) -> bool:
            nonlocal pause_s
            now_s = time.monotonic()
            if now_s - began_s >= _SAY_AFTER_S and now_s >= self._say_at:
                self._say_at = now_s + _SAY_EVERY_S
                log.warning("Waiting for Kafka to %s: %s.", what, why)
            if now_s + pause_s >= deadline_s:
                return False
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
            return True

        return again


def token_provider(plain: Mapping[str, Any]) -> AbstractTokenProvider:
    """Returns the token provider for these settings."""
    method = str(plain.get("sasl.oauthbearer.method", "default")).lower()
    if method != "default":
        raise ConfigurationError(
            f"sasl.oauthbearer.method={method!r}: the driver cannot fetch tokens that way.",
            next_step="Fetch the token in a function and give it as oauth_cb.",
            setting="sasl.oauthbearer.method",
        )
    callback = plain.get("oauth_cb")
    if not callable(callback):
        raise ConfigurationError(
            f"oauth_cb={callback!r}, but sasl.mechanism=OAUTHBEARER needs a function that fetches a token.",
            next_step="Give a function of one argument that returns (token, expiry in seconds since the epoch).",
            setting="oauth_cb",
        )
    return _CallbackTokens(callback, str(plain.get("sasl.oauthbearer.config", "")))


class _CallbackTokens(AbstractTokenProvider):  # type: ignore[misc]  # kafka-python has no types
    """Caches the user's token for most of its lifetime, because every connection requests one."""

    def __init__(self, callback: Callable[[str], Any], config: str) -> None:
        super().__init__()
        self._callback = callback
        self._config = config
        self._turn = threading.Lock()
        self._token = ""
        self._extensions: dict[str, str] = {}
        self._refresh_at_s = 0.0

    def token(self) -> str:
        """Returns the token, and fetches a new one if needed."""
        with self._turn:
            if time.time() >= self._refresh_at_s:
                self._fetch()
            return self._token

    def extensions(self) -> dict[str, str]:
        return dict(self._extensions)

    def _fetch(self) -> None:
        now_s = time.time()
        try:
            token, expiry_s, *rest = self._callback(self._config)
            # confluent-kafka accepts (token, expiry) or (token, expiry, principal, extensions).
            extensions = dict(rest[1]) if len(rest) > 1 and rest[1] else {}
            refresh_at_s = now_s + (float(expiry_s) - now_s) * _REFRESH_AT
        except Exception as error:
            raise SaslAuthenticationFailedError(f"oauth_cb failed: {type(error).__name__}: {error}") from error
        self._token, self._extensions, self._refresh_at_s = str(token), extensions, refresh_at_s
