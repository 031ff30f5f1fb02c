"""Injects and ends faults of connections through a proxy, of servers, and of disks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol

from sparkonce.errors import ConfigurationError
from sparkonce_lab.faults import OF_REQUESTS, Fault
from sparkonce_lab.rig.disk import SmallDisk, affordable
from sparkonce_lab.rig.proxy import Address, FaultProxy, Request, RequestFault, Trap

if TYPE_CHECKING:
    from sparkonce_lab.rig.process import Server

SLOW_MS = 50
"""The delay of each piece of data on each connection, in milliseconds."""

_TRAPS = {Fault.REPLY_LOST: RequestFault.REPLY_LOST, Fault.REQUEST_LATE: RequestFault.HELD}


@dataclass(frozen=True, slots=True)
class Injection:
    """A fault that can be injected within the given number of seconds, and ended unless it does not last."""

    begin: Callable[[float], None]
    end: Callable[[], object] | None = None


Injections = Mapping[Fault, Injection]


class Stoppable(Protocol):
    """A server that can be stopped."""

    def kill(self) -> None:
        """Ends the server with SIGKILL."""

    def start(self) -> object:
        """Starts the server with its data, and waits until it responds."""

    def pause(self) -> None:
        """Pauses the server with SIGSTOP."""

    def resume(self) -> None:
        """Continues the server with SIGCONT."""


class Together:
    """The servers of a cluster as a single one."""

    def __init__(self, servers: Sequence[Stoppable], start: Callable[[], object]) -> None:
        self._servers = servers
        self.start = start

    def kill(self) -> None:
        for server in self._servers:
            server.kill()

    def pause(self) -> None:
        for server in self._servers:
            server.pause()

    def resume(self) -> None:
        for server in self._servers:
            server.resume()


def of_connections(proxy: FaultProxy) -> Injections:
    """Returns the faults that a proxy injects into all connections."""
    return {
        Fault.CUT: Injection(lambda _: proxy.cut()),
        Fault.SLOWED: Injection(lambda _: proxy.slow(SLOW_MS), proxy.heal),
        Fault.BLACK_HOLE: Injection(lambda _: proxy.swallow(), proxy.heal),
        Fault.REQUESTS_SWALLOWED: Injection(lambda _: proxy.swallow(replies=False), proxy.heal),
        Fault.REPLIES_SWALLOWED: Injection(lambda _: proxy.swallow(requests=False), proxy.heal),
    }


def of_server(server: Stoppable) -> Injections:
    """Returns the faults of a server that was started here."""
    return {
        Fault.SERVER_KILLED: Injection(lambda _: server.kill(), server.start),
        Fault.SERVER_PAUSED: Injection(lambda _: server.pause(), server.resume),
    }


def of_disk(disk: SmallDisk, server: Server | None = None) -> Injections:
    """Returns the faults of a disk that can be filled. Any other disk has none.

    The server is restarted if it has exited because it could not write.
    """
    if not disk.is_small:
        return {}

    def end() -> None:
        disk.free()
        if server is not None and not server.is_up():
            server.restart()

    return {Fault.TARGET_DISK_FULL: Injection(lambda _: disk.fill(), end)}


class Injectable:
    """A server or a folder with faults that can be injected. Its `start` sets the last three attributes.

    Attributes:
        name: The name on the command line: ``kafka``, ``postgres``, ``checkpoint``, …
        injections: The faults that can be injected.
        proxy: The proxy at which requests can be struck; None if they cannot.
        requests: The requests that can be struck, by name, with the patterns that the proxy uses to recognize them.
    """

    name: str
    injections: Injections = MappingProxyType({})
    proxy: FaultProxy | None = None
    requests: Mapping[str, Request] = {}
    _trap: Trap | None = None

    def faults(self) -> Mapping[Fault, Sequence[str]]:
        """Returns the faults that can be injected. Faults of one request come with the names of possible requests."""
        of_requests = {fault: tuple(self.requests) for fault in _TRAPS} if self.requests and self.proxy else {}
        return {**dict.fromkeys(self.injections, ()), **of_requests}

    def inject(self, fault: Fault, *, request: str = "", within_s: float = 30.0) -> bool:
        """Injects a fault. If the fault lasts, `lift` ends it. Returns True if there is something to lift.

        A fault of one request sets a trap. `sprung` returns True once the request has arrived. Such a fault must always
        be lifted: that removes a trap that has not sprung, and delivers a held request. Waits at most ``within_s``
        seconds.

        Raises:
            ConfigurationError: If the fault, or the request, is not one of `faults`.
            TimeoutError: If the fault could not be injected in time. Then there is nothing to lift.
        """
        self._check(fault, request)
        self._trap = None
        if fault in OF_REQUESTS and self.proxy is not None:
            self._trap = self.proxy.trap(request, _TRAPS[fault])
            return True
        injection = self.injections[fault]
        injection.begin(within_s)
        return injection.end is not None

    def lift(self, fault: Fault) -> None:
        """Ends a lasting fault: restarts the server, heals connections, or delivers a held request."""
        if fault in OF_REQUESTS:
            self._deliver()
        elif (end := self.injections[fault].end) is not None:
            end()

    def sprung(self) -> bool:
        """Returns True if the trap for a fault of one request has sprung. Always True for other faults."""
        return self._trap is None or self._trap.sprung.is_set()

    def _deliver(self) -> None:
        trap, self._trap = self._trap, None
        if trap is not None:
            with suppress(TimeoutError):  # The request was delivered, and nothing waits for the response.
                trap.deliver()
        if self.proxy is not None:
            self.proxy.clear()

    def _check(self, fault: Fault, request: str) -> None:
        can = self.faults()
        if fault not in can or (fault in OF_REQUESTS and request not in can[fault]):
            known = ", ".join(one.value for one in can) or "none"
            asked = f"{fault.value} of {request!r}" if request else fault.value
            raise ConfigurationError(
                f"{asked} cannot be injected into {self.name}: its faults are {known}"
                + (f", its requests {', '.join(self.requests)}" if self.requests else ""),
                next_step="Name another fault.",
            )


class Served(Injectable):
    """One server behind a proxy: the user's, or one that is started here, if possible on a disk that can be filled.

    `server` is None for the user's server.
    """

    server: Server | None = None
    _own: Server | None = None
    _disk: SmallDisk | None = None

    def start_own(self, server: Server, megabytes: int | None) -> None:
        """Starts a server on a disk of this size, in megabytes, or less if memory is short. None: no such disk."""
        if megabytes is not None:
            self._disk = SmallDisk(server.folder, affordable(megabytes))
        self.server = self._own = server
        server.start()
        self.injections = {**of_server(server), **(of_disk(self._disk, server) if self._disk is not None else {})}

    def start_proxy(self, upstream: Address, requests: Mapping[str, Request]) -> FaultProxy:
        """Starts the proxy, which can strike connections and these requests."""
        self.proxy = proxy = FaultProxy(upstream, requests)
        proxy.start()
        self.requests = requests
        self.injections = {**of_connections(proxy), **self.injections}
        return proxy

    def close_proxy(self) -> None:
        """Ends the proxy. May be called repeatedly."""
        proxy, self.proxy = self.proxy, None
        if proxy is not None:
            proxy.close()

    def stop_own(self) -> None:
        """Ends a server that was started here, with its disk. May be called repeatedly."""
        server, self._own = self._own, None
        if server is not None:
            server.stop()
            self.server = None
        disk, self._disk = self._disk, None
        if disk is not None:
            disk.close()
