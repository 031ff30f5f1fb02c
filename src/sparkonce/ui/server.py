"""Serves the page and its JSON to anyone who knows the page's address. It answers only GET, and changes nothing."""

from __future__ import annotations

import gzip
import ipaddress
import json
import logging
import re
import secrets
import socket
import sys
from collections.abc import Mapping
from dataclasses import asdict
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from typing import Any
from urllib.parse import parse_qs, urlsplit

from sparkonce.ui.alarms import alarms_of
from sparkonce.ui.watcher import PageWatcher
from sparkonce.version import __version__

logger = logging.getLogger("sparkonce")

SCRIPTS = ("page", "model", "parts", "contact", "cards", "systems", "timeline", "phases", "view", "chart", "input")
"""The modules of the page's script. The first one loads the others."""
_STATIC = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    **{f"/{name}.js": (f"{name}.js", "text/javascript; charset=utf-8") for name in SCRIPTS},
}
_ICON = re.compile(r"/icon/(\d|many|lost)\.svg")
_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}
_JSON = "application/json"
_IDLE_S = 60
"""A connection that is silent for this many seconds is closed."""
_SMALL = 2000
"""Responses of fewer bytes are not compressed."""


def is_loopback(host: str) -> bool:
    """Returns True if the host that the operator named is a loopback address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class PageServer(ThreadingHTTPServer):
    """The server of one page; raises OSError if it cannot listen on the address. With port 0, it uses any free port."""

    daemon_threads = True

    def __init__(self, watcher: PageWatcher, host: str, port: int) -> None:
        self.watcher, self.host = watcher, host
        self._names = {socket.gethostname().lower(), socket.getfqdn().lower()}
        self.start = secrets.token_hex(8)  # This tells the page that its data came from a different server.
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), _PageHandler)

    @property
    def url(self) -> str:
        """The page's address for a browser on this machine."""
        shown = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)  # noqa: S104 - not a bind address
        return f"http://{f'[{shown}]' if ':' in shown else shown}:{self.server_address[1]}/"

    def takes(self, host_header: str) -> bool:
        """Returns True if a request's Host header addresses this server.

        The check prevents DNS rebinding, in which a foreign site's name resolves to this server, so that the site's
        pages can read its responses. A numeric address cannot belong to another site.
        """
        try:
            name = (urlsplit(f"//{host_header}").hostname or "").rstrip(".")
        except ValueError:
            return False
        if name == "localhost" or name == self.host.lower():
            return True
        if not is_loopback(self.host) and name in self._names:
            return True
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return False
        return address.is_loopback or not is_loopback(self.host)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002 - as the library calls it
        """Logs why a request failed. A browser that has disconnected is not an error."""
        level = logging.DEBUG if isinstance(sys.exc_info()[1], OSError) else logging.ERROR
        logger.log(level, "A request to the page failed.", exc_info=True)

    def state(self) -> dict[str, Any]:
        """Returns the page's state with its alarms."""
        state = self.watcher.state()
        alarms = [asdict(one) for one in alarms_of(state)]
        return {"start": self.start, "version": __version__, **state.plain(), "alarms": alarms}

    def timeline(self, query: Mapping[str, list[str]]) -> dict[str, Any] | None:
        """Returns a checkpoint's batches and events after a given number; None if the request is invalid."""
        try:
            number, than = (int(query.get(name, ["0"])[0]) for name in ("checkpoint", "after"))
            if number < 0:
                return None
            return {"start": self.start, **self.watcher.checkpoints[number].newer(than)}
        except (ValueError, IndexError):
            return None


class _PageHandler(BaseHTTPRequestHandler):
    server: PageServer
    server_version, sys_version = "sparkonce", ""
    timeout = _IDLE_S

    def do_GET(self) -> None:
        """Responds to a request."""
        if not self.server.takes(self.headers.get("Host", "")):
            self._refuse(HTTPStatus.FORBIDDEN, "This address is not the page's own.")
            return
        try:
            asked = urlsplit(self.path)
        except ValueError:  # Such a path is, for example, http://[.
            self._refuse(HTTPStatus.NOT_FOUND, "There is no such page.")
            return
        if asked.path in _STATIC:
            name, kind = _STATIC[asked.path]
            self._answer((files("sparkonce.ui") / "static" / name).read_bytes(), kind)
        elif found := _ICON.fullmatch(asked.path):
            # The page also needs this icon when it has lost its server.
            self._answer(_icon(found[1]), "image/svg+xml", kept_s=86400)
        elif asked.path == "/api/state":
            self._answer(_plain(self.server.state()), _JSON)
        elif asked.path == "/api/timeline" and (answer := self.server.timeline(parse_qs(asked.query))) is not None:
            self._answer(_plain(answer), _JSON)
        else:
            self._refuse(HTTPStatus.NOT_FOUND, "There is no such page.")

    def _no(self) -> None:
        self._refuse(HTTPStatus.METHOD_NOT_ALLOWED, "This page is read-only.")

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - its name in the library
        """Logs the request at debug level."""
        logger.debug("Page: %s.", format % args)

    def _refuse(self, status: HTTPStatus, why: str) -> None:
        self._answer(f"{why}\n".encode(), "text/plain; charset=utf-8", status=status)

    def _answer(self, body: bytes, kind: str, *, status: HTTPStatus = HTTPStatus.OK, kept_s: int = 0) -> None:
        headers = {"Allow": "GET"} if status is HTTPStatus.METHOD_NOT_ALLOWED else {}
        if len(body) > _SMALL and "gzip" in self.headers.get("Accept-Encoding", ""):
            body = gzip.compress(body, 1)
            headers["Content-Encoding"] = "gzip"
        self.send_response(status)
        told = {"Content-Type": kind, "Content-Length": str(len(body)), **headers, **_HEADERS}
        told["Cache-Control"] = f"max-age={kept_s}" if kept_s else "no-store"
        for name, value in told.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


for _method in ("HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"):
    setattr(_PageHandler, f"do_{_method}", _PageHandler._no)


def _plain(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _icon(name: str) -> bytes:
    """Draws the page's icon with the number of alarms."""
    colour = {"0": "#1a7f4b", "lost": "#6b7280"}.get(name, "#c62828")
    sign = {"0": "✓", "many": "9+", "lost": "?"}.get(name, name)
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 32 32">'
        f'<rect width="32" height="32" rx="7" fill="{colour}"/>'
        '<text x="16" y="23" font-family="sans-serif" font-weight="bold" font-size="20" text-anchor="middle" '
        f'fill="#fff">{sign}</text></svg>'
    ).encode()
