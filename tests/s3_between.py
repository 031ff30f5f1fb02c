"""Sits between a client and an S3 store, and injects faults of networks and stores into single requests."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

HOP_BY_HOP = frozenset({"connection", "keep-alive", "transfer-encoding", "date", "server"})


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    body: bytes

    @property
    def is_complete(self) -> bool:
        return self.method == "POST" and "uploadId=" in self.path

    @property
    def is_part(self) -> bool:
        return self.method == "PUT" and "partNumber=" in self.path


@dataclass(frozen=True)
class Reply:
    status: int
    body: bytes
    headers: tuple[tuple[str, str], ...] = (("Content-Type", "application/xml"),)


def refusal(status: int, code: str, message: str = "as the test says") -> Reply:
    return Reply(status, f"<Error><Code>{code}</Code><Message>{message}</Message></Error>".encode())


GO_ON = "go on"
CUT_REPLY = "cut the reply"
"""Execute the request, and drop its reply."""

Act = Callable[[Request], str | Request | Reply]


class Between:
    """A proxy on its own port.

    Attributes:
        act: Decides what happens to a request: GO_ON, CUT_REPLY, another request to send instead, or a reply without
            asking the store.
        seen: All requests so far.
        listen: Called with the headers of each request.
    """

    def __init__(self, port: int) -> None:
        self.act: Act = lambda _: GO_ON
        self.seen: list[Request] = []
        self.listen: Callable[[Request, Mapping[str, str]], object] = lambda _request, _headers: None
        self._store_port = port
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    @contextmanager
    def running(self) -> Iterator[Between]:
        self._thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            self._thread.join()
            self._server.server_close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        between = self

        class Handler(BaseHTTPRequestHandler):
            # otherwise, clients that send "Expect: 100-continue" wait one second for a reply
            protocol_version = "HTTP/1.1"

            def answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                request = Request(self.command, self.path, body)
                between.seen.append(request)
                between.listen(request, dict(self.headers))
                doing = between.act(request)
                if isinstance(doing, Reply):
                    reply = doing
                else:
                    reply = between._forward(doing if isinstance(doing, Request) else request, dict(self.headers))
                self.close_connection = True
                if doing == CUT_REPLY:
                    return
                self.send_response(reply.status)
                for name, value in reply.headers:
                    self.send_header(name, value)
                if not any(name.lower() == "content-length" for name, _ in reply.headers):
                    self.send_header("Content-Length", str(len(reply.body)))
                self.send_header("Connection", "close")
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(reply.body)

            do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = answer  # noqa: N815 - names that http.server calls

            def handle_expect_100(self) -> bool:
                self.send_response_only(100)
                self.end_headers()
                return True

            def log_message(self, *_: object) -> None:
                pass

        return Handler

    def _forward(self, request: Request, headers: dict[str, str]) -> Reply:
        connection = http.client.HTTPConnection("127.0.0.1", self._store_port, timeout=30)
        try:
            kept = {name: value for name, value in headers.items() if name.lower() != "expect"}
            connection.request(request.method, request.path, body=request.body, headers=kept)
            answer = connection.getresponse()
            passed = tuple((name, value) for name, value in answer.getheaders() if name.lower() not in HOP_BY_HOP)
            return Reply(answer.status, answer.read(), passed)
        finally:
            connection.close()


def damaged(request: Request) -> Request:
    """Returns the request with a different first byte in its body."""
    return replace(request, body=bytes([request.body[0] ^ 1]) + request.body[1:])
