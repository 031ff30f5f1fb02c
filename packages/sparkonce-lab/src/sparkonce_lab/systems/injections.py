"""Injects and ends faults of a proxy's connections, of a server, and of a disk."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from sparkonce.errors import ConfigurationError
from sparkonce_lab.faults import OF_REQUESTS, Fault
from sparkonce_lab.rig.disk import SmallDisk, affordable
from sparkonce_lab.rig.proxy import Address, FaultProxy, Request, RequestFault, Trap
from sparkonce_lab.systems.base import Strikable, System

if TYPE_CHECKING:
    from sparkonce_lab.rig.process import Server

SLOW_MS = 50
"""How long each piece on each connection is delayed."""

_TRAPS = {Fault.REPLY_LOST: RequestFault.REPLY_LOST, Fault.REQUEST_LATE: RequestFault.HELD}


@dataclass(frozen=True, slots=True)
class Injection:
    """A fault that can be injected.

    Attributes:
        begin: Injects it, within this many seconds.
        end: Ends it; None if it does not last.
    """

    begin: Callable[[float], None]
    end: Callable[[], object] | None = None


Injections = Mapping[Fault, Injection]


class Stoppable(Protocol):
    """A server."""

    def kill(self) -> None:
        """Ends it with SIGKILL."""

    def start(self) -> object:
        """Starts it with its data, and waits until it responds."""

    def pause(self) -> None:
        """Pauses it with SIGSTOP."""

    def resume(self) -> None:
        """Continues it with SIGCONT."""


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
    """Returns the faults of a server that we started."""
    return {
        Fault.SERVER_KILLED: Injection(lambda _: server.kill(), server.start),
        Fault.SERVER_PAUSED: Injection(lambda _: server.pause(), server.resume),
    }


def of_disk(disk: SmallDisk, server: Server | None = None) -> Injections:
    """Returns the faults of a disk that can be filled; none for any other disk.

    Args:
        disk: The disk.
        server: The server to restart if it has exited because it could not write.
    """
    if not disk.is_small:
        return {}

    def end() -> None:
        disk.free()
        if server is not None and not server.is_up():
            server.restart()

    return {Fault.TARGET_DISK_FULL: Injection(lambda _: disk.fill(), end)}


class Injectable(Strikable):
    """A server or folder with a table of faults. Its `start` sets these attributes.

    Attributes:
        injections: The faults that can be injected.
        proxy: Where requests can be struck; None if they cannot.
        requests: The requests that can be struck, by name, and how the proxy recognizes them.
    """

    injections: Injections
    proxy: FaultProxy | None = None
    requests: Mapping[str, Request] = {}
    _trap: Trap | None = None

    def faults(self) -> Mapping[Fault, Sequence[str]]:
        """See `System.faults`."""
        of_requests = {fault: tuple(self.requests) for fault in _TRAPS} if self.requests and self.proxy else {}
        return {**dict.fromkeys(self.injections, ()), **of_requests}

    def inject(self, fault: Fault, *, request: str = "", within_s: float = 30.0) -> bool:
        """See `System.inject`."""
        self._check(fault, request)
        self._trap = None
        if fault in OF_REQUESTS and self.proxy is not None:
            self._trap = self.proxy.trap(request, _TRAPS[fault])
            return True
        injection = self.injections[fault]
        injection.begin(within_s)
        return injection.end is not None

    def lift(self, fault: Fault) -> None:
        """See `System.lift`."""
        if fault in OF_REQUESTS:
            self._deliver()
        elif (end := self.injections[fault].end) is not None:
            end()

    def sprung(self) -> bool:
        """See `System.sprung`."""
        return self._trap is None or self._trap.sprung.is_set()

    def _deliver(self) -> None:
        trap, self._trap = self._trap, None
        if trap is not None:
            with suppress(TimeoutError):  # it was delivered, and nobody waits for its response
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
    """One server behind a proxy: one that we start, on a disk that can be filled if possible, or the user's.

    Attributes:
        server: Ours, or one that somebody else has started; None for the user's.
    """

    server: Server | None = None
    _own: Server | None = None
    _disk: SmallDisk | None = None

    def start_own(self, server: Server, megabytes: int | None) -> None:
        """Starts a server on a disk of this many megabytes (or as many as are affordable), or on no separate disk."""
        if megabytes is not None:
            self._disk = SmallDisk(server.folder, affordable(megabytes))
        self.server = self._own = server
        server.start()
        self.injections = {**of_server(server), **(of_disk(self._disk, server) if self._disk is not None else {})}

    def start_proxy(self, upstream: Address, requests: Mapping[str, Request]) -> FaultProxy:
        """Starts the proxy, at which connections and these requests can be struck."""
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
        """Ends a server that we started, with its disk. May be called repeatedly."""
        server, self._own = self._own, None
        if server is not None:
            server.stop()
            self.server = None
        disk, self._disk = self._disk, None
        if disk is not None:
            disk.close()


class ServerSystem(Served, System):
    """A system that consists of one server."""

    _made = False

    def borrow(self, server: Server) -> None:
        """Uses a server that somebody else has started and will stop. Its connections cannot be struck."""
        self.server = server
        self.injections = of_server(server)

    @abstractmethod
    def drop_place(self) -> None:
        """Removes the table, bucket or keys from the user's server.

        Raises:
            PreflightError: If it cannot.
        """

    @abstractmethod
    def close(self) -> None:
        """Closes the connections to the server. May be called repeatedly; the next request opens them again."""

    def stop(self) -> None:
        """See `System.stop`."""
        self.close_proxy()
        try:
            if self.server is None and self._made and not self.keep_place:
                self.drop_place()
                self._made = False
        finally:
            self.close()
        self.stop_own()

    def restart(self) -> bool:
        """See `System.restart`."""
        if self.server is None:
            return False
        self.close()  # a connection that dies with the server would make the next request fail
        self.server.restart()
        return True
