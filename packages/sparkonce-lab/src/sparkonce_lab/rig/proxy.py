"""A TCP proxy for tests. It can cut and slow connections, discard bytes, and lose, delay or halve certain requests.

::

    with FaultProxy(("127.0.0.1", 5432), {"commit": b"COMMIT PREPARED"}) as proxy:
        trap = proxy.trap("commit", RequestFault.REPLY_LOST)
        ...                             # a client of proxy.address commits, and never hears of it
        assert trap.sprung.is_set()

The proxy runs in a separate thread. Clients keep their own clocks and deadlines, so they see only what a network can do
to them. Requests are recognized by their bytes, by preceding data (`after`), or by Kafka's API keys (`kafka_request`).
"""

from __future__ import annotations

import asyncio
import re
import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from typing_extensions import Self


T = TypeVar("T")
Address = tuple[str, int]
Matcher = Callable[[bytes], "int | None"]
"""Takes a connection's bytes to the server, piece by piece. Returns the index at which a request begins, if any."""
Request = bytes | re.Pattern[bytes] | Callable[[], Matcher]
"""A way to recognize a request: bytes, a regular expression, or a function that creates a matcher per connection."""
_PIECE_BYTES = 65_536
_TAIL_BYTES = 256
_QUIET_S = 0.05
"""A request is complete if its client has sent nothing for this long, since clients send header and body separately."""
_REPLY_WITHIN_S = 5.0
_LIMIT_S = 30.0
HOST = "127.0.0.1"


class RequestFault(str, Enum):
    """Names a fault that a trap injects into its request."""

    REPLY_LOST = "reply lost"
    """Delivers the request, drops the response and cuts the connection."""
    HELD = "held"
    """Holds the request and disconnects its client. `Trap.deliver` delivers it later, on the same connection."""
    STALLED = "stalled"
    """Holds the request, and lets its client wait for a response."""
    HALVED = "halved"
    """Delivers the request's first half, then cuts the connection on both sides."""


class Trap:
    """Waits for one request, and sets `sprung` when the request has arrived."""

    def __init__(self, proxy: FaultProxy, kind: str, fault: RequestFault, nth: int) -> None:
        self.kind = kind
        self.fault = fault
        self.sprung = threading.Event()
        self._proxy = proxy
        self._left = nth
        self._held: tuple[Link, bytes] | None = None

    def deliver(self) -> bytes:
        """Delivers a held request, and waits for its response, which no client receives.

        Returns the response; empty if the server has closed the connection in the meantime, or if no request is held.

        Raises:
            TimeoutError: If the server keeps the connection open but does not respond.
        """
        held, self._held = self._held, None
        return b"" if held is None else self._proxy.run(held[0].deliver(held[1]))

    def drop(self) -> None:
        held, self._held = self._held, None
        if held is not None:
            self._proxy.run(held[0].drop())

    def counts(self, kind: str) -> bool:
        """Counts a request. Returns True if it is the one for which the trap is waiting."""
        if kind != self.kind or self._left == 0:
            return False
        self._left -= 1
        return self._left == 0

    def hold(self, link: Link, data: bytes) -> None:
        self._held = (link, data)
        self._proxy.note_held(self)


