"""A TCP proxy for tests that cuts and slows connections, swallows bytes, and loses, delays or halves chosen requests.

::

    with FaultProxy(("127.0.0.1", 5432), {"commit": b"COMMIT PREPARED"}) as proxy:
        trap = proxy.trap("commit", RequestFault.REPLY_LOST)
        ...                             # a client of proxy.address commits, and never hears of it
        assert trap.sprung.is_set()

Runs in a thread of its own. The client's clocks and deadlines are not touched: what it sees is what a network does.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections import Counter
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from sparkonce_lab.rig.proxy_link import Address, Link, Matcher, Request, RequestFault, Trap

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["HOST", "Address", "FaultProxy", "Matcher", "Request", "RequestFault", "Trap"]

T = TypeVar("T")

HOST = "127.0.0.1"
_LIMIT_S = 30.0


class FaultProxy:
    """Stands between clients and a server. Use as a context manager, or call `start` and `close`.

    Args:
        upstream: The server's host and port.
        requests: Requests that traps can be set for, by a name of your choice.

    Attributes:
        seen: How many requests of each name came by.
        swallows_requests: Whether what clients send is thrown away.
        swallows_replies: Whether what servers send is.
        delay_s: How long each piece is kept back, in both directions.
    """

    def __init__(self, upstream: Address, requests: Mapping[str, Request] | None = None) -> None:
        self.requests = dict(requests or {})
        self.seen: Counter[str] = Counter()
        self.swallows_requests = self.swallows_replies = False
        self.delay_s = 0.0
        self._traps: list[Trap] = []
        self._holding: list[Trap] = []
        self._links: set[Link] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fault proxy", daemon=True)
        self._listeners: list[tuple[socket.socket, Address]] = []
        self._servers: list[asyncio.Server] = []
        self.port = self.add(upstream)

    @property
    def address(self) -> str:
        """``host:port``, for clients."""
        return f"{HOST}:{self.port}"

    def add(self, upstream: Address) -> int:
        """Stands before one more server, as of a cluster: traps and faults are of all. Only before `start`.

        Returns:
            The port for its clients.
        """
        listener = socket.create_server((HOST, 0), backlog=200)
        self._listeners.append((listener, upstream))
        return int(listener.getsockname()[1])

    def start(self) -> None:
        """Begins to listen."""
        self._thread.start()
        self.run(self._serve())

    def close(self) -> None:
        """Cuts every connection and ends."""
        self.run(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_LIMIT_S)
        self._loop.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- faults -----------------------------------------------------------------------------------------------------

    def cut(self) -> None:
        """Resets (RST) every connection on both sides. New ones are let through."""
        self.run(self._cut())

    def swallow(self, *, requests: bool = True, replies: bool = True) -> None:
        """Lets nothing through, and keeps every connection open: a black hole, until `heal`.

        Args:
            requests: In the direction to the server.
            replies: In the direction to the client.
        """
        self.swallows_requests, self.swallows_replies = requests, replies

    def slow(self, delay_ms: int) -> None:
        """Keeps back every piece of every connection for so long, in both directions, until `heal`."""
        self.delay_s = delay_ms / 1000

    def heal(self) -> None:
        """Ends slowness, and black holes. What was sent into one is gone, so its connections are cut."""
        self.delay_s = 0.0
        if self.swallowing:
            self.swallows_requests = self.swallows_replies = False
            self.cut()

    def trap(self, kind: str, fault: RequestFault, nth: int = 1) -> Trap:
        """Sets a trap for the nth request of a name from now on. It springs once.

        Raises:
            KeyError: if there is no request of this name.
        """
        if kind not in self.requests:
            raise KeyError(kind)
        trap = Trap(self, kind, fault, nth)
        self._traps.append(trap)
        return trap

    def clear(self) -> None:
        """Takes away every trap, and cuts the connections of requests that are still held."""
        self._traps.clear()
        for trap in self._holding:
            trap.drop()
        self._holding.clear()

    # --- inside -----------------------------------------------------------------------------------------------------

    @property
    def swallowing(self) -> bool:
        """Tells whether bytes of either direction are thrown away."""
        return self.swallows_requests or self.swallows_replies

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine in the proxy's thread and waits for it."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_LIMIT_S)

    def judge(self, piece: bytes, matchers: Mapping[str, Matcher]) -> tuple[Trap | None, int]:
        """Returns the trap that a piece of a connection springs, and where the request begins in it."""
        found: tuple[Trap | None, int] = (None, 0)
        for kind, matcher in matchers.items():
            place = matcher(piece)
            if place is None:
                continue
            self.seen[kind] += 1
            for trap in list(self._traps):
                if trap.counts(kind):
                    self._traps.remove(trap)
                    found = (trap, place)
        return found

    def note_held(self, trap: Trap) -> None:
        """Remembers a trap that holds a request, for `clear`."""
        self._holding.append(trap)

    async def _serve(self) -> None:
        for listener, upstream in self._listeners:
            self._servers.append(await asyncio.start_server(partial(self._connected, upstream), sock=listener))

    async def _connected(self, upstream: Address, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = Link(self, upstream, (reader, writer))
        self._links.add(link)
        try:
            with suppress(asyncio.CancelledError):  # asyncio would report the end of the proxy as an error
                await link.run()
        finally:
            self._links.discard(link)

    async def _cut(self) -> None:
        for link in list(self._links):
            link.cut()

    async def _end(self) -> None:
        for server in self._servers:
            server.close()
        self.swallows_requests = self.swallows_replies = False
        await self._cut()
        waiting = asyncio.all_tasks() - {asyncio.current_task()}
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
