"""One connection through the fault proxy, how a request is recognised on it, and the trap that it may spring."""

from __future__ import annotations

import asyncio
import re
import socket
import struct
import threading
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from enum import Enum
from typing import Any, Protocol, TypeVar

T = TypeVar("T")
Address = tuple[str, int]
Matcher = Callable[[bytes], "int | None"]
"""Fed with one connection's bytes towards the server, piece by piece: where in this piece a request begins, if any."""
Request = bytes | re.Pattern[bytes] | Callable[[], Matcher]
"""The mark of a request: bytes, a regular expression, or a function that makes a matcher for each connection."""

_PIECE_BYTES = 65_536
_TAIL_BYTES = 256
_QUIET_S = 0.05
"""A request is complete when its client has sent nothing for so long: clients send header and body apart."""
_REPLY_WITHIN_S = 5.0


class RequestFault(str, Enum):
    """The fate of a request."""

    REPLY_LOST = "reply lost"
    """Delivers the request, drops the answer and cuts the connection."""
    HELD = "held"
    """Keeps the request and cuts its client off; `Trap.deliver` delivers it later, on the same connection."""
    STALLED = "stalled"
    """Keeps the request, and leaves its client waiting for an answer."""
    HALVED = "halved"
    """Delivers the request's first half, then cuts the connection on both sides."""


class Switchboard(Protocol):
    """The proxy as its connections and traps need it, see `sparkonce_lab.rig.proxy.FaultProxy`."""

    requests: dict[str, Request]
    swallows_requests: bool
    swallows_replies: bool
    delay_s: float

    @property
    def swallowing(self) -> bool:
        """Tells whether bytes of either direction are thrown away."""

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine in the proxy's thread and waits for it."""

    def judge(self, piece: bytes, matchers: Mapping[str, Matcher]) -> tuple[Trap | None, int]:
        """Returns the trap that a piece of a connection springs, and where the request begins in it."""

    def note_held(self, trap: Trap) -> None:
        """Remembers a trap that holds a request."""


class Trap:
    """Waits for one request.

    Attributes:
        sprung: Set when the request came.
    """

    def __init__(self, proxy: Switchboard, kind: str, fault: RequestFault, nth: int) -> None:
        self.kind = kind
        self.fault = fault
        self.sprung = threading.Event()
        self._proxy = proxy
        self._left = nth
        self._held: tuple[Link, bytes] | None = None

    def deliver(self) -> bytes:
        """Delivers a held request, and waits for its answer, which no client hears.

        Returns:
            The answer; empty if the server has given up the connection meanwhile, or nothing is held.

        Raises:
            TimeoutError: if the server keeps the connection and does not answer.
        """
        held, self._held = self._held, None
        return b"" if held is None else self._proxy.run(held[0].deliver(held[1]))

    def drop(self) -> None:
        """Drops a held request, and cuts its connection."""
        held, self._held = self._held, None
        if held is not None:
            self._proxy.run(held[0].drop())

    def counts(self, kind: str) -> bool:
        """Tells whether this request is the one that it waits for."""
        if kind != self.kind or self._left == 0:
            return False
        self._left -= 1
        return self._left == 0

    def hold(self, link: Link, data: bytes) -> None:
        """Keeps a request."""
        self._held = (link, data)
        self._proxy.note_held(self)


class Link:
    """One client's connection and its own to the server."""

    def __init__(
        self, proxy: Switchboard, upstream: Address, client: tuple[asyncio.StreamReader, asyncio.StreamWriter]
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
        """Connects to the server, and passes on what comes until both sides have ended."""
        try:
            self._from_server, self._to_server = await asyncio.open_connection(*self._upstream)
        except OSError:
            self.cut()
            return
        self._down = asyncio.ensure_future(self._pump_down(self._from_server))
        try:
            with suppress(OSError):
                await self._pump_up(self._to_server)
                if not self._holding:
                    await self._down
            while self._proxy.swallowing:  # one side does not hear that the other has given up
                await asyncio.sleep(_QUIET_S)
        finally:
            self._down.cancel()
            self.cut()

    def cut(self) -> None:
        """Cuts both sides. A held request's own connection to the server stays; an RST is swallowed, too."""
        if not self._proxy.swallows_replies:
            _reset(self._to_client)
        if self._to_server is not None and not self._holding and not self._proxy.swallows_requests:
            _reset(self._to_server)

    async def deliver(self, data: bytes) -> bytes:
        """See `Trap.deliver`."""
        reader, writer = self._from_server, self._to_server
        if reader is None or writer is None:
            return b""
        try:
            await _until_quiet(reader)  # what it said before, answers to earlier requests among it
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
        """See `Trap.drop`."""
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
        """Does what the trap is for. Returns whether the connection is over for the client."""
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
                self._down.cancel()  # what the server says from now on is read when the request is delivered
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
    """Reads until nothing comes for a moment."""
    found = b""
    with suppress(asyncio.TimeoutError, ConnectionError):
        while more := await asyncio.wait_for(reader.read(_PIECE_BYTES), _QUIET_S):
            found += more
    return found


def _reset(writer: asyncio.StreamWriter) -> None:
    """Closes with RST instead of FIN, throwing away what is not sent yet."""
    connection = writer.get_extra_info("socket")
    if connection is not None and connection.fileno() >= 0:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


def matcher_of(request: Request) -> Matcher:
    """Makes a matcher for a new connection."""
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
            if found.end() > before:  # what ends in the tail was seen with the piece before
                return max(0, found.start() - before)
        return None

    return match