class Link:
    """One client's connection, and its connection to the server."""

    def __init__(
        self, proxy: FaultProxy, upstream: Address, client: tuple[asyncio.StreamReader, asyncio.StreamWriter]
    ) -> None:
        self._proxy = proxy
        self._upstream = upstream
        self._from_client, self._to_client = client
        self._from_server: asyncio.StreamReader | None = None
        self._to_server: asyncio.StreamWriter | None = None
        self._matchers = {kind: matcher_of(request) for kind, request in proxy.requests.items()}
        self._reply_is_lost = False
        self._holding = False
        self._down: asyncio.Future[None] | None = None

    async def run(self) -> None:
        """Connects to the server, and forwards data until both sides have ended."""
        try:
            with suppress(OSError):
                self._from_server, self._to_server = await asyncio.open_connection(*self._upstream)
                self._down = asyncio.ensure_future(self._pump_down(self._from_server))
                await self._pump_up(self._to_server)
                if not self._holding:
                    await self._down
            while self._proxy.swallowing:  # In a black hole, neither side finds out that the other one has given up.
                await asyncio.sleep(_QUIET_S)
        finally:
            if self._down is not None:
                self._down.cancel()
            self.cut()

    def cut(self) -> None:
        """Cuts both sides, except for the server connection of a held request. A black hole also discards the RST."""
        if not self._proxy.swallows_replies:
            _reset(self._to_client)
        if self._to_server is not None and not self._holding and not self._proxy.swallows_requests:
            _reset(self._to_server)

    async def deliver(self, data: bytes) -> bytes:
        reader, writer = self._from_server, self._to_server
        if reader is None or writer is None:
            return b""
        try:
            await _until_quiet(reader)  # Discard earlier output, including responses to earlier requests.
            if reader.at_eof():
                return b""
            writer.write(data)
            await writer.drain()
            answer = await asyncio.wait_for(reader.read(_PIECE_BYTES), _REPLY_WITHIN_S)
            return answer + await _until_quiet(reader)
        except ConnectionError:
            return b""
        except asyncio.TimeoutError as error:
            raise TimeoutError(f"a request delivered late was not answered within {_REPLY_WITHIN_S:g} s") from error
        finally:
            _reset(writer)

    async def drop(self) -> None:
        if self._to_server is not None:
            _reset(self._to_server)

    async def _pump_up(self, server: asyncio.StreamWriter) -> None:
        while piece := await self._from_client.read(_PIECE_BYTES):
            await asyncio.sleep(self._proxy.delay_s)
            if self._proxy.swallows_requests:
                continue
            trap, place = self._proxy.judge(piece, self._matchers)
            if trap is not None and await self._spring(trap, piece, place, server):
                return
            server.write(piece)
            await server.drain()
        if not self._proxy.swallows_requests and not server.is_closing():
            server.write_eof()

    async def _spring(self, trap: Trap, piece: bytes, place: int, server: asyncio.StreamWriter) -> bool:
        """Carries out the fault of a trap. Returns True if the connection is over for the client."""
        if trap.fault is RequestFault.REPLY_LOST:
            self._reply_is_lost = True
            trap.sprung.set()
            return False
        if trap.fault is RequestFault.HALVED:
            server.write(piece[: (place + len(piece) + 1) // 2])
            await server.drain()
        else:
            self._holding = True
            if self._down is not None:
                # Stop reading from the server. Read the rest when the held request is delivered.
                self._down.cancel()
            trap.hold(self, piece + await _until_quiet(self._from_client))
        if trap.fault is not RequestFault.STALLED:
            self.cut()
        trap.sprung.set()
        if trap.fault is RequestFault.STALLED:
            while await self._from_client.read(_PIECE_BYTES):
                pass
        return True

    async def _pump_down(self, server: asyncio.StreamReader) -> None:
        try:
            while piece := await server.read(_PIECE_BYTES):
                if self._reply_is_lost:
                    break
                await asyncio.sleep(self._proxy.delay_s)
                if not self._proxy.swallows_replies:
                    self._to_client.write(piece)
                    await self._to_client.drain()
            else:
                if not self._proxy.swallows_replies and not self._to_client.is_closing():
                    self._to_client.write_eof()
                return
        except OSError:
            pass
        self.cut()


async def _until_quiet(reader: asyncio.StreamReader) -> bytes:
    """Reads until nothing arrives for a moment."""
    found = b""
    with suppress(asyncio.TimeoutError, ConnectionError):
        while more := await asyncio.wait_for(reader.read(_PIECE_BYTES), _QUIET_S):
            found += more
    return found


def _reset(writer: asyncio.StreamWriter) -> None:
    """Closes with RST instead of FIN, discarding unsent data."""
    connection = writer.get_extra_info("socket")
    if connection is not None and connection.fileno() >= 0:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


def matcher_of(request: Request) -> Matcher:
    """Creates a matcher for a new connection."""
    if callable(request):
        return request()
    return _pattern_matcher(re.compile(re.escape(request)) if isinstance(request, bytes) else request)


def _pattern_matcher(pattern: re.Pattern[bytes]) -> Matcher:
    tail = b""

    def match(piece: bytes) -> int | None:
        nonlocal tail
        data, before = tail + piece, len(tail)
        tail = data[-_TAIL_BYTES:]
        for found in pattern.finditer(data):
            if found.end() > before:  # Matches that end in the tail were reported with the previous piece.
                return max(0, found.start() - before)
        return None

    return match


class FaultProxy:
    """Forwards data between clients and a server. Use it as a context manager, or call `start` and `close`.

    Attributes:
        seen: The number of requests of each name that have passed.
        swallows_requests: True if data from clients is discarded.
        swallows_replies: True if data from servers is discarded.
        delay_s: The delay of each piece of data in both directions, in seconds.
    """

    def __init__(self, upstream: Address, requests: Mapping[str, Request] | None = None) -> None:
        self.requests = dict(requests or {})
        self.seen: Counter[str] = Counter()
        self.swallows_requests = self.swallows_replies = False
        self.delay_s = 0.0
        self._traps: list[Trap] = []
        self._holding: list[Trap] = []
        self._links: dict[Link, asyncio.Task[None]] = {}
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
        """Adds another server, such as a cluster node, and returns the port for its clients. Only before `start`.

        Traps and faults apply to all servers.
        """
        listener = socket.create_server((HOST, 0), backlog=200)
        self._listeners.append((listener, upstream))
        return int(listener.getsockname()[1])

    def start(self) -> None:
        self._thread.start()
        self.run(self._serve())

    def close(self) -> None:
        """Cuts every connection, and ends the proxy."""
        self.clear()
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
        """Resets (RST) every connection on both sides. New connections are accepted."""
        self.run(self._cut())

    def swallow(self, *, requests: bool = True, replies: bool = True) -> None:
        """Discards all data but keeps every connection open (a black hole), until `heal`."""
        self.swallows_requests, self.swallows_replies = requests, replies

    def slow(self, delay_ms: int) -> None:
        """Delays every piece of data on every connection, in both directions, until `heal`."""
        self.delay_s = delay_ms / 1000

    def heal(self) -> None:
        """Ends delays and black holes. Cuts the connections of black holes, because data sent into them is lost."""
        self.delay_s = 0.0
        if self.swallowing:
            self.swallows_requests = self.swallows_replies = False
            self.cut()

    def trap(self, kind: str, fault: RequestFault, nth: int = 1) -> Trap:
        """Sets a trap for the nth request with a name from now on. The trap springs once."""
        if kind not in self.requests:
            raise KeyError(kind)
        trap = Trap(self, kind, fault, nth)
        self._traps.append(trap)
        return trap

    def clear(self) -> None:
        """Removes all traps, and cuts the connections of requests that are still held."""
        self._traps.clear()
        for trap in self._holding:
            trap.drop()
        self._holding.clear()

    # --- inside -----------------------------------------------------------------------------------------------------

    @property
    def swallowing(self) -> bool:
        return self.swallows_requests or self.swallows_replies

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_LIMIT_S)

    def judge(self, piece: bytes, matchers: Mapping[str, Matcher]) -> tuple[Trap | None, int]:
        """Returns the trap that a piece of data springs, and the index in the piece at which the request begins."""
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
        self._holding.append(trap)

    async def _serve(self) -> None:
        for listener, upstream in self._listeners:
            self._servers.append(await asyncio.start_server(partial(self._connected, upstream), sock=listener))

    async def _connected(self, upstream: Address, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = Link(self, upstream, (reader, writer))
        self._links[link] = running = asyncio.ensure_future(link.run())
        try:
            with suppress(asyncio.CancelledError):  # asyncio would otherwise report the end of the proxy as an error.
                await running
        finally:
            link.cut()  # This also cuts a link that was cancelled before it ran.
            del self._links[link]

    async def _cut(self) -> None:
        for link in list(self._links):
            link.cut()

    async def _end(self) -> None:
        for listener, _ in self._listeners:
            self._loop.remove_reader(listener)
        self.swallows_requests = self.swallows_replies = False
        # Let asyncio finish accepting clients. If it is interrupted, or its server is closed, the clients' sockets stay
        # open.
        while waiting := asyncio.all_tasks() - {asyncio.current_task()}:
            for running in self._links.values():
                running.cancel()
            await asyncio.wait(waiting, timeout=_QUIET_S)
        for server in self._servers:
            server.close()


PRODUCE, INIT_PRODUCER_ID, ADD_PARTITIONS, END_TXN = 0, 22, 24, 26
"""Kafka's API keys; see https://kafka.apache.org/protocol#protocol_api_keys"""


def after(first: bytes | re.Pattern[bytes], then: bytes, *, always: bool = False) -> Callable[[], Matcher]:
    """Recognizes the first request with ``then`` after data with ``first``; with ``always``, every such request."""
    before = first if isinstance(first, re.Pattern) else re.compile(re.escape(first))

    def new() -> Matcher:
        armed = False

        def match(piece: bytes) -> int | None:
            nonlocal armed
            place = piece.find(then)
            if armed and place >= 0:
                armed = always
                return place
            armed = armed or before.search(piece) is not None
            return None

        return match

    return new


def kafka_request(api_key: int) -> Callable[[], Matcher]:
    """Recognizes a request to Kafka by its API key, which follows the four bytes of the request's length."""

    def new() -> Matcher:
        rest = b""
        skip = 0

        def match(piece: bytes) -> int | None:
            nonlocal rest, skip
            data, before, place, found = rest + piece, len(rest), skip, None
            while place + 6 <= len(data):
                length, key = struct.unpack_from(">ih", data, place)
                if key == api_key and found is None:
                    found = max(0, place - before)
                place += 4 + length
            rest, skip = (b"", place - len(data)) if place > len(data) else (data[place:], 0)
            return found

        return match

    return new
